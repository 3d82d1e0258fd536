import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from jsonargparse import ArgumentParser
from sklearn.metrics import balanced_accuracy_score, f1_score

from lit_trainer.decision.calibration import IsotonicScaling, TemperatureScaling, VectorScaling
from lit_trainer.decision.calibration_choice import CalibrationMethod
from lit_trainer.decision.criteria import (
    BalancedAccuracy,
    Criterion,
    ExpectedCost,
    FBeta,
    PrecisionAtRecall,
    RecallAtPrecision,
    YoudenJ,
)
from lit_trainer.decision.fitting import fit_rule, refuse_split
from lit_trainer.decision.intervals import Bootstrap
from lit_trainer.decision.record import record_from_dict
from lit_trainer.decision.reliability import brier_score
from lit_trainer.decision.rule import DecisionRule

QUICK = Bootstrap(num_resamples=50)
BINARY = {"kind": "binary", "label_names": ("ham", "spam"), "split": "validation", "bootstrap": QUICK}
SEVERAL = {"kind": "multi_label", "label_names": ("a", "b", "c"), "split": "validation", "bootstrap": QUICK}
CLASSES = {"kind": "multi_class", "label_names": ("a", "b", "c"), "split": "validation", "bootstrap": QUICK}


def rare(num_rows, seed=0, share=0.1):
    """Overconfident logits ``[N, 2]`` of a model that finds few of the rare positives."""
    random = np.random.default_rng(seed)
    labels = (random.random(num_rows) < share).astype(int)
    margin = random.normal(2 * labels - 3, 1.2) * 2
    return np.stack([-margin / 2, margin / 2], axis=1), labels


def noise(num_rows, seed=0):
    """Logits that know nothing of the labels."""
    random = np.random.default_rng(seed)
    return random.normal(size=(num_rows, 2)), random.integers(0, 2, num_rows)


def three(num_rows, seed=0):
    random = np.random.default_rng(seed)
    labels = random.choice(3, p=[0.8, 0.15, 0.05], size=num_rows)
    return random.normal(size=(num_rows, 3)) + 1.5 * np.eye(3)[labels] + np.log([0.8, 0.15, 0.05]), labels


def several(num_rows, seed=0):
    random = np.random.default_rng(seed)
    labels = (random.random((num_rows, 3)) < [0.5, 0.2, 0.05]).astype(int)
    return random.normal(size=(num_rows, 3)) + 2 * labels - 2, labels


def test_a_tuned_rule_beats_the_default_on_fresh_rows_where_positives_are_rare():
    rule = fit_rule(*rare(2000), **BINARY, criterion=FBeta())
    logits, labels = rare(5000, seed=1)
    tuned, default = rule.decide(logits).labels, DecisionRule("binary", ("ham", "spam")).decide(logits).labels
    assert f1_score(labels, tuned) > f1_score(labels, default) + 0.05
    record = rule.fitted_on
    assert record.metric.low <= f1_score(labels, tuned) <= record.metric.high
    assert record.metric.value > record.default_metric.value + 0.05


def test_what_is_recorded_is_not_the_score_on_the_rows_the_threshold_was_chosen_on():
    # On noise the best threshold looks better than chance on its own rows; out of fold it does not.
    flattering, honest = [], []
    for seed in range(20):
        logits, labels = noise(60, seed)
        rule = fit_rule(logits, labels, **BINARY, criterion=BalancedAccuracy())
        flattering.append(balanced_accuracy_score(labels, rule.decide(logits).labels))
        honest.append(rule.fitted_on.metric.value)
    assert np.mean(flattering) > 0.55
    assert np.mean(honest) == pytest.approx(0.5, abs=0.045)


def test_without_folds_nothing_is_measured_but_the_models_own_probabilities():
    record = fit_rule(*rare(500), **BINARY, criterion=FBeta(), calibration=TemperatureScaling, folds=None).fitted_on
    assert record.metric is None
    assert record.folds is None
    assert record.calibration_error.after is None
    assert record.brier_score.after is None
    assert record.default_metric is not None
    assert record.brier_score.before > 0


