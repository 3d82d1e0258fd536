"""What a decision is chosen by: one number made of how often it is right and wrong, and in which way."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from lit_trainer.decision.counts import Counts, counts_of, share
from lit_trainer.decision.probabilities import Bools, Floats, Kind

TOLERANCE = 1e-12
"""Values closer than this are equal: they differ by rounding only."""


class Criterion(ABC):
    """What a threshold, or the weight of a class, is chosen by.

    Attributes:
        higher_is_better: Which way the value is better; None if that cannot be said of the value alone.
    """

    higher_is_better: ClassVar[bool | None] = True

    @abstractmethod
    def value(self, counts: Counts) -> Floats:
        """Returns the number that is reported, of the shape of the counts."""

    def requirement(self) -> tuple["Criterion", float] | None:
        """Returns what must be large enough, and how large; most criteria require nothing."""
        return None

    def ranking(self, counts: Counts) -> tuple[Floats, ...]:
        """Returns what is made as large as possible: the first, then among equals the second, and so on."""
        value = -self.value(counts) if self.higher_is_better is False else self.value(counts)
        if (requirement := self.requirement()) is None:
            return (value,)
        required, least = requirement[0].value(counts), requirement[1]
        return np.minimum(required, least), value, required

    def reached(self, counts: Counts) -> Bools:
        """Tells where what the criterion requires is given."""
        if (requirement := self.requirement()) is None:
            return np.ones(np.shape(counts.tp), bool)
        return np.asarray(requirement[0].value(counts) >= requirement[1] - TOLERANCE)

    def terms(self, counts: Counts) -> tuple[Floats, Bools]:
        """Returns what each of C classes, against the rest, adds to the mean over classes, and whether it counts.

        Raises:
            ValueError: If the criterion is about two classes only.
        """
        raise ValueError(
            f"criterion {type(self).__name__} is for binary and multi_label; multi_class can have ExpectedCost, "
            "BalancedAccuracy or FBeta"
        )

    def of_confusion(self, confusion: Floats) -> Floats:
        """Returns the number for decisions among C classes.

        Args:
            confusion: ``[..., C, C]``, rows true, columns decided.
        """
        values, counted = self.terms(counts_of(confusion))
        return share((values * counted).sum(axis=-1), counted.sum(axis=-1))

    def check(self, kind: Kind, num_classes: int) -> None:
        """Raises a ValueError if this criterion cannot choose decisions of this kind."""
        if kind == "multi_class":
            self.of_confusion(np.eye(num_classes))

    def for_positive(self, positive: int) -> "Criterion":
        """Returns the criterion for two classes of which the given one, 0 or 1, is the positive."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """Returns the criterion as YAML would have it."""
        return {"class_path": f"{type(self).__module__}.{type(self).__name__}", "init_args": asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class YoudenJ(Criterion):
    """Youden's J, the height of the ROC curve above the diagonal: recall + specificity - 1.

    Source: W. J. Youden, Index for rating diagnostic tests, Cancer 3 (1950).
    """

    def value(self, counts: Counts) -> Floats:
        """Returns J, from -1 to 1."""
        return counts.recall + counts.specificity - 1


@dataclass(frozen=True)
class BalancedAccuracy(Criterion):
    """Mean recall of the classes: chance is 1/C however rare a class is.

    For two classes it is (recall + specificity) / 2, so its best threshold is that of Youden's J.

    Source: K. H. Brodersen et al., The balanced accuracy and its posterior distribution, ICPR 2010.
    """

    def value(self, counts: Counts) -> Floats:
        """Returns the balanced accuracy of two classes."""
        return (counts.recall + counts.specificity) / 2

    def terms(self, counts: Counts) -> tuple[Floats, Bools]:
        """Takes the recall of the classes that have rows."""
        return counts.recall, counts.tp + counts.fn > 0


@dataclass(frozen=True)
class FBeta(Criterion):
    """F-beta: the harmonic mean of precision and recall in which recall counts beta times as much.

    With beta 1 this is F1; for C classes, the mean over classes that occur in the labels or the decisions.

    Args:
        beta: Above 1 favours recall, below 1 precision.

    Raises:
        ValueError: If beta is not positive.

    Source: C. J. van Rijsbergen, Information Retrieval, 2nd edition (1979), chapter 7.
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.beta < float("inf"):
            raise ValueError(f"beta={self.beta}; FBeta takes a positive number")

    def value(self, counts: Counts) -> Floats:
        """Returns F-beta; 0 where there is no true positive."""
        weight = self.beta**2
        found = (1 + weight) * counts.tp
        return share(found, found + weight * counts.fn + counts.fp)

    def terms(self, counts: Counts) -> tuple[Floats, Bools]:
        """Takes the F-beta of the classes that occur."""
        return self.value(counts), counts.tp + counts.fp + counts.fn > 0


@dataclass(frozen=True)
class Precision(Criterion):
    """Share of right ones among what is decided positive. To measure by; to choose by it says too little."""

    def value(self, counts: Counts) -> Floats:
        """Returns the precision; 0 where nothing is decided positive."""
        return counts.precision


@dataclass(frozen=True)
class Recall(Criterion):
    """Share of the positives that are found. To measure by; chosen by it, everything is decided positive."""

    def value(self, counts: Counts) -> Floats:
        """Returns the recall; 0 where there are no positives."""
        return counts.recall


