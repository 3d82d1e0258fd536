"""Which calibration suits some rows: the one under which rows that it was not fitted on are most likely."""

from typing import Final, Literal

import numpy as np

from lit_trainer.batch import IGNORED_LABEL
from lit_trainer.decision.calibration import Calibration, TemperatureScaling, VectorScaling
from lit_trainer.decision.folds import fold_numbers
from lit_trainer.decision.probabilities import Floats, Integers, Kind

CalibrationMethod = type[Calibration] | Literal["auto"]
"""A method, or ``auto``: temperature or vector scaling, whichever `likeliest` says."""

CANDIDATES: Final[tuple[type[Calibration], ...]] = (TemperatureScaling, VectorScaling)
"""What is chosen from, simplest first. Isotonic curves reach 0 and 1, so that new rows may be impossible by them."""

_FOLDS: Final = 5


def fit_calibration(method: CalibrationMethod, logits: Floats, labels: Integers, kind: Kind) -> Calibration:
    """Fits a calibration; ``auto`` is the likeliest of `CANDIDATES`.

    Args:
        method: The method.
        logits: float64 ``[N, C]``; N at least 1.
        labels: int64 ``[N]``, or ``[N, C]`` for multi_label, in which -100 is ignored.
        kind: What the logits decide.
    """
    chosen = likeliest(logits, labels, kind) if method == "auto" else method
    return chosen.fit(logits, labels, kind)


def likeliest(logits: Floats, labels: Integers, kind: Kind, seed: int = 0) -> type[Calibration]:
    """Returns the method under which each fifth of the rows, calibrated by the others, is most likely.

    One temperature cannot mend what shifts the classes against each other, such as class weights or weighted sampling;
    offsets can, which many classes with few rows have too little to fit from. For binary it is always vector scaling,
    since the one offset is quickly fitted and costs much where it lacks. The first of equals is chosen, and with a
    single row.

    Args:
        logits: float64 ``[N, C]``; N at least 1.
        labels: int64 ``[N]``, or ``[N, C]`` for multi_label, in which -100 is ignored.
        kind: What the logits decide.
        seed: Deals the rows to the fifths.
    """
    if kind == "binary":
        return VectorScaling
    folds = min(_FOLDS, len(labels))
    if folds < 2:
        return CANDIDATES[0]
    fold_of = fold_numbers(labels, folds, seed)

    def likelihood(method: type[Calibration]) -> float:
        p = np.empty_like(logits)
        for fold in range(folds):
            inside = fold_of == fold
            p[inside] = method.fit(logits[~inside], labels[~inside], kind).probabilities(logits[inside], kind)
        return _log_likelihood(p, labels, kind)

    return max(CANDIDATES, key=likelihood)


def _log_likelihood(p: Floats, labels: Integers, kind: Kind) -> float:
    """Returns the logarithm of how likely the labels are by probabilities ``[N, C]``."""
    if kind == "multi_label":
        said = np.where(labels == 1, p, 1 - p)[labels != IGNORED_LABEL]
    else:
        said = p[np.arange(len(labels)), labels]
    return float(np.log(said.clip(min=np.finfo(np.float64).tiny)).sum())
