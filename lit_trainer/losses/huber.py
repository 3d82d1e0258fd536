"""Huber loss, for regression with outliers."""

from torch import Tensor
from torch.nn import functional as F

from lit_trainer.losses.base import Loss
from lit_trainer.losses.targets import check_is_float, value_targets


class Huber(Loss):
    """Half the square of small errors and a straight line for large ones; the mean over the elements that count.

    With a delta above every error it is half of `MeanSquaredError`.

    Args:
        delta: The size of an error, in units of the labels, from which on it counts linearly; above 0.

    Shapes: logits ``[B, D]``, ``[B, 1]`` or ``[B]``; labels float as the logits or ``[B]``, NaN where ignored.

    Raises:
        ValueError: If delta is not a finite number above 0.

    Source:
        Huber 1964, "Robust Estimation of a Location Parameter".
    """

    def __init__(self, delta: float = 1.0) -> None:
        super().__init__()
        if not 0 < delta < float("inf"):
            raise ValueError(f"delta is {delta}; it has to be a finite number above 0")
        self.delta = delta

    def total(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns the sum over the elements that count."""
        check_is_float(labels, type(self).__name__)
        predicted, targets, counted = value_targets(logits, labels, type(self).__name__)
        return F.huber_loss(predicted, targets, reduction="none", delta=self.delta).where(counted, 0).sum()