def test_folds_change_what_is_measured_and_not_the_rule():
    rules = [fit_rule(*rare(300), **BINARY, criterion=FBeta(), folds=folds) for folds in (None, 3, 10)]
    assert len({rule.thresholds for rule in rules}) == 1


@pytest.mark.parametrize("split", ["test", "Test", "test_unseen", "imdb/test", "held-out test", "TEST-2"])
def test_a_test_split_is_refused_with_the_reason(split):
    with pytest.raises(ValueError, match=r"is kept for measuring: .* scored on the rows they were chosen for"):
        fit_rule(*rare(50), **{**BINARY, "split": split}, criterion=FBeta())


@pytest.mark.parametrize("split", ["train", "Training"])
def test_the_training_split_is_refused_with_the_reason(split):
    with pytest.raises(ValueError, match="trained the model, which is surer of these rows"):
        fit_rule(*rare(50), **{**BINARY, "split": split}, criterion=FBeta())


@pytest.mark.parametrize("split", ["validation", "val", "calibration", "latest", "attestation", "train_calibration"])
def test_other_splits_are_not(split):
    refuse_split(split)


@pytest.mark.parametrize("method", [TemperatureScaling, VectorScaling, IsotonicScaling])
def test_calibration_is_better_out_of_fold_than_before(method):
    record = fit_rule(*rare(3000), **BINARY, calibration=method).fitted_on
    assert record.calibration_error.after < 0.7 * record.calibration_error.before
    assert record.brier_score.after < record.brier_score.before
    assert record.criterion is None
    assert record.metric is None


def test_calibration_is_measured_out_of_fold():
    own_rows, measured, before = [], [], []
    for seed in range(10):
        logits, labels = noise(30, seed)
        rule = fit_rule(0.1 * logits, labels, **BINARY, calibration=IsotonicScaling)
        own_rows.append(brier_score(rule.decide(0.1 * logits).probabilities, labels, "binary"))
        measured.append(rule.fitted_on.brier_score.after)
        before.append(rule.fitted_on.brier_score.before)
    # Nothing can be learnt from noise: a curve through its rows flatters itself on them, and is worse on others.
    assert np.mean(own_rows) < np.mean(before) < np.mean(measured)


def test_two_classes_by_one_logit_are_the_same_rule():
    logits, labels = rare(400)
    pair = fit_rule(logits, labels, **BINARY, criterion=YoudenJ(), calibration=TemperatureScaling)
    single = fit_rule(
        logits[:, 1] - logits[:, 0], labels, **BINARY, criterion=YoudenJ(), calibration=TemperatureScaling
    )
    assert single.thresholds == pytest.approx(pair.thresholds)
    assert single.calibration.temperature == pytest.approx(pair.calibration.temperature)


def test_the_positive_label_can_be_the_first():
    logits, labels = rare(400)
    second = fit_rule(logits, labels, **BINARY, criterion=FBeta())
    first = fit_rule(
        logits[:, ::-1],
        1 - labels,
        **{**BINARY, "label_names": ("spam", "ham")},
        criterion=FBeta(),
        positive_label="spam",
    )
    assert first.thresholds == pytest.approx(second.thresholds)
    assert (first.decide(logits[:, ::-1]).labels == 1 - second.decide(logits).labels).all()


@pytest.mark.parametrize("positive", ["ham", "spam"])
def test_costs_of_two_classes_mean_the_same_whichever_is_positive(positive):
    logits, labels = rare(2000)
    rule = fit_rule(logits, labels, **BINARY, criterion=ExpectedCost(((0, 1), (10, 0))), positive_label=positive)
    decided = rule.decide(logits).labels
    assert ((labels == 1) & (decided == 0)).sum() < ((labels == 0) & (decided == 1)).sum()
    assert rule.fitted_on.metric.value < rule.fitted_on.default_metric.value


