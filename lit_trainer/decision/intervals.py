"""How certain a threshold or a metric is: percentile intervals over bootstrap resamples of the rows."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lit_trainer.decision.criteria import Criterion
from lit_trainer.decision.probabilities import Floats, Integers
from lit_trainer.decision.thresholds import best_index, best_threshold, cumulated, cuts, group_scores

CELLS_AT_ONCE = 2_000_000
"""Resamples are worked on in chunks of about this many cells, which bounds the memory."""


@dataclass(frozen=True)
class Bootstrap:
    """How resamples are drawn.

    Rows are drawn within each true class where a row has one, so that every resample has all classes however rare.

    Args:
        num_resamples: How often the rows are drawn anew.
        level: The share of the resamples that an interval covers, between 0 and 1.
        seed: The same seed gives the same intervals.

    Raises:
        ValueError: If a number is out of range.

    Source: B. Efron, R. J. Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """

    num_resamples: int = 1000
    level: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_resamples < 1 or not 0 < self.level < 1:
            raise ValueError(
                f"num_resamples={self.num_resamples}, level={self.level}; they take a number from 1 and one between 0 "
                "and 1"
            )

    def interval(self, value: float, resampled: Floats) -> "Estimate":
        """Returns the value with the middle ``level`` of the resampled ones; those that are NaN are left out."""
        outside = (1 - self.level) / 2
        there = resampled[~np.isnan(resampled)]
        low, high = np.quantile(there, [outside, 1 - outside]) if len(there) else (value, value)
        return Estimate(float(value), float(low), float(high))

    def chunks(self, cells: int) -> list[int]:
        """Splits the resamples into chunks, given how many cells one resample takes."""
        size = max(1, CELLS_AT_ONCE // max(1, cells))
        return [min(size, self.num_resamples - start) for start in range(0, self.num_resamples, size)]


@dataclass(frozen=True)
class Estimate:
    """A number and its interval.

    Args:
        value: The number on all rows.
        low: Where the interval starts.
        high: Where it ends.
    """

    value: float
    low: float
    high: float


def threshold_estimate(scores: Floats, labels: Integers, criterion: Criterion, bootstrap: Bootstrap) -> Estimate:
    """Chooses a threshold, and again on every resample.

    Args:
        scores: float64 ``[N]``, probabilities.
        labels: int64 ``[N]``, 0 or 1; both occur.
        criterion: What to choose by.
        bootstrap: How to resample.

    Raises:
        ValueError: If a score is no probability, or all labels are the same.
    """
    chosen = best_threshold(scores, labels, criterion)
    random = np.random.default_rng(bootstrap.seed)
    distinct, group = group_scores(scores)
    thresholds = cuts(distinct)
    found = [
        thresholds[
            best_index(
                cumulated(
                    _resampled(group[labels == 1], len(distinct), size, random),
                    _resampled(group[labels == 0], len(distinct), size, random),
                ),
                criterion,
            )
        ]
        for size in bootstrap.chunks(len(scores))
    ]
    return bootstrap.interval(chosen.threshold, np.concatenate(found))


def confusion_estimate(confusion: Floats, metric: Callable[[Floats], Floats], bootstrap: Bootstrap) -> Estimate:
    """Measures decisions, and again on resamples of their rows.

    Drawing rows anew within a true class is drawing its row of the confusion matrix from a multinomial distribution.

    Args:
        confusion: float64 ``[C, C]`` of whole numbers, rows true, columns decided.
        metric: From confusions ``[..., C, C]`` to values ``[...]``.
        bootstrap: How to resample.
    """
    random = np.random.default_rng(bootstrap.seed)
    totals = confusion.sum(axis=1)
    found = []
    for size in bootstrap.chunks(confusion.size):
        resampled = np.zeros((size, *confusion.shape))
        for true in np.flatnonzero(totals):
            resampled[:, true] = random.multinomial(int(totals[true]), confusion[true] / totals[true], size=size)
        found.append(metric(resampled))
    return bootstrap.interval(float(metric(confusion)), np.concatenate(found))


def rows_estimate(cells: Floats, metric: Callable[[Floats], Floats], bootstrap: Bootstrap) -> Estimate:
    """Measures decisions on rows that have no one class, and again on resamples of the rows.

    Args:
        cells: float64 ``[N, M]``, what each row adds to M sums.
        metric: From sums ``[..., M]`` to values ``[...]``.
        bootstrap: How to resample.
    """
    random = np.random.default_rng(bootstrap.seed)
    numbers = np.arange(len(cells))
    found = [
        metric(_resampled(numbers, len(cells), size, random) @ cells) for size in bootstrap.chunks(max(cells.shape))
    ]
    return bootstrap.interval(float(metric(cells.sum(axis=0))), np.concatenate(found))


def _resampled(group: Integers, num_groups: int, size: int, random: np.random.Generator) -> Floats:
    """Draws as many rows as there are, ``size`` times, and counts them by group: ``[size, num_groups]``."""
    drawn = group[random.integers(len(group), size=(size, len(group)))]
    drawn += np.arange(size)[:, None] * num_groups
    return np.bincount(drawn.ravel(), minlength=size * num_groups).reshape(size, num_groups).astype(np.float64)
