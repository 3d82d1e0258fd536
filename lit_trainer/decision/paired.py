"""Whether two models that were tested on the same rows, with several seeds each, differ by more than chance."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from lit_trainer.decision.counts import Counts, share
from lit_trainer.decision.criteria import FBeta
from lit_trainer.decision.probabilities import Floats, Integers

Measure: TypeAlias = Callable[[Counts], Floats]
"""From counts of shape ``[..., C]``, each class against the rest, to a value ``[...]``."""

CHUNK = 500
"""Resamples that are worked on at once, which bounds the memory."""


class Discordant(NamedTuple):
    """Rows on which one of two models is right more often than the other.

    Args:
        first: Rows for the first model.
        second: Rows for the second one.
        p: How likely so uneven a division is if neither is better.
    """

    first: int
    second: int
    p: float


class Difference(NamedTuple):
    """How much better a second model is than a first one.

    Args:
        value: On all rows, the mean over the seeds.
        low: Where its interval starts.
        high: Where it ends.
        p: How likely a difference of this size is if there is none, two-sided.
    """

    value: float
    low: float
    high: float
    p: float


def accuracy(counts: Counts) -> Floats:
    """Returns the share of the rows that are right."""
    return share(counts.tp.sum(-1), (counts.tp + counts.fn).sum(-1))


def f1_of_last(counts: Counts) -> Floats:
    """Returns F1 of the last class, 0 where there is none of it: what is called f1 of two classes."""
    return FBeta().value(counts)[..., -1]


def f1_macro(counts: Counts) -> Floats:
    """Returns the mean F1 of the classes that occur, in the labels or in what was decided."""
    values, occurs = FBeta().terms(counts)
    return share((values * occurs).sum(-1), occurs.sum(-1))


def mcnemar(labels: Integers, first: Integers, second: Integers) -> Discordant:
    """Tests whether one of two models is right more often, by the rows on which they differ.

    A row counts once, for the model that is right on it with more of its seeds: decisions on one row with several
    seeds are no independent observations. With one seed each it is McNemar's exact test, else a sign test over rows.

    Args:
        labels: int64 ``[N]``.
        first: int64 ``[S, N]``, what the first model decides with each of S seeds.
        second: int64 ``[S, N]``, the same of the second one.

    Source: Q. McNemar, Note on the sampling error of the difference between correlated proportions, Psychometrika 12
    (1947), in the exact form; B. Everitt, The Analysis of Contingency Tables (1977), section 2.6.
    """
    lead = (second == labels).sum(0) - (first == labels).sum(0)
    losses, wins = int((lead < 0).sum()), int((lead > 0).sum())
    return Discordant(losses, wins, sign_test(losses, wins))


def sign_test(one: int, other: int) -> float:
    """Returns the two-sided p-value of a division of independent rows that is fair if nothing differs; 1 of none."""
    number, fewer = one + other, min(one, other)
    tail = sum(math.comb(number, k) for k in range(fewer + 1))
    return min(1.0, float(2 * tail / 2**number))


def paired_bootstrap(
    labels: Integers,
    first: Integers,
    second: Integers,
    measure: Measure,
    *,
    num_resamples: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> Difference:
    """Measures a difference, and again on resamples of the rows and of the seeds, the same ones for both models.

    Rows are drawn within each true class, so that every resample has all classes however rare. Both models have the
    same rows and seeds in a resample, so what makes a row easy for both cancels out. Of few seeds the draws vary less
    than new seeds would, by (S - 1) / S of the variance between seeds: three are few.

    Args:
        labels: int64 ``[N]``, 0 to C - 1.
        first: int64 ``[S, N]``, what the first model decides with each of S seeds.
        second: int64 ``[S, N]``, the same of the second one.
        measure: What is compared.
        num_resamples: How often rows and seeds are drawn anew.
        level: The share of the resamples that the interval covers.
        seed: The same seed gives the same interval.

    Source: B. Efron, R. J. Tibshirani, An Introduction to the Bootstrap (1993), chapters 13 and 16; A. C. Davison,
    D. V. Hinkley, Bootstrap Methods and their Application (1997), section 3.8, for levels within levels.
    """
    random = np.random.default_rng(seed)
    num_seeds, num_classes = len(first), int(max(labels.max(), first.max(), second.max())) + 1
    cells = np.concatenate([_cells(labels, decided, num_classes) for decided in (*first, *second)], axis=1)

    def differences(weights: Floats) -> Floats:
        """From the weight of each row ``[R, N]`` to the difference with each seed ``[R, S]``."""
        sums = (weights @ cells).reshape(len(weights), 2, num_seeds, 3, num_classes)
        right, decided, true = (sums[..., kind, :] for kind in range(3))
        rest = true.sum(-1, keepdims=True) - decided - true + right
        values = measure(Counts(right, decided - right, true - right, rest))
        return values[:, 1] - values[:, 0]

    value = float(differences(np.ones((1, len(labels)))).mean())
    found = []
    for start in range(0, num_resamples, CHUNK):
        size = min(CHUNK, num_resamples - start)
        shares = random.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), size) / num_seeds
        found.append((differences(_row_weights(labels, size, random)) * shares).sum(1))
    drawn = np.concatenate(found)
    outside = (1 - level) / 2
    low, high = np.quantile(drawn, [outside, 1 - outside])
    tail = min((drawn <= 0).sum(), (drawn >= 0).sum())
    return Difference(value, float(low), float(high), min(1.0, 2 * float(tail + 1) / (num_resamples + 1)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrects p-values for being several, so that any of them is below alpha by chance in alpha of all cases.

    Args:
        p_values: Of all that is tested; any dependence between them is allowed.

    Source: S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6
    (1979).
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, position in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[position]))
        corrected[position] = largest
    return corrected


def _cells(labels: Integers, decided: Integers, num_classes: int) -> Floats:
    """Returns what each row adds to the rows that are right, decided so and so, of each class: ``[N, 3 * C]``."""
    each = np.arange(num_classes)
    is_true, is_decided = labels[:, None] == each, decided[:, None] == each
    return np.concatenate([is_true & is_decided, is_decided, is_true], axis=1).astype(np.float64)


def _row_weights(labels: Integers, size: int, random: np.random.Generator) -> Floats:
    """Draws as many rows of each class as there are and returns how often each row came: ``[size, N]``."""
    weights = np.zeros((size, len(labels)))
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        weights[:, rows] = random.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size)
    return weights
