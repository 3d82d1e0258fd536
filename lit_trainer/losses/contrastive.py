"""Supervised contrastive loss: rows of one class close together, those of others apart."""

import torch
from torch import Tensor
from torch.nn import functional as F

from lit_trainer.batch import is_counted
from lit_trainer.losses.base import Loss
from lit_trainer.losses.gathered_rows import gather_rows


class SupervisedContrastive(Loss):
    """Supervised contrastive loss of the features; the mean over all rows that have a label.

    Every row is an anchor, the others of its class are its positives, and all others are what it is compared with, on
    all ranks. An anchor without a positive adds 0 and counts all the same, so that the weight follows from the labels.

    It sees the rows of one micro-batch over all ranks, not of the whole step: with accumulation, each row meets fewer
    others, and the training depends on ``accumulate_grad_batches`` as it does with no other kind of loss.

    Args:
        temperature: What cosine similarities are divided by; above 0, the smaller, the more the nearest rows count.

    Shapes: features ``[B, D]``; labels int64 ``[B]``, -100 for rows that are left out altogether.

    Raises:
        ValueError: If the temperature is not a finite number above 0.

    Source:
        Khosla et al. 2020, "Supervised Contrastive Learning", equation 2.
    """

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        if not 0 < temperature < float("inf"):
            raise ValueError(f"temperature is {temperature}; it has to be a finite number above 0")
        self.temperature = temperature

    @property
    def across_rows(self) -> bool:
        """True: a row is compared with those beside it."""
        return True

    def total(self, features: Tensor, labels: Tensor) -> Tensor:
        """Returns the sum over the anchors of this rank, compared with the rows of all ranks."""
        if features.dim() != 2 or labels.shape != features.shape[:1] or labels.is_floating_point():
            raise ValueError(
                f"SupervisedContrastive takes features [B, D] and class numbers [B]; got features "
                f"{list(features.shape)} and {str(labels.dtype).removeprefix('torch.')} labels {list(labels.shape)}"
            )
        directions = F.normalize(features, dim=-1)
        (all_directions, all_labels), start = gather_rows(directions, labels)
        similarity = directions @ all_directions.T / self.temperature
        is_self = torch.arange(len(labels), device=labels.device)[:, None] + start == torch.arange(
            len(all_labels), device=labels.device
        )
        compared = is_counted(all_labels) & ~is_self
        positive = compared & (labels[:, None] == all_labels)
        num_positives = positive.sum(-1)
        used = num_positives > 0
        # Unused rows are not masked: one that is compared with nothing would have the logarithm of an empty sum.
        normaliser = similarity.masked_fill(~compared & used[:, None], -torch.inf).logsumexp(-1)
        mean_positive = similarity.where(positive, 0).sum(-1) / num_positives.clamp_min(1)
        return (normaliser - mean_positive).where(used, 0).sum()