@pytest.mark.parametrize("positive", ["ham", "spam"])
def test_of_calibrated_probabilities_costs_tell_the_threshold(positive):
    costs = ExpectedCost(((0, 1), (3, 0)))
    rule = fit_rule(*rare(200), **BINARY, criterion=costs, calibration="auto", positive_label=positive)
    assert rule.thresholds == (pytest.approx({"spam": 1 / 4, "ham": 3 / 4}[positive]),)
    assert rule.fitted_on.thresholds is None, "nothing was searched for"
    several_costs = fit_rule(*several(200), **SEVERAL, criterion=costs, calibration=VectorScaling)
    assert several_costs.thresholds == (0.25, 0.25, 0.25)
    assert fit_rule(*rare(200), **BINARY, criterion=costs).thresholds != (0.25,), "searched for"


def test_few_rows_decide_by_costs_better_when_calibrated_than_by_search():
    fresh_logits, fresh_labels = rare(5000, seed=1000, share=0.3)
    costs = np.array([[0.0, 1.0], [2.0, 0.0]])
    found = {}
    for calibration in (None, "auto"):
        rules = [
            fit_rule(
                *rare(100, seed, share=0.3),
                **BINARY,
                criterion=ExpectedCost(tuple(map(tuple, costs.tolist()))),
                calibration=calibration,
                folds=None,
            )
            for seed in range(30)
        ]
        found[calibration] = np.array([costs[fresh_labels, rule.decide(fresh_logits).labels].mean() for rule in rules])
    assert found["auto"].mean() < found[None].mean()
    assert found["auto"].std() < 0.7 * found[None].std(), "and vary less with the rows"


def test_the_required_recall_is_recorded_beside_the_precision():
    record = fit_rule(*rare(2000), **BINARY, criterion=PrecisionAtRecall(0.9)).fitted_on
    assert record.required.value == pytest.approx(0.9, abs=0.05)
    assert record.default_required.value < 0.5
    assert fit_rule(*rare(200), **BINARY, criterion=FBeta()).fitted_on.required is None


def test_a_precision_that_is_not_reached_is_warned_of_and_noted():
    logits, labels = noise(50)
    logits[logits[:, 1].argmax()] = [-9, 9]
    labels[logits[:, 1].argmax()] = 0
    with pytest.warns(UserWarning, match="decision rule fitted on validation: spam: no threshold reaches"):
        rule = fit_rule(logits, labels, **BINARY, criterion=RecallAtPrecision(0.999))
    assert "no threshold reaches RecallAtPrecision(precision=0.999)" in rule.fitted_on.notes[0]
    assert 0 < rule.thresholds[0] < 1


def test_a_model_that_ranks_rows_worse_than_chance_is_warned_of_where_calibration_reverses_it():
    logits, labels = rare(500)
    with pytest.warns(UserWarning, match="spam: the model ranks these rows worse than chance"):
        reversed_rule = fit_rule(-logits, labels, **BINARY, calibration=VectorScaling)
    assert "calibration reverses their order" in reversed_rule.fitted_on.notes[0]
    assert not fit_rule(logits, labels, **BINARY, calibration=VectorScaling).fitted_on.notes

    logits, labels = several(500)
    logits[:, 1] *= -1
    with pytest.warns(UserWarning, match="b: the model ranks these rows worse than chance"):
        rule = fit_rule(logits, labels, **SEVERAL, calibration=VectorScaling)
    assert len(rule.fitted_on.notes) == 1


def test_a_rule_that_is_worse_than_none_is_warned_of():
    random = np.random.default_rng(0)
    labels = np.arange(300) % 100
    logits = random.normal(size=(300, 100)) + 3 * np.eye(100)[labels]
    names = tuple(map(str, range(100)))
    with pytest.warns(UserWarning, match=r"on unseen rows FBeta\(beta=1.0\) is 0.5.*, worse than 0.6.* without a rule"):
        fit_rule(logits, labels, **{**CLASSES, "label_names": names}, criterion=FBeta(), folds=3)


