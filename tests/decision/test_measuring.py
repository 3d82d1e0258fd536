import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, f1_score

from lit_trainer.decision.criteria import BalancedAccuracy, ExpectedCost, FBeta, PrecisionAtRecall
from lit_trainer.decision.intervals import Bootstrap
from lit_trainer.decision.measuring import measure
from lit_trainer.decision.rule import DecisionRule

BOOTSTRAP = Bootstrap(num_resamples=50)


def drawn(high, shape, seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(0, high, shape)
    return np.where(random.random(shape) < 0.7, labels, random.integers(0, high, shape)), labels


@pytest.mark.parametrize("positive", [0, 1])
def test_two_classes_are_measured_like_scikit_learn(positive):
    decided, labels = drawn(2, 100)
    rule = DecisionRule("binary", ("a", "b"), positive_label="ab"[positive])
    estimate = measure(rule, decided, labels, FBeta(), BOOTSTRAP)
    assert estimate.value == pytest.approx(f1_score(labels, decided, pos_label=positive))
    assert estimate.low < estimate.value < estimate.high
    cost = ((labels == 1) & (decided == 0)).mean() * 10 + ((labels == 0) & (decided == 1)).mean()
    assert measure(rule, decided, labels, ExpectedCost(((0, 1), (10, 0))), BOOTSTRAP).value == pytest.approx(cost)


def test_c_classes_are_measured_like_scikit_learn():
    decided, labels = drawn(4, 200)
    rule = DecisionRule("multi_class", tuple("abcd"))
    expected = f1_score(labels, decided, average="macro")
    assert measure(rule, decided, labels, FBeta(), BOOTSTRAP).value == pytest.approx(expected)
    expected = balanced_accuracy_score(labels, decided)
    assert measure(rule, decided, labels, BalancedAccuracy(), BOOTSTRAP).value == pytest.approx(expected)


def test_several_labels_are_measured_as_the_mean_over_classes_with_both_outcomes():
    decided, labels = drawn(2, (150, 4))
    labels[:, 3] = 0
    estimate = measure(DecisionRule("multi_label", tuple("abcd")), decided, labels, FBeta(), BOOTSTRAP)
    assert estimate.value == pytest.approx(f1_score(labels[:, :3], decided[:, :3], average="macro"))
    assert estimate.low < estimate.value < estimate.high


@pytest.mark.parametrize("kind", ["binary", "multi_class", "multi_label"])
def test_ignored_labels_are_left_out(kind):
    decided, labels = drawn(2, (50, 2) if kind == "multi_label" else 50)
    rule = DecisionRule(kind, ("a", "b"))
    more = np.concatenate([labels, np.full_like(labels, -100)])
    first = measure(rule, decided, labels, FBeta(), BOOTSTRAP).value
    assert measure(rule, np.concatenate([decided, decided]), more, FBeta(), BOOTSTRAP).value == pytest.approx(first)


def test_labels_of_one_outcome_only_cannot_be_measured():
    nothing = np.zeros((5, 2), int)
    estimate = measure(DecisionRule("multi_label", ("a", "b")), nothing, nothing, FBeta(), BOOTSTRAP)
    assert np.isnan(estimate.value)


def test_a_criterion_of_two_classes_is_refused_for_more():
    with pytest.raises(ValueError, match="PrecisionAtRecall is for binary and multi_label"):
        measure(DecisionRule("multi_class", tuple("abc")), *drawn(3, 9), PrecisionAtRecall(0.5), BOOTSTRAP)
