"""Loss functions as a user would write them, for FunctionLoss to import."""

from torch import Tensor
from torch.nn import functional as F


def negative_log_likelihood(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none")


def squared_error(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.squeeze(-1) - labels) ** 2


def weighted_negative_log_likelihood(logits: Tensor, labels: Tensor, **others: object) -> tuple[Tensor, Tensor]:
    counted = labels != -100
    values = F.cross_entropy(logits, labels.where(counted, 0), reduction="none")
    weights = 1.0 + labels.where(counted, -1)
    return (weights * values).sum(), weights.sum()
