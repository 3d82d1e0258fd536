"""How good decisions are by a criterion, with an interval."""

import numpy as np

from lit_trainer.batch import IGNORED_LABEL
from lit_trainer.decision.counts import Counts, counts_of, share
from lit_trainer.decision.criteria import Criterion
from lit_trainer.decision.intervals import Bootstrap, Estimate, confusion_estimate, rows_estimate
from lit_trainer.decision.probabilities import Bools, Floats, Integers
from lit_trainer.decision.rule import DecisionRule


def measure(
    rule: DecisionRule, decided: Integers, labels: Integers, criterion: Criterion, bootstrap: Bootstrap
) -> Estimate:
    """Measures decisions by a criterion, on rows that the decisions were not fitted on.

    For multi_label it is the mean over the classes that have positive and negative rows, NaN if none has.

    Args:
        rule: The rule whose kind of decisions they are.
        decided: int64 ``[N]``, or ``[N, C]`` for multi_label, as `DecisionRule.decide` gives them.
        labels: int64 of the same shape; -100 is ignored.
        criterion: What to measure by.
        bootstrap: How the interval is made.

    Raises:
        ValueError: If the criterion is not for such decisions.
    """
    num_classes = len(rule.label_names)
    criterion.check(rule.kind, num_classes)
    counted = labels != IGNORED_LABEL
    if rule.kind == "multi_label":
        return rows_estimate(_cells(decided, labels, counted), lambda sums: _macro(criterion, sums), bootstrap)
    confusion = np.zeros((num_classes, num_classes))
    np.add.at(confusion, (labels[counted], decided[counted]), 1)
    if rule.kind == "multi_class":
        return confusion_estimate(confusion, criterion.of_confusion, bootstrap)
    asked = criterion.for_positive(rule.positive)
    return confusion_estimate(confusion, lambda c: asked.value(counts_of(c).of_class(rule.positive)), bootstrap)


def _cells(decided: Integers, labels: Integers, counted: Bools) -> Floats:
    """Returns what each row adds to tp, fp, fn and tn of each class: ``[N, 4 * C]``."""
    positive, true = (decided == 1) & counted, (labels == 1) & counted
    return np.concatenate(
        [positive & true, positive & ~true, true & ~positive, counted & ~positive & ~true], axis=1
    ).astype(np.float64)


def _macro(criterion: Criterion, sums: Floats) -> Floats:
    """Averages over the classes with both outcomes; ``[..., 4 * C]`` to ``[...]``."""
    counts = Counts(*np.split(sums, 4, axis=-1))
    both = (counts.tp + counts.fn > 0) & (counts.fp + counts.tn > 0)
    number = both.sum(axis=-1)
    return np.where(number > 0, share((criterion.value(counts) * both).sum(axis=-1), number), np.nan)
