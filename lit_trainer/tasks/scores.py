"""What an evaluation found, row by row: collected over batches, brought together over ranks, in data-set order."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torchmetrics.utilities.distributed import gather_all_tensors

from lit_trainer.batch import LABELS, ROW, Batch


@dataclass(frozen=True)
class Scores:
    """Every evaluated row once, in data-set order, on the CPU.

    Args:
        rows: int64 ``[N]``, row numbers, ascending.
        logits: float ``[N, C]``.
        labels: int64 ``[N]``, or float ``[N]`` or ``[N, C]``.
        loss: float64, the mean loss over what counts; NaN where nothing does.
    """

    rows: Tensor
    logits: Tensor
    labels: Tensor
    loss: Tensor


class ScoreTable:
    """Collects the scores of one evaluation on the device and brings them to the host once, at its end."""

    def __init__(self) -> None:
        self._columns: list[tuple[Tensor, Tensor, Tensor]] = []
        self._sums: list[tuple[Tensor, Tensor]] = []

    def add(self, batch: Batch, logits: Tensor, total: Tensor, weight: Tensor) -> None:
        """Adds a batch.

        Args:
            batch: With ``row`` and ``labels``; rows numbered -1 are left out at the end.
            logits: ``[B, C]``.
            total: The sum of its losses, 0-d or ``[T]``.
            weight: What that sum is to be divided by, of the same shape.
        """
        self._columns.append((batch[ROW], _at_least_float32(logits.detach()), batch[LABELS]))
        self._sums.append((total.detach().double(), weight.detach().double()))

    def collect(self) -> Scores:
        """Brings all ranks' rows together. Every rank must call it, and gets the same.

        Raises:
            ValueError: If a row was scored more than once.
        """
        rows, logits, labels = (self._gathered(torch.cat(column)) for column in zip(*self._columns, strict=True))
        total, weight = (torch.stack(sums).sum(0) for sums in zip(*self._sums, strict=True))
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(total)
            torch.distributed.all_reduce(weight)
        order = rows.argsort()[int((rows < 0).sum()) :]
        rows = rows[order]
        if len(rows.unique()) != len(rows):
            repeated = rows[1:][rows[1:] == rows[:-1]].unique().tolist()
            raise ValueError(
                f"{len(repeated)} rows were scored more than once (the first: {repeated[:5]}): "
                "Lightning must not replace the data module's loaders"
            )
        return Scores(rows, logits[order], labels[order], (total / weight).sum().cpu())

    @staticmethod
    def _gathered(column: Tensor) -> Tensor:
        if torch.distributed.is_initialized():
            column = torch.cat(gather_all_tensors(column))
        return column.cpu()


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