def test_each_label_gets_its_own_threshold_and_interval():
    rule = fit_rule(*several(1500), **SEVERAL, criterion=FBeta())
    assert len(set(rule.thresholds)) == 3
    for threshold, estimate in zip(rule.thresholds, rule.fitted_on.thresholds, strict=True):
        assert estimate.value == threshold
        assert estimate.low <= threshold <= estimate.high
    logits, labels = several(4000, seed=1)
    plain = DecisionRule("multi_label", ("a", "b", "c")).decide(logits).labels
    tuned = f1_score(labels, rule.decide(logits).labels, average="macro")
    assert tuned > f1_score(labels, plain, average="macro") + 0.03


def test_a_label_without_positives_keeps_one_half_and_is_noted():
    logits, labels = several(200)
    labels[:, 2] = 0
    with pytest.warns(UserWarning, match="c has 0 positives in 200 rows; its threshold stays 0.5"):
        rule = fit_rule(logits, labels, **SEVERAL, criterion=FBeta())
    assert rule.thresholds[2] == 0.5
    assert rule.fitted_on.thresholds[2] is None
    with pytest.warns(UserWarning, match="stays 0.5"):
        nothing = fit_rule(logits, np.zeros_like(labels), **SEVERAL, criterion=FBeta())
    assert nothing.fitted_on.metric is None


def test_a_label_that_is_not_known_for_a_row_is_left_out():
    logits, labels = several(400)
    known = labels.astype(float)
    known[::2, 0] = np.nan
    rule = fit_rule(logits, known, **SEVERAL, criterion=FBeta())
    full = fit_rule(logits, labels, **SEVERAL, criterion=FBeta())
    assert rule.thresholds[1:] == full.thresholds[1:]
    assert rule.fitted_on.num_rows == 400


@pytest.mark.parametrize("criterion", [FBeta(), BalancedAccuracy()])
def test_c_classes_are_weighted_so_that_rare_ones_are_found(criterion):
    rule = fit_rule(*three(3000), **CLASSES, criterion=criterion, calibration=TemperatureScaling)
    assert rule.fitted_on.metric.low > rule.fitted_on.default_metric.high
    logits, labels = three(4000, seed=1)
    score = f1_score if isinstance(criterion, FBeta) else balanced_accuracy_score
    more = {"average": "macro"} if isinstance(criterion, FBeta) else {}
    measured = score(labels, rule.decide(logits).labels, **more)
    assert rule.fitted_on.metric.value == pytest.approx(measured, abs=0.06)


def test_costs_of_c_classes_are_the_rules_and_lower_what_decisions_cost():
    costs = ((0.0, 1.0, 1.0), (1.0, 0.0, 1.0), (30.0, 30.0, 0.0))
    rule = fit_rule(*three(3000), **CLASSES, criterion=ExpectedCost(costs), calibration=TemperatureScaling)
    assert rule.costs == costs
    assert rule.fitted_on.metric.high < rule.fitted_on.default_metric.low


def test_ignored_rows_are_left_out():
    logits, labels = rare(200)
    more = np.concatenate([logits, logits]), np.concatenate([labels, np.full(200, -100)])
    assert fit_rule(*more, **BINARY, criterion=FBeta()) == fit_rule(logits, labels, **BINARY, criterion=FBeta())


def test_tensors_fit_the_same_rule_and_the_seed_is_all_that_is_random():
    logits, labels = rare(200)
    first = fit_rule(logits, labels, **BINARY, criterion=FBeta(), calibration=VectorScaling)
    tensors = torch.from_numpy(logits), torch.from_numpy(labels)
    with torch.inference_mode():
        again = fit_rule(*tensors, **BINARY, criterion=FBeta(), calibration=VectorScaling)
    assert again == first
    other = fit_rule(*tensors, **{**BINARY, "bootstrap": replace(QUICK, seed=1)}, criterion=FBeta())
    assert other.thresholds == fit_rule(*tensors, **BINARY, criterion=FBeta()).thresholds
    assert other.fitted_on != first.fitted_on


