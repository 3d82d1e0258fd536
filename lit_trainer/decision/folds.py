"""Parts of the rows for cross-fitting: each is decided by what was fitted on the others."""

import numpy as np

from lit_trainer.decision.probabilities import Integers


def fold_numbers(labels: Integers, folds: int, seed: int) -> Integers:
    """Deals rows to folds of nearly equal size, each class (of ``[N]`` labels) as evenly as can be.

    Args:
        labels: int64 ``[N]``, or ``[N, C]``, whose rows are dealt without regard to their labels.
        folds: The number of folds.
        seed: The same seed gives the same folds.

    Returns:
        int64 ``[N]``, from 0 to ``folds - 1``.

    Raises:
        ValueError: If there are fewer rows than folds, or fewer folds than 2.
    """
    if not 2 <= folds <= len(labels):
        raise ValueError(f"folds={folds}; {len(labels)} rows can have from 2 to {len(labels)} folds, or null for none")
    order = np.random.default_rng(seed).permutation(len(labels))
    if labels.ndim == 1:
        order = order[np.argsort(labels[order], kind="stable")]
    numbers = np.empty(len(labels), np.int64)
    numbers[order] = np.arange(len(labels)) % folds
    return numbers