@dataclass(frozen=True)
class PrecisionAtRecall(Criterion):
    """The highest precision that still has the required recall; among equals the higher recall.

    Args:
        recall: The least share of the positives that must be found, above 0, at most 1.

    Raises:
        ValueError: If the recall is out of range.
    """

    higher_is_better: ClassVar[bool | None] = None

    recall: float

    def __post_init__(self) -> None:
        _check_share("PrecisionAtRecall", "recall", self.recall)

    def value(self, counts: Counts) -> Floats:
        """Returns the precision."""
        return counts.precision

    def requirement(self) -> tuple[Criterion, float]:
        """Requires the recall."""
        return Recall(), self.recall


@dataclass(frozen=True)
class RecallAtPrecision(Criterion):
    """The highest recall that still has the required precision; among equals the higher precision.

    Where no threshold has that precision, the one with the highest precision is taken and said not to be enough.

    Args:
        precision: The least share of right ones among what is decided positive, above 0, at most 1.

    Raises:
        ValueError: If the precision is out of range.
    """

    higher_is_better: ClassVar[bool | None] = None

    precision: float

    def __post_init__(self) -> None:
        _check_share("RecallAtPrecision", "precision", self.precision)

    def value(self, counts: Counts) -> Floats:
        """Returns the recall."""
        return counts.recall

    def requirement(self) -> tuple[Criterion, float]:
        """Requires the precision."""
        return Precision(), self.precision


@dataclass(frozen=True)
class FixedPrevalence(Criterion):
    """Decides a fixed share of the rows positive, such as the share that is known from elsewhere to be.

    Args:
        prevalence: The share of rows to decide positive, above 0, at most 1; ties in the scores may leave it to the
            nearest possible share.

    Raises:
        ValueError: If the share is out of range.

    Source: E. A. Freeman, G. G. Moisen, Ecological Modelling 217 (2008), "predicted prevalence".
    """

    higher_is_better: ClassVar[bool | None] = None

    prevalence: float

    def __post_init__(self) -> None:
        _check_share("FixedPrevalence", "prevalence", self.prevalence)

    def value(self, counts: Counts) -> Floats:
        """Returns the share that is decided positive."""
        return share(counts.tp + counts.fp, counts.tp + counts.fp + counts.fn + counts.tn)

    def ranking(self, counts: Counts) -> tuple[Floats, ...]:
        """Puts the share nearest to the wanted one first."""
        return (-np.abs(self.value(counts) - self.prevalence),)


@dataclass(frozen=True)
class ExpectedCost(Criterion):
    """Mean cost of a decision. With cost 1 for every mistake and 0 else, the error rate.

    Args:
        costs: ``[C][C]``: what it costs to decide the column's class when the row's class is true, in any one unit,
            in the order of the label names; 2 x 2 (absent, present) for multi_label.

    Raises:
        ValueError: If the matrix is not square and finite, or a mistake costs less than the right decision.

    Source: C. Elkan, The foundations of cost-sensitive learning, IJCAI 2001.
    """

    higher_is_better: ClassVar[bool | None] = False

    costs: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "costs", read_costs(self.costs))

    def value(self, counts: Counts) -> Floats:
        """Returns the mean cost for two classes, the second of which is the positive one."""
        (c00, c01), (c10, c11) = self.costs
        total = counts.tn + counts.fp + counts.fn + counts.tp
        return share(c00 * counts.tn + c01 * counts.fp + c10 * counts.fn + c11 * counts.tp, total)

    def of_confusion(self, confusion: Floats) -> Floats:
        """Returns the mean cost for C classes."""
        return share((confusion * np.array(self.costs)).sum(axis=(-2, -1)), confusion.sum(axis=(-2, -1)))

    def check(self, kind: Kind, num_classes: int) -> None:
        """Raises a ValueError unless there is a cost for every pair of classes."""
        size = 2 if kind == "multi_label" else num_classes
        if len(self.costs) != size:
            raise ValueError(
                f"costs has {len(self.costs)} rows; {kind} with {num_classes} labels takes {size} x {size}"
            )

    def for_positive(self, positive: int) -> "ExpectedCost":
        """Returns the costs with the positive class second."""
        return self if positive == 1 else ExpectedCost(tuple(row[::-1] for row in self.costs[::-1]))


def read_costs(costs: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    """Reads a cost matrix, rows true, columns decided, and raises a ValueError if it is none."""
    size = len(costs)
    read = tuple(tuple(float(cost) for cost in row) for row in costs)
    if size < 2 or any(len(row) != size for row in read) or not np.isfinite(read).all():
        raise ValueError(f"costs has rows of {[len(row) for row in read]}; it takes as many finite numbers as rows")
    for true, row in enumerate(read):
        if min(row) < row[true]:
            raise ValueError(
                f"costs[{true}]: deciding class {row.index(min(row))} costs {min(row)}, less than the right decision "
                f"({row[true]}); rows are the true class, columns the decided one"
            )
    return read


def _check_share(owner: str, name: str, given: float) -> None:
    if not 0 < given <= 1:
        raise ValueError(f"{name}={given}; {owner} takes a number above 0, at most 1")
