"""The rows to read first are those to whose truth the model gave the least."""

import numpy as np
import pytest

from lit_trainer.decision.rule import DecisionRule
from lit_trainer.reporting.scores import SplitScores
from lit_trainer.reporting.wrong_rows import most_wrong
from tests.reporting.folders import KINDS, make_scores


def scores(
    rule: DecisionRule | None, logits: object, labels: object, names: tuple[str, ...] = ("value",)
) -> SplitScores:
    logits = np.asarray(logits, float)
    names = rule.label_names if rule else names
    return SplitScores("test", 1, names, rule, 10 + np.arange(len(logits)), logits, np.asarray(labels), {11: ("text",)})


def test_the_surest_mistake_is_first_and_what_is_right_is_not_there():
    found = most_wrong(scores(DecisionRule("binary", ("no", "yes")), [[0, 1], [0, 5], [0, 2], [0, 9]], [0, 0, 1, -100]))
    assert [(row.row, row.true, row.decided, row.texts) for row in found] == [
        (11, "no", "yes", ("text",)),
        (10, "no", "yes", ()),
    ]
    assert found[0].measure == pytest.approx(1 / (1 + np.exp(5)))


def test_of_several_labels_the_worst_one_counts():
    rule = DecisionRule("multi_label", ("x", "y"))
    found = most_wrong(scores(rule, [[1, 1], [9, -9], [-9, 9]], [[1.0, 0.0], [0.0, 0.0], [np.nan, 1.0]]))
    assert [(row.row, row.true, row.decided) for row in found] == [(11, "none", "x"), (10, "x", "x, y")]


def test_of_values_the_distance_counts():
    found = most_wrong(scores(None, [[1.0], [2.0], [np.nan], [5.0], [3.0]], [1.0, 0.5, 1.0, np.nan, 2.0]))
    assert [(row.row, row.true, row.decided, row.measure) for row in found] == [
        (11, "0.5", "2", 1.5),
        (14, "2", "3", 1.0),
    ]


@pytest.mark.parametrize("num_rows", [0, 1, 300])
@pytest.mark.parametrize("kind", KINDS)
def test_there_are_never_more_than_asked_for(kind, num_rows):
    assert len(most_wrong(make_scores(kind, num_rows), 5)) <= 5
