"""Mean squared error, for regression."""

from torch import Tensor

from lit_trainer.losses.base import Loss
from lit_trainer.losses.targets import check_is_float, value_targets


class MeanSquaredError(Loss):
    """The square of what the prediction is off by; the mean over the elements that count.

    Shapes: logits ``[B, D]``, ``[B, 1]`` or ``[B]``; labels float as the logits or ``[B]``, NaN where ignored.
    """

    def total(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns the sum of squares over the elements that count."""
        check_is_float(labels, type(self).__name__)
        predicted, targets, counted = value_targets(logits, labels, type(self).__name__)
        return (predicted - targets).square().where(counted, 0).sum()
