import warnings
from dataclasses import fields, is_dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonargparse import ArgumentParser
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    confusion_matrix,
    f1_score,
    fbeta_score,
    precision_score,
    recall_score,
)

from lit_trainer.decision.counts import Counts, counts_of
from lit_trainer.decision.criteria import (
    BalancedAccuracy,
    Criterion,
    ExpectedCost,
    FBeta,
    FixedPrevalence,
    Precision,
    PrecisionAtRecall,
    Recall,
    RecallAtPrecision,
    YoudenJ,
)

quick = settings(deadline=None, max_examples=50)

two_classes = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=30).map(np.array)
four_classes = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40).map(np.array)


def counts(labels, decided) -> Counts:
    return counts_of(confusion_matrix(labels, decided, labels=[0, 1]).astype(float)).of_class(1)


@quick
@given(two_classes, st.floats(0.1, 10))
def test_values_are_those_of_scikit_learn(rows, beta):
    labels, decided = rows.T
    c = counts(labels, decided)
    assert Precision().value(c) == pytest.approx(precision_score(labels, decided, zero_division=0))
    assert Recall().value(c) == pytest.approx(recall_score(labels, decided, zero_division=0))
    assert FBeta(beta).value(c) == pytest.approx(fbeta_score(labels, decided, beta=beta, zero_division=0))
    assert FixedPrevalence(0.5).value(c) == pytest.approx(decided.mean())
    assert ExpectedCost(((0, 1), (1, 0))).value(c) == pytest.approx(1 - accuracy_score(labels, decided))
    if len(set(labels)) == 2:
        assert BalancedAccuracy().value(c) == pytest.approx(balanced_accuracy_score(labels, decided))
        assert YoudenJ().value(c) == pytest.approx(balanced_accuracy_score(labels, decided, adjusted=True))


@quick
@given(four_classes)
def test_values_for_c_classes_are_those_of_scikit_learn(rows):
    labels, decided = rows.T
    confusion = confusion_matrix(labels, decided, labels=range(4)).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns of classes that are decided and never true
        assert BalancedAccuracy().of_confusion(confusion) == pytest.approx(balanced_accuracy_score(labels, decided))
    expected = f1_score(labels, decided, average="macro", zero_division=0)
    assert FBeta().of_confusion(confusion) == pytest.approx(expected)
    errors = ExpectedCost(tuple(map(tuple, 1 - np.eye(4)))).of_confusion(confusion)
    assert errors == pytest.approx(1 - accuracy_score(labels, decided))


@quick
@given(four_classes)
def test_counts_of_a_confusion_are_one_class_against_the_rest(rows):
    labels, decided = rows.T
    c = counts_of(confusion_matrix(labels, decided, labels=range(4)).astype(float))
    for k in range(4):
        expected = counts(labels == k, decided == k)
        assert [count[k] for count in c] == [float(count) for count in expected]


def test_costs_are_in_the_order_of_the_classes_whichever_is_positive():
    confusion = np.array([[5.0, 2.0], [1.0, 3.0]])
    cost = ExpectedCost(((0, 1), (10, 0)))
    expected = (2 * 1 + 1 * 10) / 11
    for positive in (0, 1):
        c = counts_of(confusion).of_class(positive)
        assert cost.for_positive(positive).value(c) == pytest.approx(expected)


def test_no_rows_give_zero_and_no_warning():
    nothing = Counts(*np.zeros((4, 3)))
    for criterion in (
        YoudenJ(),
        BalancedAccuracy(),
        FBeta(),
        PrecisionAtRecall(0.5),
        FixedPrevalence(0.5),
        Precision(),
    ):
        assert np.isfinite(criterion.value(nothing)).all()
        assert criterion.reached(nothing).shape == (3,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FBeta(0), "beta=0; FBeta takes a positive number"),
        (lambda: FBeta(float("nan")), "beta=nan"),
        (lambda: PrecisionAtRecall(1.5), "recall=1.5; PrecisionAtRecall takes a number above 0, at most 1"),
        (lambda: RecallAtPrecision(0), "precision=0; RecallAtPrecision takes"),
        (lambda: FixedPrevalence(float("nan")), "prevalence=nan"),
        (lambda: ExpectedCost(((0, 1),)), r"costs has rows of \[2\]"),
        (lambda: ExpectedCost(((0, 1), (float("inf"), 0))), "finite numbers"),
        (lambda: ExpectedCost(((1, 0), (1, 0))), r"costs\[0\]: deciding class 1 costs 0.0, less than the right"),
        (lambda: PrecisionAtRecall(0.5).check("multi_class", 3), "PrecisionAtRecall is for binary and multi_label"),
        (lambda: ExpectedCost(((0, 1), (1, 0))).check("multi_class", 3), "costs has 2 rows; multi_class with 3 labels"),
    ],
)
def test_a_setting_that_makes_no_sense_says_so(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class Model:
    def __init__(self, criterion: Criterion | None = None):
        self.criterion = criterion


@pytest.mark.parametrize(
    "criterion", [YoudenJ(), FBeta(2.0), RecallAtPrecision(0.9), ExpectedCost(((0, 1), (5, 0)))], ids=repr
)
def test_a_criterion_reads_as_yaml_what_it_writes(criterion):
    assert is_dataclass(criterion)
    assert {field.name for field in fields(criterion)} == set(criterion.to_dict()["init_args"])
    parser = ArgumentParser()
    parser.add_class_arguments(Model, "model")
    config = parser.parse_object({"model": {"criterion": criterion.to_dict()}})
    assert parser.instantiate(config).model.criterion == criterion
