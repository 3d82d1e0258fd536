"""Fits a decision rule on rows held out for it, and measures it on rows that it was not fitted on."""

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lit_trainer.batch import IGNORED_LABEL
from lit_trainer.decision.calibration import VectorScaling
from lit_trainer.decision.calibration_choice import CalibrationMethod, fit_calibration
from lit_trainer.decision.class_weights import best_weights
from lit_trainer.decision.costs import costs_of_weights, threshold_of_costs
from lit_trainer.decision.criteria import Criterion, ExpectedCost
from lit_trainer.decision.folds import fold_numbers
from lit_trainer.decision.intervals import Bootstrap, Estimate, threshold_estimate
from lit_trainer.decision.measuring import measure
from lit_trainer.decision.probabilities import Array, Floats, Integers, Kind, read_labels, read_logits
from lit_trainer.decision.record import BeforeAfter, FitRecord
from lit_trainer.decision.reliability import brier_score, reliability
from lit_trainer.decision.rule import Decision, DecisionRule
from lit_trainer.decision.thresholds import best_threshold

BOOTSTRAP = Bootstrap()
DEFAULT_THRESHOLD = 0.5


def fit_rule(
    logits: Array,
    labels: Array,
    *,
    kind: Kind,
    label_names: Sequence[str],
    split: str,
    criterion: Criterion | None = None,
    calibration: CalibrationMethod | None = None,
    positive_label: str | None = None,
    folds: int | None = 5,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> DecisionRule:
    """Fits calibration and thresholds, or class costs, and records how good they are on rows they have not seen.

    The rule itself is fitted on all rows. With folds, each part of the rows is also decided by a rule fitted on the
    other parts, and what is recorded are those decisions. Without, only the model's own probabilities and default
    decisions are recorded: the rule is then to be measured on other rows.

    Thresholds are searched for among all that the rows can tell apart, but for `ExpectedCost` with a calibration: where
    probabilities mean what they say, costs alone tell the threshold, which does not vary with the rows then.

    Args:
        logits: ``[N, C]`` of any float type, of rows that the model was not trained on; for binary also ``[N]`` or
            ``[N, 1]``, the logit of the second label.
        labels: ``[N]`` with class numbers, or ``[N, C]`` with 0 and 1 for multi_label; -100, or NaN in floats, is
            ignored.
        kind: Whether a row has one of two labels, one of C, or any number of C.
        label_names: The C names in the order of the class numbers.
        split: What the rows' split is called; neither a test split nor the training split.
        criterion: What thresholds are chosen by, or for multi_class how much each class counts; None keeps the most
            probable class, or 0.5.
        calibration: The method; ``auto`` is vector scaling for binary, and else that or temperature scaling, whichever
            makes rows that it was not fitted on likelier; None keeps the model's probabilities.
        positive_label: For binary, which label the threshold is about; None means the second.
        folds: The number of parts for measuring; None uses all rows for fitting only.
        bootstrap: How intervals are made.

    Raises:
        ValueError: If the split is one to measure or to train on, or the rows do not allow the fit.
    """
    refuse_split(split)
    names = tuple(label_names)
    default = DecisionRule(kind, names, positive_label)
    if criterion is not None:
        criterion.check(kind, len(names))
    z = read_logits(logits, kind, len(names))
    y = read_labels(labels, kind, len(names), len(z))
    there = y != IGNORED_LABEL
    there = there.any(axis=1) if kind == "multi_label" else there
    z, y = z[there], y[there]
    if len(y) == 0:
        raise ValueError(f"split {split!r} has no rows with labels; a decision rule needs some to be fitted on")

    fit = _Fit(default, criterion, calibration)
    rule, notes = fit.fit(z, y)
    own = default.decide(z)
    unseen = None if folds is None else fit.cross_fit(z, y, folds, bootstrap.seed)
    requirement = criterion.requirement() if criterion else None
    required = requirement[0] if requirement else None
    metric, default_metric = (_measured(default, made, y, criterion, bootstrap) for made in (unseen, own))
    if criterion and metric and default_metric and _is_worse(criterion, metric, default_metric.value):
        notes += (
            f"on unseen rows {criterion} is {metric.value:.4g}, worse than {default_metric.value:.4g} without a rule; "
            "fit it on more rows, or do without",
        )
    record = FitRecord(
        split=split,
        num_rows=len(y),
        criterion=criterion.to_dict() if criterion else None,
        folds=folds,
        level=bootstrap.level,
        metric=metric,
        default_metric=default_metric,
        required=_measured(default, unseen, y, required, bootstrap),
        default_required=_measured(default, own, y, required, bootstrap),
        thresholds=fit.threshold_estimates(rule, z, y, bootstrap),
        calibration_error=BeforeAfter(
            before=reliability(own.probabilities, y, kind).calibration_error,
            after=reliability(unseen.probabilities, y, kind).calibration_error if unseen else None,
        ),
        brier_score=BeforeAfter(
            before=brier_score(own.probabilities, y, kind),
            after=brier_score(unseen.probabilities, y, kind) if unseen else None,
        ),
        notes=notes,
    )
    for note in notes:
        warnings.warn(f"decision rule fitted on {split}: {note}", stacklevel=2)
    return replace(rule, fitted_on=record)


def refuse_split(split: str) -> None:
    """Raises a ValueError if a split is one that no decision may be fitted on.

    Args:
        split: Its name.
    """
    words = re.split(r"[^a-z]+", split.lower())
    if "test" in words:
        raise ValueError(
            f"split {split!r} is kept for measuring: decisions fitted on it would be scored on the rows they were "
            "chosen for, which flatters them; fit on a calibration or validation split"
        )
    if words in (["train"], ["training"]):
        raise ValueError(
            f"split {split!r} trained the model, which is surer of these rows than of any others; fit decisions on a "
            "calibration or validation split"
        )


@dataclass(frozen=True)
class _Fit:
    """How a rule is fitted; the same on all rows and on all but a fold."""

    default: DecisionRule
    criterion: Criterion | None
    calibration: CalibrationMethod | None

    def fit(self, z: Floats, y: Integers) -> tuple[DecisionRule, tuple[str, ...]]:
        """Returns the rule and what must be known about it."""
        calibration = fit_calibration(self.calibration, z, y, self.default.kind) if self.calibration else None
        rule = replace(self.default, calibration=calibration)
        notes = _reversals(rule)
        if self.criterion is None:
            return rule, notes
        p = rule.decide(z).probabilities
        if self.default.kind != "multi_class":
            rule, of_thresholds = self._with_thresholds(rule, p, y)
            return rule, notes + of_thresholds
        if isinstance(self.criterion, ExpectedCost):
            return replace(rule, costs=self.criterion.costs), notes
        costs = costs_of_weights(best_weights(p, y, self.criterion))
        return replace(rule, costs=tuple(map(tuple, costs.tolist()))), notes

    @property
    def _costs_decide(self) -> bool:
        """Whether thresholds follow from costs."""
        return self.calibration is not None and isinstance(self.criterion, ExpectedCost)

    def _with_thresholds(self, rule: DecisionRule, p: Floats, y: Integers) -> tuple[DecisionRule, tuple[str, ...]]:
        thresholds, notes = [], []
        for name, scores, truth, criterion in self._questions(p, y):
            if self._costs_decide and isinstance(criterion, ExpectedCost):
                thresholds.append(threshold_of_costs(np.array(criterion.costs)))
                continue
            if _has_one_outcome(rule, truth):
                thresholds.append(DEFAULT_THRESHOLD)
                notes.append(f"{name} has {truth.sum()} positives in {len(truth)} rows; its threshold stays 0.5")
                continue
            chosen = best_threshold(scores, truth, criterion)
            thresholds.append(chosen.threshold)
            if not chosen.reached:
                notes.append(f"{name}: no threshold reaches {criterion}; {chosen.threshold:.4g} comes nearest")
        return replace(rule, thresholds=tuple(thresholds)), tuple(notes)

    def threshold_estimates(
        self, rule: DecisionRule, z: Floats, y: Integers, bootstrap: Bootstrap
    ) -> tuple[Estimate | None, ...] | None:
        """Returns the interval of each threshold that was searched for, the calibration being given."""
        if rule.thresholds is None or self._costs_decide:
            return None
        return tuple(
            None if _has_one_outcome(rule, truth) else threshold_estimate(scores, truth, criterion, bootstrap)
            for _, scores, truth, criterion in self._questions(rule.decide(z).probabilities, y)
        )

    def _questions(self, p: Floats, y: Integers) -> Iterator[tuple[str, Floats, Integers, Criterion]]:
        """Yields, for each threshold, its label's name, scores, truth (0 or 1) and criterion."""
        assert self.criterion is not None
        names, positive = self.default.label_names, self.default.positive
        if self.default.kind == "binary":
            truth = (y == positive).astype(np.int64)
            yield names[positive], p[:, positive], truth, self.criterion.for_positive(positive)
            return
        for k, name in enumerate(names):
            counted = y[:, k] != IGNORED_LABEL
            yield name, p[counted, k], y[counted, k], self.criterion

    def cross_fit(self, z: Floats, y: Integers, folds: int, seed: int) -> Decision:
        """Decides each fold of the rows by a rule fitted on the others."""
        fold_of = fold_numbers(y, folds, seed)
        p, decided = np.empty_like(z), np.empty_like(y)
        for fold in range(folds):
            inside = fold_of == fold
            try:
                rule, _ = self.fit(z[~inside], y[~inside])
            except ValueError as error:
                raise ValueError(f"folds={folds}: {error}, when one fold is left out; null measures nothing") from error
            p[inside], decided[inside] = rule.decide(z[inside])
        return Decision(p, decided)


def _reversals(rule: DecisionRule) -> tuple[str, ...]:
    """Returns a note of each label whose calibrated probability falls where the model's rises."""
    if not isinstance(rule.calibration, VectorScaling) or rule.kind == "multi_class":  # where logits act together
        return ()
    names = (str(rule.positive_label),) if rule.kind == "binary" else rule.label_names
    return tuple(
        f"{name}: the model ranks these rows worse than chance, so that calibration reverses their order"
        for name, factor in zip(names, rule.calibration.factors, strict=False)
        if factor < 0
    )


def _has_one_outcome(rule: DecisionRule, truth: Integers) -> bool:
    """Tells whether one label of several has rows of one outcome only; a binary rule cannot do without both."""
    return rule.kind == "multi_label" and len(np.unique(truth)) < 2


def _measured(
    rule: DecisionRule, decision: Decision | None, y: Integers, criterion: Criterion | None, bootstrap: Bootstrap
) -> Estimate | None:
    if decision is None or criterion is None:
        return None
    estimate = measure(rule, decision.labels, y, criterion, bootstrap)
    return None if np.isnan(estimate.value) else estimate


def _is_worse(criterion: Criterion, estimate: Estimate, than: float) -> bool:
    """Tells whether the whole interval is worse than a value."""
    if criterion.higher_is_better is None:
        return False
    return estimate.high < than if criterion.higher_is_better else estimate.low > than
