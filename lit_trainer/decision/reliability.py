"""How far probabilities mean what they say: calibration error, Brier score and the reliability table."""

from typing import NamedTuple

import numpy as np

from lit_trainer.batch import IGNORED_LABEL
from lit_trainer.decision.probabilities import Floats, Integers, Kind, one_hot


class Reliability(NamedTuple):
    """The reliability table: what was said and what came true, by equally filled bins of rising confidence.

    Shapes: M bins that have rows. ``num_rows`` is int64 ``[M]``, the others float64 ``[M]``: the mean confidence of
    the bin and the share of its rows that came true.
    """

    num_rows: Integers
    confidence: Floats
    frequency: Floats

    @property
    def calibration_error(self) -> float:
        """The mean distance between confidence and frequency, over rows."""
        total = self.num_rows.sum()
        return float((self.num_rows * np.abs(self.confidence - self.frequency)).sum() / total) if total else 0.0


def reliability(probabilities: Floats, labels: Integers, kind: Kind, num_bins: int = 15) -> Reliability:
    """Compares confidence with how often it is right.

    The confidence is the probability of the second class for binary, of the most probable class for multi_class, and
    every class's own for multi_label. Rows of equal confidence share a bin, so the order of rows does not matter.

    Args:
        probabilities: float64 ``[N, C]``.
        labels: int64 ``[N]``, or ``[N, C]`` for multi_label, in which -100 is ignored.
        kind: What the probabilities decide.
        num_bins: The number of bins of nearly equal numbers of rows; ties leave fewer.

    Source: K. Nguyen, B. O'Connor, Posterior calibration and exploratory analysis for natural language processing
    models, EMNLP 2015 (equally filled bins); C. Guo et al., ICML 2017 (most probable class).
    """
    if num_bins < 1:
        raise ValueError(f"num_bins={num_bins}; it takes a number from 1")
    confidence, outcome = _confidence(probabilities, labels, kind)
    _, group, sizes = np.unique(confidence, return_inverse=True, return_counts=True)
    middle = sizes.cumsum() - (sizes + 1) / 2  # mean rank of the rows of each distinct confidence, from 0
    bins = np.floor(middle * num_bins / max(len(confidence), 1)).astype(np.int64)[group]
    num_rows = np.bincount(bins, minlength=num_bins)
    there = num_rows > 0
    mean = np.bincount(bins, weights=confidence, minlength=num_bins)[there] / num_rows[there]
    frequency = np.bincount(bins, weights=outcome, minlength=num_bins)[there] / num_rows[there]
    return Reliability(num_rows[there], mean, frequency)


def brier_score(probabilities: Floats, labels: Integers, kind: Kind) -> float:
    """Mean squared distance between probability and truth; lower is better.

    Of the second class for binary, summed over the classes for multi_class (0 to 2), and over all that counts of all
    classes for multi_label. Without rows it is 0.

    Args:
        probabilities: float64 ``[N, C]``.
        labels: int64 ``[N]``, or ``[N, C]`` for multi_label, in which -100 is ignored.
        kind: What the probabilities decide.

    Source: G. W. Brier, Verification of forecasts expressed in terms of probability, Monthly Weather Review 78 (1950).
    """
    if len(labels) == 0:
        return 0.0
    if kind == "multi_class":
        return float(((probabilities - one_hot(labels, probabilities.shape[1])) ** 2).sum(axis=1).mean())
    confidence, outcome = _confidence(probabilities, labels, kind)
    return float(((confidence - outcome) ** 2).mean()) if len(outcome) else 0.0


def _confidence(probabilities: Floats, labels: Integers, kind: Kind) -> tuple[Floats, Floats]:
    """Returns, flat, what was said and whether it came true (0 or 1)."""
    if kind == "multi_label":
        counted = labels != IGNORED_LABEL
        return probabilities[counted], labels[counted].astype(np.float64)
    if kind == "binary":
        return probabilities[:, 1], labels.astype(np.float64)
    return probabilities.max(axis=1), (probabilities.argmax(axis=1) == labels).astype(np.float64)
