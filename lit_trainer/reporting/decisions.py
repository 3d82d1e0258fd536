"""How labels were decided on the rows of a split, and how often that was right, class by class."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from lit_trainer.batch import IGNORED_LABEL
from lit_trainer.decision.counts import Counts, counts_of, share
from lit_trainer.decision.probabilities import Bools, Floats, Integers, probabilities_of, read_labels, read_logits
from lit_trainer.decision.rule import DecisionRule
from lit_trainer.decision.thresholds import OperatingPoints, operating_points
from lit_trainer.reporting.scores import SplitScores


@dataclass(frozen=True)
class Decisions:
    """The rows of a split that have a label, with what is decided by a rule and without it.

    Args:
        rule: The rule; a default one decides for the most probable class, or from 0.5 on.
        rows: int64 ``[N]``, the number of each row in the split.
        labels: int64 ``[N]``, or ``[N, C]`` with -100 where ignored for multi_label.
        own: float64 ``[N, C]``, the model's own probabilities.
        probabilities: float64 ``[N, C]``, those that the rule decides by.
        decided: int64 like `labels`, by the rule.
        decided_by_default: int64 like `labels`, without it.
    """

    rule: DecisionRule
    rows: Integers
    labels: Integers
    own: Floats
    probabilities: Floats
    decided: Integers
    decided_by_default: Integers

    @classmethod
    def of(cls, scores: SplitScores) -> Self:
        """Decides the labels of a split.

        Raises:
            ValueError: If the scores do not fit their rule, or are not finite.
        """
        rule = scores.rule
        assert rule is not None
        num_classes = len(rule.label_names)
        logits = read_logits(scores.logits, rule.kind, num_classes)
        labels = read_labels(scores.labels, rule.kind, num_classes, len(logits))
        counted = _of_rows(labels != IGNORED_LABEL)
        logits = logits[counted]
        decision = rule.decide(logits)
        own = probabilities_of(logits, rule.kind)
        default = DecisionRule(rule.kind, rule.label_names).labels(own)
        return cls(rule, scores.rows[counted], labels[counted], own, decision.probabilities, decision.labels, default)

    @property
    def names(self) -> tuple[str, ...]:
        """The labels in the order of the class numbers."""
        return self.rule.label_names

    @property
    def has_rule(self) -> bool:
        """Whether labels are decided in another way than by default."""
        rule = self.rule
        return rule.calibration is not None or rule.thresholds is not None or rule.costs is not None

    @cached_property
    def confusion(self) -> Integers:
        """How often each class is decided for each, ``[C, C]``, rows true, columns decided; not for multi_label."""
        table = np.zeros((len(self.names), len(self.names)), np.int64)
        np.add.at(table, (self.labels, self.decided), 1)
        return table

    @cached_property
    def wrong(self) -> Bools:
        """Which rows are decided wrongly, for multi_label in any of their labels: ``[N]``."""
        return _of_rows((self.decided != self.labels) & (self.labels != IGNORED_LABEL))

    def of_class(self, number: int) -> "ClassDecisions":
        """Returns what is decided about one class, against all others.

        Args:
            number: The class number.
        """
        if self.rule.kind == "multi_label":
            counted = self.labels[:, number] != IGNORED_LABEL
            columns = (self.labels, self.decided, self.decided_by_default)
            truth, decided, default = (column[counted, number] for column in columns)
            probabilities = self.probabilities[counted, number]
        else:
            truth, decided, default = (
                (column == number).astype(np.int64) for column in (self.labels, self.decided, self.decided_by_default)
            )
            probabilities = self.probabilities[:, number]
        return ClassDecisions(
            self.names[number],
            operating_points(probabilities, truth),
            _count(truth, decided),
            _count(truth, default),
        )

    def most_confused_with(self, number: int) -> tuple[str, int] | None:
        """Returns what a class is most often taken for, and how often; None if never.

        Args:
            number: The class number.
        """
        if self.rule.kind == "multi_label":
            return None
        others = self.confusion[number].copy()
        others[number] = 0
        most = int(others.argmax())
        return (self.names[most], int(others[most])) if others[most] else None


@dataclass(frozen=True)
class ClassDecisions:
    """What is decided about one class, against all others.

    Args:
        name: The class.
        points: Every decision that a threshold of its probability can make.
        counts: How many are right and wrong, four 0-d arrays.
        counts_by_default: The same without the rule.
    """

    name: str
    points: OperatingPoints
    counts: Counts
    counts_by_default: Counts

    @property
    def num_positives(self) -> int:
        """Rows of the class."""
        return int(self.counts.tp + self.counts.fn)

    @property
    def has_both(self) -> bool:
        """Whether there are rows of the class and others; without, its curves say nothing."""
        return self.num_positives > 0 and int(self.counts.fp + self.counts.tn) > 0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall; 0 if the class neither occurs nor is decided for."""
        counts = self.counts
        return float(share(2 * counts.tp, 2 * counts.tp + counts.fp + counts.fn))

    @cached_property
    def roc(self) -> "Curve":
        """False positives and true positives, each as a share, of rising thresholds in reverse."""
        counts = self.points.counts
        return Curve(1 - counts.specificity, counts.recall)

    @cached_property
    def precision_recall(self) -> "Curve":
        """Recall and precision; where nothing is decided for the class, precision is that of its first rows."""
        counts = self.points.counts
        precision = counts.precision.copy()
        precision[0] = precision[min(1, len(precision) - 1)]
        return Curve(counts.recall, precision)

    @property
    def area_under_roc(self) -> float:
        """The chance that a row of the class has a higher probability than another row; ties count half."""
        return float(np.trapezoid(self.roc.y, self.roc.x))

    @property
    def average_precision(self) -> float:
        """The mean precision over the steps of recall."""
        curve = self.precision_recall
        return float((np.diff(curve.x) * curve.y[1:]).sum())


class Curve(NamedTuple):
    """A curve in the unit square; x never falls.

    Shapes: float64 ``[K]``.
    """

    x: Floats
    y: Floats

    def thinned(self, num_points: int = 400) -> "Curve":
        """Returns about so many of its points, evenly far apart along the curve; what lies between is left out."""
        if len(self.x) <= num_points:
            return self
        length = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(self.x)) + np.abs(np.diff(self.y)))])
        wanted = np.linspace(0, length[-1], num_points)
        kept = np.unique(np.append(np.searchsorted(length, wanted).clip(max=len(length) - 1), len(length) - 1))
        return Curve(self.x[kept], self.y[kept])


def _of_rows(cells: Bools) -> Bools:
    """Tells of each row whether any of its cells is set; ``[N]`` or ``[N, C]`` to ``[N]``."""
    return cells if cells.ndim == 1 else np.asarray(cells.any(axis=1))


def _count(truth: Integers, decided: Integers) -> Counts:
    confusion = np.zeros((2, 2))
    np.add.at(confusion, (truth, decided), 1)
    return counts_of(confusion).of_class(1)
