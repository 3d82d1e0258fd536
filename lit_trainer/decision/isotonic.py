"""The rising curve that is nearest to what happened: isotonic regression."""

from dataclasses import dataclass

import numpy as np

from lit_trainer.decision.probabilities import Floats


@dataclass(frozen=True)
class RisingCurve:
    """A curve that never falls: straight between its knots, level outside of them.

    Args:
        scores: Where the knots are, rising, in [0, 1].
        values: How high they are, never falling, in [0, 1].

    Raises:
        ValueError: If the knots make no such curve.
    """

    scores: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        scores, values = np.array(self.scores, float), np.array(self.values, float)
        if (
            not len(scores)
            or scores.shape != values.shape
            or not ((np.diff(scores) > 0).all() and (np.diff(values) >= 0).all())
            or not (scores[0] >= 0 and scores[-1] <= 1 and values[0] >= 0 and values[-1] <= 1)
        ):
            raise ValueError("scores and values of a curve rise from 0 to at most 1 and are as many of each")

    def __call__(self, scores: Floats) -> Floats:
        """Returns the height of the curve at each score."""
        return np.interp(scores, self.scores, self.values)


IDENTITY = RisingCurve((0.0, 1.0), (0.0, 1.0))


def fit_rising_curve(scores: Floats, labels: Floats) -> RisingCurve:
    """Fits the curve with the least squared error by pooling adjacent violators, in O(N log N).

    Args:
        scores: float64 ``[N]`` in [0, 1]; N at least 1.
        labels: float64 ``[N]``, 0 or 1.

    Source: R. E. Barlow et al., Statistical Inference under Order Restrictions (1972).
    """
    distinct, group = np.unique(scores, return_inverse=True)
    blocks: list[tuple[int, int, int]] = []  # positives, rows, groups: whole numbers, so that ties are exact
    hits = np.bincount(group, weights=labels).astype(int)
    for block in zip(hits.tolist(), np.bincount(group).tolist(), [1] * len(distinct), strict=True):
        while blocks and blocks[-1][0] * block[1] >= block[0] * blocks[-1][1]:
            before = blocks.pop()
            block = (before[0] + block[0], before[1] + block[1], before[2] + block[2])
        blocks.append(block)
    positives, num_rows, groups = np.array(blocks).T
    fitted = np.repeat(positives / num_rows, groups)
    # The inner groups of a level stretch say nothing that its ends do not.
    needed = np.ones(len(fitted), bool)
    needed[1:-1] = (fitted[1:-1] != fitted[:-2]) | (fitted[1:-1] != fitted[2:])
    return RisingCurve(tuple(distinct[needed].tolist()), tuple(fitted[needed].tolist()))
