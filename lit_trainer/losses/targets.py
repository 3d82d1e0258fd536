"""Labels brought into the shape and type in which a loss computes with them."""

from torch import Tensor

from lit_trainer.batch import is_counted
from lit_trainer.losses.base import of_one_head


def class_targets(logits: Tensor, labels: Tensor, loss: str) -> tuple[Tensor, Tensor]:
    """Returns the logits as ``[N, C]`` and the class numbers as ``[N]``, ignored ones included.

    Args:
        logits: ``[..., C]``.
        labels: int64 ``[...]``.
        loss: The name of the loss, for errors.

    Raises:
        ValueError: If the labels are no class numbers, their shape does not fit, or there is only one class.
    """
    logits = of_one_head(logits, "logits", loss)
    if labels.is_floating_point():
        raise ValueError(
            f"{loss} takes class numbers and got {_kind(labels)} labels; several labels per row: BinaryCrossEntropy"
        )
    if labels.shape != logits.shape[:-1]:
        raise ValueError(
            f"{loss} takes one class number for each row of logits: the logits are {list(logits.shape)}, "
            f"so the labels have to be {list(logits.shape[:-1])} and not {list(labels.shape)}"
        )
    if logits.shape[-1] < 2:
        raise ValueError(f"{loss} needs two logits or more for each label; a model with one: BinaryCrossEntropy")
    return logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)


def value_targets(logits: Tensor, labels: Tensor, loss: str) -> tuple[Tensor, Tensor, Tensor]:
    """Returns logits, targets and what counts, all of the labels' shape; the target is 0 where a label is ignored.

    Args:
        logits: As the labels, or with an axis of size 1 more or less at the end.
        labels: Numbers of any shape.
        loss: The name of the loss, for errors.

    Raises:
        ValueError: If the shapes do not fit; they are never broadcast.
    """
    logits = of_one_head(logits, "logits", loss)
    if logits.shape not in (labels.shape, (*labels.shape, 1)) and labels.shape != (*logits.shape, 1):
        raise ValueError(
            f"{loss} takes one label for each logit: the logits are {list(logits.shape)} and the labels "
            f"{list(labels.shape)}"
        )
    counted = is_counted(labels)
    return logits.reshape(labels.shape), labels.where(counted, 0).to(logits.dtype), counted


def check_is_float(labels: Tensor, loss: str) -> None:
    """Refuses whole-number labels where -100 may be a value like any other.

    Raises:
        ValueError: If the labels are no floats.
    """
    if not labels.is_floating_point():
        raise ValueError(f"{loss} takes float labels (NaN is ignored) and got {_kind(labels)}")


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
