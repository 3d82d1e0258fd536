"""How often decisions are right and wrong, and in which way."""

from typing import NamedTuple

import numpy as np

from lit_trainer.decision.probabilities import Floats


class Counts(NamedTuple):
    """How many rows a decision between positive and negative gets right and wrong: four arrays of one shape."""

    tp: Floats
    fp: Floats
    fn: Floats
    tn: Floats

    @property
    def recall(self) -> Floats:
        """Share of the positives that are found; 0 if there are none."""
        return share(self.tp, self.tp + self.fn)

    @property
    def precision(self) -> Floats:
        """Share of what is decided positive that is so; 0 if nothing is."""
        return share(self.tp, self.tp + self.fp)

    @property
    def specificity(self) -> Floats:
        """Share of the negatives that are left alone; 0 if there are none."""
        return share(self.tn, self.tn + self.fp)

    def of_class(self, k: int) -> "Counts":
        """Returns the counts at position k of the last axis."""
        return Counts(*(count[..., k] for count in self))


def counts_of(confusion: Floats) -> Counts:
    """Counts each class against the rest.

    Args:
        confusion: ``[..., C, C]``, rows true, columns decided.

    Returns:
        Counts of shape ``[..., C]``.
    """
    tp = np.diagonal(confusion, axis1=-2, axis2=-1)
    fp, fn = confusion.sum(axis=-2) - tp, confusion.sum(axis=-1) - tp
    return Counts(tp, fp, fn, confusion.sum(axis=(-2, -1))[..., None] - tp - fp - fn)


def share(part: Floats, whole: Floats) -> Floats:
    """Returns ``part / whole``, and 0 where there is nothing to divide by."""
    part, whole = np.broadcast_arrays(np.asarray(part, float), np.asarray(whole, float))
    return np.divide(part, whole, out=np.zeros(whole.shape), where=whole > 0)
