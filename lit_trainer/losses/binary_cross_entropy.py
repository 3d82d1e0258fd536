"""Binary cross-entropy: several labels per row, or one logit for a yes or no."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from lit_trainer.losses.base import Loss
from lit_trainer.losses.class_weights import ClassWeights, Given
from lit_trainer.losses.targets import value_targets


def negatives_per_positive(counts: Tensor, num_rows: int) -> Tensor:
    """Returns ``(num_rows - counts) / counts``, ``[C]``: in each class, the yes weighs as much as the no."""
    return (num_rows - counts) / counts


class BinaryCrossEntropy(Loss):
    """Binary cross-entropy of each label on its own; with weights, smoothing and gamma unset, torch's with logits.

    The denominator is the number of elements that count, whatever the positive weights: each label of a row is a
    decision of its own, and one that is ignored takes nothing from the others. With gamma it is the paper's focal
    loss; its alpha, up to a common factor, is ``positive_weights: [alpha / (1 - alpha)]``.

    Args:
        positive_weights: What a yes weighs beside a no: in the order of the classes, by label name, or ``balanced``
            for no / yes of the training rows. A model with one logit takes one weight.
        label_smoothing: How far, in [0, 1], the targets 0 and 1 are moved towards 1/2.
        gamma: How much less an element counts that the model is sure of and right about; at least 0.

    Shapes: logits ``[B, C]``, or ``[B, 1]`` or ``[B]`` of a model with one logit; labels as the logits or ``[B]``,
        0 or 1 or between as floats (NaN where ignored) or 0 or 1 as integers (-100 where ignored).

    Raises:
        ValueError: If gamma or a weight is negative or not finite, or the smoothing is outside [0, 1].

    Source:
        Focal: Lin et al. 2017, "Focal Loss for Dense Object Detection", equation 5.
    """

    def __init__(self, positive_weights: Given = None, label_smoothing: float = 0.0, gamma: float = 0.0) -> None:
        super().__init__()
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing is {label_smoothing}; it has to be in [0, 1]")
        if not 0 <= gamma < float("inf"):
            raise ValueError(f"gamma is {gamma}; it has to be a finite number of at least 0")
        self.positive_weights = ClassWeights(positive_weights, "positive_weights", negatives_per_positive)
        self.label_smoothing = label_smoothing
        self.gamma = gamma

    def total(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns the sum over the elements that count."""
        scores, targets, counted = value_targets(logits, labels, type(self).__name__)
        targets = targets + self.label_smoothing * (0.5 - targets)
        one_logit = labels.dim() == 1 or labels.dim() < logits.dim()
        weights = self.positive_weights.for_classes(1 if one_logit else labels.shape[-1])
        yes, no = -F.logsigmoid(scores), -F.logsigmoid(-scores)
        if self.gamma:
            # (1 - p)^gamma by its logarithm: its slope is finite also where 1 - p rounds to 0.
            yes, no = yes * torch.exp(-self.gamma * no), no * torch.exp(-self.gamma * yes)
        if weights is not None:
            yes = yes * weights.to(scores.dtype)
        return (targets * yes + (1 - targets) * no).where(counted, 0).sum()

    def fit_to_labels(
        self, names: Sequence[str], counts: Sequence[int], *, num_rows: int | None = None, head: str | None = None
    ) -> None:
        """Works out positive weights that are balanced or by name."""
        self.positive_weights.fit(names, counts, num_rows)
