"""How the real tokens of a padded batch are laid out one after the other, and back.

On a CPU the rows are sorted by length, so that rows of equal length are neighbours and attention over them is one
batched product without a mask. On other devices they stay in order: variable-length kernels do not mind.

Shapes: R rows, L padded length, T real tokens.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Span(NamedTuple):
    """Neighbouring rows of equal length.

    Attributes:
        start: The first one's first token.
        num_rows: How many rows there are.
        length: The tokens of each.
    """

    start: int
    num_rows: int
    length: int


@dataclass(frozen=True)
class Rows:
    """How tokens are parted into rows, and who may look at whom.

    Attributes:
        spans: Which tokens are rows of which length.
        open_keys: For each span a bool ``[rows or 1, 1, length, length]``, true where a query (third axis) may look at
            a key, or None if it may look everywhere.
        memo: What the layers that are given the same rows work out once.
    """

    spans: Sequence[Span]
    open_keys: Sequence[Tensor | None]
    memo: dict[Any, Any] = field(default_factory=dict)


class Packing:
    """The real tokens of one batch in a row.

    Args:
        mask: ``[R, L]``: not zero on real tokens.
        lengths: The number of real tokens of each row, where the host knows them already. Without it, a mask on an
            accelerator has to be waited for.

    Attributes:
        shape: ``(R, L)``.
        lengths: The lengths of the rows, in the order in which they are packed.
        num_tokens: T.
        device: Where the batch is.
        spans: The rows by equal length; together all T tokens.
    """

    def __init__(self, mask: Tensor, lengths: Sequence[int] | None = None) -> None:
        num_rows, length = self.shape = (mask.shape[0], mask.shape[1])
        real = mask != 0
        is_free = mask.device.type == "cpu"  # to look at the mask costs no waiting
        known = real.sum(1).tolist() if is_free or lengths is None else list(lengths)
        if lengths is not None and (list(lengths) != known or len(known) != num_rows):
            raise ValueError(f"lengths {list(lengths)} do not fit an attention_mask with {known} tokens in its rows")
        order = list(range(num_rows))
        if is_free:
            order.sort(key=known.__getitem__)
        self.lengths = [known[row] for row in order]
        self.num_tokens = sum(known)
        self.device = mask.device
        self._real = real
        self._rows: dict[tuple[bool, int | None, bool], Rows] = {}
        self._index = None if self.num_tokens == num_rows * length else self._indices(real, known, order)
        self.spans: list[Span] = []
        start = 0
        for each, rows in groupby(self.lengths):
            count = len(list(rows))
            if each:
                self.spans.append(Span(start, count, each))
            start += count * each

    def _indices(self, real: Tensor, known: list[int], order: list[int]) -> Tensor:
        """Returns where in the padded batch each packed token is: int64 ``[T]``."""
        index = torch.nonzero_static(real.flatten(), size=self.num_tokens).squeeze(1)
        if order == sorted(order):
            return index
        rows = index.split(known)
        return torch.cat([rows[row] for row in order])

    def rows(self, is_causal: bool, window: int | None) -> Rows:
        """Returns the spans with what their queries may look at, the same object at each call.

        Args:
            is_causal: Whether a token sees itself and those before it only.
            window: How many tokens it sees on a side, itself included; None for all.
        """
        if (is_causal, window, False) not in self._rows:
            open_keys = [open_to(span.length, is_causal, window, self.device) for span in self.spans]
            self._rows[is_causal, window, False] = Rows(self.spans, open_keys)
        return self._rows[is_causal, window, False]

    def padded_rows(self, is_causal: bool, window: int | None) -> Rows:
        """Does the same for the padded batch, as one span. Padding looks everywhere, so that no line is empty."""
        if (is_causal, window, True) not in self._rows:
            num_rows, length = self.shape
            pattern = open_to(length, is_causal, window, self.device)
            real = self._real[:, None, None, :].expand(num_rows, 1, length, length)
            open_keys = (real if pattern is None else real & pattern) | ~self._real[:, None, :, None]
            self._rows[is_causal, window, True] = Rows([Span(0, num_rows, length)], [open_keys])
        return self._rows[is_causal, window, True]

    @property
    def max_length(self) -> int:
        """The longest row's number of tokens."""
        return max(self.lengths, default=0)

    @functools.cached_property
    def boundaries(self) -> Tensor:
        """Where each row begins, and T: int32 ``[R + 1]``."""
        ends = torch.tensor([0, *self.lengths]).cumsum(0).to(torch.int32)
        return ends.to(self.device, non_blocking=True)

    def pack(self, padded: Tensor) -> Tensor:
        """Keeps the real tokens.

        Args:
            padded: ``[R, L, ...]``, or ``[1, L, ...]`` for what all rows share.

        Returns:
            ``[1, T, ...]``.
        """
        num_rows, length = self.shape
        if padded.shape[0] != num_rows:
            padded = padded.expand(num_rows, *padded.shape[1:])
        flat = padded.reshape(num_rows * length, *padded.shape[2:])
        return (flat if self._index is None else flat.index_select(0, self._index))[None]

    def unpack(self, packed: Tensor) -> Tensor:
        """Puts the real tokens back in place, among zeros.

        Args:
            packed: ``[1, T, ...]``.

        Returns:
            ``[R, L, ...]``.
        """
        num_rows, length = self.shape
        flat = packed[0]
        if self._index is not None:
            flat = flat.new_zeros(num_rows * length, *flat.shape[1:]).index_copy(0, self._index, flat)
        return flat.view(num_rows, length, *flat.shape[1:])


def open_to(length: int, is_causal: bool, window: int | None, device: torch.device) -> Tensor | None:
    """Returns which keys of a row each of its queries may look at: bool ``[1, 1, length, length]``, None for all."""
    if length == 1 or (not is_causal and (window is None or window >= length)):
        return None
    place = torch.arange(length, device=device)
    ahead = place[None, :] - place[:, None]
    is_open = ahead <= 0 if is_causal else torch.ones_like(ahead, dtype=torch.bool)
    if window is not None:
        is_open &= ahead.abs() < window
    return is_open[None, None]
