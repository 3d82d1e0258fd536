"""Counts and curves are those of scikit-learn, and the points on them those of the decisions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from lit_trainer.decision.rule import DecisionRule
from lit_trainer.reporting.decisions import Curve, Decisions
from lit_trainer.reporting.scores import SplitScores
from tests.reporting.folders import make_scores

CLASS_KINDS = ["binary", "multi_class", "multi_label"]


@pytest.mark.parametrize("kind", CLASS_KINDS)
def test_areas_and_counts_of_a_class_are_those_of_scikit_learn(kind):
    decisions = Decisions.of(make_scores(kind))
    for number in range(len(decisions.names)):
        one = decisions.of_class(number)
        if kind == "multi_label":
            truth, said, decided = (
                column[:, number] for column in (decisions.labels, decisions.probabilities, decisions.decided)
            )
        else:
            truth, decided = decisions.labels == number, decisions.decided == number
            said = decisions.probabilities[:, number]
        assert one.area_under_roc == pytest.approx(metrics.roc_auc_score(truth, said))
        assert one.average_precision == pytest.approx(metrics.average_precision_score(truth, said))
        assert one.f1 == pytest.approx(metrics.f1_score(truth, decided))
        assert float(one.counts.recall) == pytest.approx(metrics.recall_score(truth, decided))


@pytest.mark.parametrize("kind", CLASS_KINDS)
def test_rows_without_a_label_count_for_nothing(kind):
    scores = make_scores(kind)
    decisions = Decisions.of(scores)
    assert len(decisions.rows) == 108
    assert not (decisions.rows % 10 == 0).any()
    if kind != "multi_label":
        expected = metrics.confusion_matrix(decisions.labels, decisions.decided)
        np.testing.assert_array_equal(decisions.confusion, expected)


def test_the_threshold_of_the_rule_is_a_point_of_the_curve():
    decisions = Decisions.of(make_scores("binary"))
    one = decisions.of_class(decisions.rule.positive)
    counts = one.points.counts
    # The thresholds fall, so that the last of those not below the rule's decides alike.
    index = int((one.points.thresholds >= decisions.rule.thresholds[0]).sum()) - 1
    there = {(float(counts.tp[k]), float(counts.fp[k])) for k in (index, index + 1)}
    assert (float(one.counts.tp), float(one.counts.fp)) in there
    assert decisions.has_rule
    assert not Decisions.of(make_scores("binary", with_rule=False)).has_rule


def test_one_class_alone_has_no_curves_and_no_rows_no_figures():
    rule = DecisionRule("binary", ("a", "b"))
    logits = np.array([[0.0, 1.0], [0.0, -1.0]])
    scores = SplitScores("test", 1, rule.label_names, rule, np.arange(2), logits, np.array([1, 1]))
    one = Decisions.of(scores).of_class(1)
    assert not one.has_both
    assert one.f1 == pytest.approx(2 / 3)
    empty = SplitScores("test", 1, rule.label_names, rule, np.arange(2), logits, np.array([-100, -100]))
    decisions = Decisions.of(empty)
    assert len(decisions.rows) == 0
    assert decisions.of_class(0).num_positives == 0


def test_what_a_class_is_taken_for_most():
    rule = DecisionRule("multi_class", ("a", "b", "c"))
    logits = np.eye(3)[[0, 1, 1, 2]]
    scores = SplitScores("test", 1, rule.label_names, rule, np.arange(4), logits, np.array([0, 0, 0, 0]))
    decisions = Decisions.of(scores)
    assert decisions.most_confused_with(0) == ("b", 2)
    assert decisions.most_confused_with(1) is None


def test_logits_that_are_not_finite_are_told():
    scores = make_scores("binary")
    scores.logits[3, 0] = np.nan
    with pytest.raises(ValueError, match="logits are not finite in row 3"):
        Decisions.of(scores)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=3000), st.integers(10, 50))
def test_a_thinned_curve_keeps_its_ends_and_stays_near(heights, num_points):
    curve = Curve(np.linspace(0, 1, len(heights)), np.sort(heights))
    thin = curve.thinned(num_points)
    assert len(thin.x) <= max(num_points + 1, 2)
    assert (thin.x[-1], thin.y[-1]) == (curve.x[-1], curve.y[-1])
    assert thin.x[0] == curve.x[0]
    assert set(thin.x) <= set(curve.x)
