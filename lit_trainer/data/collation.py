"""From planned rows to a batch of tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from lit_trainer.batch import DRAW, LABELS, LENGTHS, ROW, Batch, ignored_like
from lit_trainer.data.plan import Ints


@dataclass(frozen=True)
class EncodedRows(torch.utils.data.Dataset[Any]):
    """The rows of a split as the loader fetches them, a micro-batch at a time.

    Args:
        tokens: Token columns, one row each.
        lengths: int64 ``[R]``, tokens of each row.
        labels: int64 ``[R]``, float32 ``[R]`` or float32 ``[R, C]``; None where there are none.
    """

    tokens: Dataset
    lengths: Ints
    labels: NDArray[Any] | None

    def __len__(self) -> int:
        """Returns the number of rows, R."""
        return len(self.tokens)

    def __getitems__(self, draws: Sequence[tuple[int, int]]) -> Batch:
        """Returns the columns of some rows, each asked for as (row, draw); a draw of -1 only fills up."""
        rows = [row for row, _ in draws]
        columns: Batch = dict(self.tokens[rows])
        filler = np.asarray([draw < 0 for _, draw in draws])
        columns[ROW] = np.where(filler, -1, rows)
        columns[DRAW] = np.asarray([draw for _, draw in draws])
        if self.labels is not None:
            columns[LABELS] = self.labels[rows]
        return columns


class PaddingCollator:
    """Pads the rows of a micro-batch to one length and makes tensors of them.

    Args:
        tokenizer: Knows how its model wants padding.
        max_length: Pad every row to this many tokens; None pads to the longest of the micro-batch.
        multiple_of: Round the padded length up to a multiple of this.
        with_lengths: Whether the batch is to say how long its rows are, which a model without padding is told.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int | None = None,
        multiple_of: int | None = None,
        with_lengths: bool = False,
    ) -> None:
        self.tokenizer, self.max_length, self.multiple_of = tokenizer, max_length, multiple_of
        self.with_lengths = with_lengths

    def __call__(self, columns: Batch) -> Batch:
        """Makes a batch: token columns ``[B, L]``, ``row`` and ``draw`` ``[B]``, and labels where there are any.

        Args:
            columns: What `EncodedRows` fetched.
        """
        own: Batch = {key: torch.as_tensor(columns.pop(key)) for key in (ROW, DRAW, LABELS) if key in columns}
        if self.with_lengths:
            own[LENGTHS] = [len(ids) for ids in columns["input_ids"]]
        batch: Batch = dict(
            self.tokenizer.pad(
                columns,
                padding="longest" if self.max_length is None else "max_length",
                max_length=self.max_length,
                pad_to_multiple_of=self.multiple_of,
                return_tensors="pt",
                verbose=False,
            )
        )
        if LABELS in own:
            own[LABELS] = _without_fillers(own[LABELS], own[ROW])
        return {**batch, **own}


def _without_fillers(labels: Tensor, rows: Tensor) -> Tensor:
    filler = (rows < 0).view(-1, *[1] * (labels.dim() - 1))
    return torch.where(filler, ignored_like(labels), labels)