def test_the_record_comes_back_from_plain_data():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record = fit_rule(*several(100), **SEVERAL, criterion=RecallAtPrecision(0.9)).fitted_on
    assert record_from_dict(record.to_dict()) == record
    assert record.criterion == {
        "class_path": "lit_trainer.decision.criteria.RecallAtPrecision",
        "init_args": {"precision": 0.9},
    }


@pytest.mark.parametrize("criterion", [None, FBeta()])
@pytest.mark.parametrize("method", [None, TemperatureScaling, VectorScaling, IsotonicScaling])
@pytest.mark.parametrize("known", [True, False])
def test_perfect_and_constant_logits_give_a_finite_rule(criterion, method, known):
    labels = np.arange(20) % 2
    logits = 10.0 * np.eye(2)[labels] if known else np.zeros((20, 2))
    rule = fit_rule(logits, labels, **BINARY, criterion=criterion, calibration=method)
    decided = rule.decide(logits)
    assert np.isfinite(decided.probabilities).all()
    if known:
        assert (decided.labels == labels).all()
        assert criterion is None or rule.fitted_on.metric.value == 1
    DecisionRule.from_dict(rule.to_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.zeros(10, int)}, "a threshold needs positive and negative rows; 0 of 10 are positive"),
        ({"labels": np.eye(10, dtype=int)[0]}, "folds=5: a threshold needs positive and negative rows; 0 of 8 .*null"),
        ({"labels": np.full(10, -100)}, "split 'validation' has no rows with labels"),
        ({"logits": np.zeros((0, 2)), "labels": np.zeros(0, int)}, "split 'validation' has no rows with labels"),
        ({"labels": np.full(10, 2)}, "labels of binary are whole numbers from 0 to 1; others are in rows 0, 1"),
        ({"labels": np.arange(9) % 2}, r"labels have the shape \[9\]"),
        ({"logits": np.full((10, 2), np.nan)}, "logits are not finite in rows 0, 1"),
        ({"folds": 1}, "folds=1; 10 rows can have from 2 to 10 folds"),
        ({"folds": 11}, "folds=11; 10 rows"),
        ({"criterion": ExpectedCost(tuple(map(tuple, 1 - np.eye(3))))}, "costs has 3 rows; binary with 2 labels"),
        ({"kind": "multi_class", "criterion": YoudenJ()}, "criterion YoudenJ is for binary and multi_label"),
        ({"kind": "ranking"}, "kind is 'ranking'"),
        ({"positive_label": "eggs"}, "positive_label is 'eggs'"),
    ],
)
def test_what_cannot_be_fitted_says_why(change, message):
    arguments = {"logits": np.zeros((10, 2)), "labels": np.arange(10) % 2, **BINARY, "criterion": FBeta(), **change}
    with pytest.raises(ValueError, match=message):
        fit_rule(arguments.pop("logits"), arguments.pop("labels"), **arguments)


def test_one_row_calibrates_and_decides():
    rule = fit_rule(np.array([[0.0, 1.0]]), np.array([1]), **BINARY, calibration=TemperatureScaling, folds=None)
    assert rule.decide(np.array([[0.0, 1.0]])).labels.tolist() == [1]


class Fitting:
    def __init__(
        self,
        criterion: Criterion | None = None,
        calibration: CalibrationMethod | None = None,
        bootstrap: Bootstrap = QUICK,
    ):
        self.given = criterion, calibration, bootstrap


def test_everything_can_be_set_in_yaml():
    parser = ArgumentParser()
    parser.add_class_arguments(Fitting, "decision")
    config = parser.parse_string(
        """
        decision:
          criterion:
            class_path: lit_trainer.decision.criteria.FBeta
            init_args: {beta: 2}
          calibration: lit_trainer.decision.calibration.TemperatureScaling
          bootstrap: {num_resamples: 7, seed: 3}
        """
    )
    assert parser.instantiate(config).decision.given == (FBeta(2.0), TemperatureScaling, Bootstrap(7, seed=3))
    config = parser.parse_string("decision: {calibration: auto}")
    assert parser.instantiate(config).decision.given == (None, "auto", QUICK)
