"""How much each of C classes must count in a decision for a mean over classes, such as macro-F1, to be good."""

import numpy as np

from lit_trainer.decision.counts import Counts, share
from lit_trainer.decision.criteria import TOLERANCE, Criterion
from lit_trainer.decision.probabilities import Floats, Integers

MAX_SWEEPS = 20


def best_weights(probabilities: Floats, labels: Integers, criterion: Criterion) -> Floats:
    """Finds class weights for ``argmax(weights * probabilities)`` that are good by a criterion.

    Starting from equal weights, or from those that undo the classes' shares, whichever is better, one class after the
    other gets the weight that is exactly best given the others, until none can be improved: a local optimum, never
    worse than the plain argmax on these rows. A sweep over the classes takes O(C N (C + log N)).

    Args:
        probabilities: float64 ``[N, C]``.
        labels: int64 ``[N]``.
        criterion: One that is a mean over classes.

    Returns:
        float64 ``[C]``, positive, with mean 1.
    """
    num_classes = probabilities.shape[1]
    sizes = np.bincount(labels, minlength=num_classes)
    best, weights = -np.inf, np.ones(num_classes)
    for start in (weights, 1 / np.where(sizes > 0, sizes, sizes.max())):
        confusion = np.zeros((num_classes, num_classes))
        np.add.at(confusion, (labels, (start * probabilities).argmax(axis=1)), 1)
        value = float(criterion.of_confusion(confusion))
        if value > best + TOLERANCE:
            best, weights = value, start
    for _ in range(MAX_SWEEPS):
        before = best
        for k in range(num_classes):
            value, weight = _best_weight(k, weights, probabilities, labels, criterion)
            if value > best + TOLERANCE:
                best, weights = value, np.where(np.arange(num_classes) == k, weight, weights)
        if best == before:
            break
    return np.asarray(weights / weights.mean())


def _best_weight(
    k: int, weights: Floats, probabilities: Floats, labels: Integers, criterion: Criterion
) -> tuple[float, float]:
    """Returns the best value over all weights of class k, the others fixed, and the weight that gives it.

    As the weight grows, row after row goes from its best other class, its rival, to k, in the order of the weight it
    takes. Rows in which k has probability 0 never go.
    """
    scores = weights * probabilities
    scores[:, k] = -1.0
    rival = scores.argmax(axis=1)
    movable = np.flatnonzero(probabilities[:, k] > 0)
    needed = scores[movable, rival[movable]] / probabilities[movable, k]
    order = np.argsort(needed, kind="stable")
    needed, values = needed[order], _values_as_rows_move(k, movable[order], rival, labels, len(weights), criterion)
    # Rows that take the same weight go together, and a weight must leave room on both sides of it.
    lower, upper = np.append(0.0, needed), np.append(needed, 4 * needed[-1] if len(needed) else 1.0)
    middle = np.where(lower > 0, np.sqrt(lower) * np.sqrt(upper), upper / 2)
    values = np.where((lower < middle) & (middle < upper) & np.isfinite(upper), values, -np.inf)
    best = int(values.argmax())
    return float(values[best]), float(middle[best])


def _values_as_rows_move(
    k: int, moved: Integers, rival: Integers, labels: Integers, num_classes: int, criterion: Criterion
) -> Floats:
    """Returns the criterion's value when all rows are decided for their rivals, and after each that moves to class k.

    Each move changes the counts of two classes only, so that running sums give all values in O(N log N).

    Args:
        k: The class that rows move to.
        moved: int64 ``[M]``, the numbers of the rows that move, in their order.
        rival: int64 ``[N]``, what each row is decided for before.
        labels: int64 ``[N]``.
        num_classes: C.
        criterion: One that is a mean over classes.

    Returns:
        float64 ``[M + 1]``.
    """
    actual = np.bincount(labels, minlength=num_classes).astype(np.float64)
    decided = np.bincount(rival, minlength=num_classes).astype(np.float64)
    hits = np.bincount(rival[rival == labels], minlength=num_classes).astype(np.float64)

    def terms(classes: Integers, hits: Floats, decided: Floats) -> Floats:
        misses = actual[classes] - hits
        value, counted = criterion.terms(Counts(hits, decided - hits, misses, len(labels) - decided - misses))
        return np.stack([value * counted, counted])

    # Side by side for each rival, in their order, the moves take away one decision each, right or wrong.
    moves = np.argsort(rival[moved], kind="stable")
    loser, lost_hit = rival[moved][moves], (rival == labels)[moved][moves].astype(np.float64)
    hits_left = hits[loser] - _running_sum(lost_hit, loser)
    decided_left = decided[loser] - _running_sum(np.ones(len(loser)), loser)
    change = np.empty((2, len(moved)))
    change[:, moves] = terms(loser, hits_left, decided_left) - terms(loser, hits_left + lost_hit, decided_left + 1)

    others = np.delete(np.arange(num_classes), k)
    lost = terms(others, hits[others], decided[others]).sum(axis=1, keepdims=True)
    lost = lost + np.concatenate([np.zeros((2, 1)), change.cumsum(axis=1)], axis=1)
    gained = terms(np.array(k), np.append(0.0, (labels[moved] == k).cumsum()), np.arange(len(moved) + 1.0))
    total, num_counted = lost + gained
    return share(total, num_counted)


def _running_sum(amounts: Floats, groups: Integers) -> Floats:
    """Sums up within each of the sorted groups, this amount included."""
    total = np.append(0.0, amounts.cumsum())
    starts = np.searchsorted(groups, groups)
    return np.asarray(total[1:] - total[starts])
