import numpy as np
import pytest
from sklearn import metrics

from lit_trainer.decision.calibration import TemperatureScaling
from lit_trainer.decision.comparison import compare, criterion_from_dict
from lit_trainer.decision.criteria import BalancedAccuracy, ExpectedCost, FBeta, PrecisionAtRecall, YoudenJ
from lit_trainer.decision.fitting import fit_rule
from lit_trainer.decision.intervals import Bootstrap
from lit_trainer.decision.rule import DecisionRule

COSTS = ((0.0, 1.0), (5.0, 0.0))


def rows(num_classes=2, num_rows=400, seed=0):
    random = np.random.default_rng(seed)
    logits = random.normal(size=(num_rows, num_classes)) * 2 + np.linspace(1, 0, num_classes)
    return logits, (logits + random.normal(size=logits.shape) * 2).argmax(axis=1)


def rule_of(criterion, num_classes=2, **settings):
    return fit_rule(
        *rows(num_classes),
        kind="binary" if num_classes == 2 else "multi_class",
        label_names="abcde"[:num_classes],
        split="validation",
        criterion=criterion,
        calibration=TemperatureScaling,
        folds=None,
        bootstrap=Bootstrap(20),
        **settings,
    )


@pytest.mark.parametrize("positive", ["a", "b"])
def test_every_measure_is_that_of_scikit_learn_on_the_rules_decisions(positive):
    rule = rule_of(ExpectedCost(COSTS), positive_label=positive)
    logits, labels = rows(seed=1)
    decided = {"by_rule": rule.decide(logits).labels, "by_default": logits.argmax(axis=1)}
    compared = compare(rule, logits, labels)
    for way, given in decided.items():
        expected = {
            "accuracy": metrics.accuracy_score(labels, given),
            "balanced_accuracy": metrics.balanced_accuracy_score(labels, given),
            "f1": metrics.f1_score(labels, given),
            "f1_macro": metrics.f1_score(labels, given, average="macro"),
            "precision": metrics.precision_score(labels, given),
            "recall": metrics.recall_score(labels, given),
            "expected_cost": np.array(COSTS)[labels, given].mean(),
        }
        assert {name: getattr(both, way).value for name, both in compared.items()} == pytest.approx(expected)
    assert compared["expected_cost"].by_rule.value < compared["expected_cost"].by_default.value
    for both in compared.values():
        assert all(estimate.low <= estimate.value <= estimate.high for estimate in both)


def test_many_classes_have_means_over_the_classes():
    rule = rule_of(FBeta(), 4)
    logits, labels = rows(4, seed=1)
    compared = compare(rule, logits, labels)
    assert set(compared) == {"accuracy", "balanced_accuracy", "f1_macro"}
    expected = metrics.f1_score(labels, rule.decide(logits).labels, average="macro")
    assert compared["f1_macro"].by_rule.value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("criterion", "positive", "names"),
    [
        (FBeta(2), "b", {"f2"}),
        (FBeta(1), "a", {"f1/a"}),
        (YoudenJ(), "b", {"youden_j"}),
        (BalancedAccuracy(), "b", set()),
        (PrecisionAtRecall(0.8), "a", {"precision_at_recall/a", "recall/a"}),
    ],
)
def test_what_the_rule_was_chosen_by_is_measured_for_its_positive_label(criterion, positive, names):
    compared = compare(rule_of(criterion, positive_label=positive), *rows(seed=1))
    assert set(compared) == {"accuracy", "balanced_accuracy", "f1", "f1_macro", "precision", "recall"} | names


def test_without_labels_there_is_nothing_and_ignored_rows_do_not_count():
    rule, (logits, labels) = rule_of(FBeta()), rows(seed=1)
    assert compare(rule, logits, np.full(len(logits), -100)) == {}
    ignored = np.where(np.arange(len(labels)) % 2 == 0, labels, -100)
    assert compare(rule, logits, ignored) == compare(rule, logits[::2], labels[::2])


def test_a_rule_that_was_not_fitted_is_measured_too():
    rule = DecisionRule("multi_label", ("a", "b"), thresholds=(0.2, 0.8))
    labels = (rows(2, seed=2)[0] > 1).astype(float)
    assert set(compare(rule, rows(2, seed=2)[0], labels)) == {"f1_of_labels"}


def test_a_criterion_is_read_back_and_a_stranger_is_not_imported():
    for criterion in (FBeta(2), ExpectedCost(COSTS), YoudenJ()):
        assert criterion_from_dict(criterion.to_dict()) == criterion
    for path in ("os.system", "lit_trainer.decision.criteria.np", "somewhere.FBeta"):
        assert criterion_from_dict({"class_path": path, "init_args": {}}) is None
    assert criterion_from_dict(None) is None
