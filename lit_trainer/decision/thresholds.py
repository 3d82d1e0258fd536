"""The best threshold of a score, found exactly among all that decide differently.

The decision is positive where ``score >= threshold``. Thresholds lie midway between neighbouring scores, never on a
score where that can be helped, so that rounding elsewhere does not flip a row, and they are always finite.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lit_trainer.decision.counts import Counts
from lit_trainer.decision.criteria import TOLERANCE, Criterion
from lit_trainer.decision.probabilities import Floats, Integers, rows


class OperatingPoints(NamedTuple):
    """Every decision that a threshold can make, from none positive to all.

    Shapes: K distinct scores. ``thresholds`` and each of the counts are float64 ``[K + 1]``; thresholds decrease.
    """

    thresholds: Floats
    counts: Counts


@dataclass(frozen=True)
class Threshold:
    """A threshold that was chosen.

    Args:
        threshold: Positive is what scores at least this.
        value: What the criterion says of it on the rows that it was chosen on, which flatters it.
        reached: Whether what the criterion requires is given; where it cannot be, the nearest is taken.
    """

    threshold: float
    value: float
    reached: bool


def operating_points(scores: Floats, labels: Integers) -> OperatingPoints:
    """Lists every decision that a threshold can make, in O(N log N).

    Args:
        scores: float64 ``[N]``, probabilities.
        labels: int64 ``[N]``, 0 or 1.

    Raises:
        ValueError: If a score is no probability, or a label neither 0 nor 1.
    """
    if (wrong := (labels != 0) & (labels != 1)).any():
        raise ValueError(f"labels of a threshold are 0 and 1; others are in {rows(wrong)}")
    distinct, group = group_scores(scores)
    positives, negatives = (
        np.bincount(group[labels == label], minlength=len(distinct)).astype(np.float64) for label in (1, 0)
    )
    return OperatingPoints(cuts(distinct), cumulated(positives, negatives))


def best_threshold(scores: Floats, labels: Integers, criterion: Criterion) -> Threshold:
    """Finds the threshold that is best by a criterion, in O(N log N).

    Among thresholds that are equally good it is the highest one: positive takes evidence.

    Args:
        scores: float64 ``[N]``, probabilities.
        labels: int64 ``[N]``, 0 or 1; both occur.
        criterion: What to choose by.

    Raises:
        ValueError: If a score is no probability, or all labels are the same.
    """
    positives = int((labels == 1).sum())
    if not 0 < positives < len(labels):
        raise ValueError(f"a threshold needs positive and negative rows; {positives} of {len(labels)} are positive")
    points = operating_points(scores, labels)
    best = best_index(points.counts, criterion)
    chosen = Counts(*(count[best] for count in points.counts))
    return Threshold(float(points.thresholds[best]), float(criterion.value(chosen)), bool(criterion.reached(chosen)))


def group_scores(scores: Floats) -> tuple[Floats, Integers]:
    """Sorts the scores into groups of equal ones.

    Returns:
        The K distinct scores, falling, and for each row the number of its group.
    """
    scores = np.asarray(scores, dtype=np.float64)
    if (wrong := ~((scores >= 0) & (scores <= 1))).any():
        raise ValueError(f"scores are probabilities, from 0 to 1; others are in {rows(wrong)}")
    falling, group = np.unique(-scores, return_inverse=True)
    return -falling, group


def cuts(distinct: Floats) -> Floats:
    """Returns the K + 1 thresholds around K distinct falling scores, from above all of them to below.

    The outer ones lie midway to 1 and to 0. Above a score of 1 it is the next number, which no probability reaches.
    """
    if len(distinct) == 0:
        return np.array([0.5])
    top = 1.0 if distinct[0] < 1 else np.nextafter(1.0, 2.0)
    upper, lower = np.append(top, distinct), np.append(distinct, 0.0)
    middle = lower + (upper - lower) / 2
    # Between adjacent floats there is no middle: the upper one then separates them, but for the last cut, below all.
    middle[:-1] = np.where(middle[:-1] > lower[:-1], middle[:-1], upper[:-1])
    return np.asarray(middle)


def cumulated(positives: Floats, negatives: Floats) -> Counts:
    """Counts what is right and wrong at each cut.

    Args:
        positives: ``[..., K]``, rows of each group that are truly positive, by falling score.
        negatives: ``[..., K]``, the others.

    Returns:
        Counts of shape ``[..., K + 1]``.
    """
    first = np.zeros((*positives.shape[:-1], 1))
    tp = np.concatenate([first, positives.cumsum(axis=-1)], axis=-1)
    fp = np.concatenate([first, negatives.cumsum(axis=-1)], axis=-1)
    return Counts(tp, fp, tp[..., -1:] - tp, fp[..., -1:] - fp)


def best_index(counts: Counts, criterion: Criterion) -> Integers:
    """Returns the position of the best counts along the last axis: the first of those that are equally good."""
    best = np.ones(counts.tp.shape, bool)
    for goal in criterion.ranking(counts):
        within = np.where(best, goal, -np.inf)
        best &= within >= within.max(axis=-1, keepdims=True) - TOLERANCE
    return np.asarray(best.argmax(axis=-1))
