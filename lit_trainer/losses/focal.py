"""Focal loss: cross-entropy that looks away from what is already right."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lit_trainer.batch import is_counted
from lit_trainer.losses.base import Loss
from lit_trainer.losses.class_weights import ClassWeights, Given
from lit_trainer.losses.targets import class_targets


class FocalLoss(Loss):
    """Multi-class focal loss, ``-w (1 - p)^gamma log p`` of the label's class; with gamma 0 it is `CrossEntropy`.

    Weights and smoothing compose with it: the target ``q``, smoothed, gives
    ``-sum_c w_c q_c (1 - p_c)^gamma log p_c``. The denominator is that of `CrossEntropy`, the sum of the class weights
    of what counts; the paper, for object detection, divides by the number of foreground boxes instead. For one logit,
    or several labels per row, see the ``gamma`` of `BinaryCrossEntropy`.

    Args:
        gamma: How much less a row counts that the model is sure of and right about; at least 0.
        class_weights: As in `CrossEntropy`; the paper's alpha.
        label_smoothing: As in `CrossEntropy`.

    Shapes: logits ``[B, C]`` or ``[B, L, C]``; labels int64 ``[B]`` or ``[B, L]``, -100 where ignored.

    Raises:
        ValueError: If gamma or a weight is negative or not finite, or the smoothing is outside [0, 1].

    Source:
        Lin et al. 2017, "Focal Loss for Dense Object Detection", equation 5.
    """

    def __init__(self, gamma: float = 2.0, class_weights: Given = None, label_smoothing: float = 0.0) -> None:
        super().__init__()
        if not 0 <= gamma < float("inf"):
            raise ValueError(f"gamma is {gamma}; it has to be a finite number of at least 0")
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing is {label_smoothing}; it has to be in [0, 1]")
        self.gamma = gamma
        self.class_weights = ClassWeights(class_weights, "class_weights")
        self.label_smoothing = label_smoothing

    def total(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns the sum over the labels that count, each times the weight of its class."""
        rows, classes = class_targets(logits, labels, type(self).__name__)
        weights = self.class_weights.for_classes(rows.shape[-1])
        counted = is_counted(classes)
        log_p = rows.log_softmax(-1)
        own = log_p.gather(-1, classes.where(counted, 0).unsqueeze(-1)).squeeze(-1)
        terms = self.label_weights(classes).to(rows.dtype) * self._modulated(own)
        if self.label_smoothing:
            every = self._modulated(log_p)
            spread = (every if weights is None else every * weights.to(rows.dtype)).mean(-1)
            terms = torch.lerp(terms, spread, self.label_smoothing)
        return terms.where(counted, 0).sum()

    def label_weights(self, labels: Tensor) -> Tensor:
        """Returns the weight of each label's class, and 0 where it is ignored."""
        return self.class_weights.of(labels)

    def fit_to_labels(
        self, names: Sequence[str], counts: Sequence[int], *, num_rows: int | None = None, head: str | None = None
    ) -> None:
        """Works out class weights that are balanced or by name."""
        self.class_weights.fit(names, counts, num_rows)

    def _modulated(self, log_p: Tensor) -> Tensor:
        """Returns ``-(1 - p)^gamma log p``."""
        if self.gamma == 0:
            return -log_p
        # Where p rounds to 1, the slope of a fractional power at 0 is infinite; the clamp keeps it from becoming NaN.
        not_p = (-torch.expm1(log_p)).clamp_min(torch.finfo(log_p.dtype).tiny)
        return -log_p * not_p**self.gamma
