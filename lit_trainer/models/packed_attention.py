"""Attention over sequences that lie one after the other, with keyed dropout, without keeping the probabilities.

Rows of equal length are one batched matrix product; what is between the products is one fused kernel. The backward
pass computes the probabilities again, from the same masks, so the memory that is kept grows with the tokens and not
with their squares. In half precision the scores are rounded before the softmax, as in Transformers' eager attention.

Shapes: T tokens, H heads of queries, K heads of keys and values (H is a multiple), D width of a head.
"""

import functools
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lit_trainer.models.fused_kernels import Mask, softmax, softmax_backward
from lit_trainer.models.packing import Rows

# Scores that are worked on at a time: enough for every core, few enough to stay close to them.
_CPU_SCORES = 2**20
_ACCELERATOR_SCORES = 2**26


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Rows,
    scale: float,
    tokens: Tensor | None = None,
    features: Tensor | None = None,
    p: float = 0.0,
) -> Tensor:
    """Returns what each token sees: ``[T, H, D]``.

    Args:
        query: ``[T, H, D]``.
        key: ``[T, K, D]``.
        value: ``[T, K, D]``.
        rows: How the tokens are parted.
        scale: What the products of queries and keys are multiplied by.
        tokens: int32 ``[T]``, odd: the words of the queries. None for no dropout.
        features: int32 ``[H, max length]``, odd: the words of the keys of each head.
        p: The probability of a look being dropped, in [0, 1).
    """
    device = query.device.type
    is_autocast = torch.is_autocast_enabled(device)
    if is_autocast and query.dtype != torch.float64:  # as torch's own attention does
        query, key, value = (x.to(torch.get_autocast_dtype(device)) for x in (query, key, value))
    with torch.autocast(device, enabled=False) if is_autocast else nullcontext():
        out: Tensor = _Attend.apply(query, key, value, tokens, features, rows, scale, p)
    return out


@dataclass(frozen=True)
class _Chunk:
    """What one batched product works on: some rows of a span, some of its heads."""

    tokens: slice
    heads: slice  # of keys
    queries: slice  # heads of queries
    num_rows: int
    length: int
    open_keys: Tensor | None
    is_plain: bool  # one row, with as many heads of keys as of queries

    def take(self, x: Tensor, heads: slice) -> Tensor:
        """Returns ``[rows * K, queries of a head of keys * length, D]`` of ``[T, heads, D]``."""
        part = self._part(x, heads)
        return part if self.is_plain else part.reshape(-1, part.shape[2] * part.shape[3], part.shape[4])

    def put(self, x: Tensor, heads: slice, values: Tensor) -> None:
        """Writes what `take` would return."""
        part = self._part(x, heads)
        part.copy_(values if self.is_plain else values.view(part.shape))

    def _part(self, x: Tensor, heads: slice) -> Tensor:
        part = x[self.tokens, heads]
        if self.is_plain:
            return part.transpose(0, 1)
        num_heads = self.heads.stop - self.heads.start
        return part.view(self.num_rows, self.length, num_heads, -1, x.shape[2]).permute(0, 2, 3, 1, 4)

    @functools.cached_property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the scores: rows, heads of queries, queries, keys."""
        return self.num_rows, self.queries.stop - self.queries.start, self.length, self.length

    def mask(self, tokens: Tensor | None, features: Tensor | None, p: float) -> Mask | None:
        """Returns which of the scores' probabilities to drop."""
        if tokens is None or features is None:
            return None
        return Mask(tokens[self.tokens].view(self.num_rows, -1), features[self.queries, : self.length], p)


def _chunks(rows: Rows, query: Tensor, key: Tensor) -> list[_Chunk]:
    """Returns the chunks of all spans, the same for every layer."""
    num_heads, group = key.shape[1], query.shape[1] // key.shape[1]
    if (num_heads, group) not in rows.memo:
        most = _CPU_SCORES * torch.get_num_threads() if query.device.type == "cpu" else _ACCELERATOR_SCORES
        rows.memo[num_heads, group] = list(_parted(rows, num_heads, group, most))
    return cast(list[_Chunk], rows.memo[num_heads, group])


def _parted(rows: Rows, num_heads: int, group: int, most: int) -> Iterator[_Chunk]:
    for span, open_keys in zip(rows.spans, rows.open_keys, strict=True):
        size = span.length**2 * group
        rows_step = max(1, most // (size * num_heads))
        heads_step = max(1, min(num_heads, most // size))
        for row in range(0, span.num_rows, rows_step):
            count = min(rows_step, span.num_rows - row)
            start = span.start + row * span.length
            tokens = slice(start, start + count * span.length)
            part = open_keys if open_keys is None or open_keys.shape[0] == 1 else open_keys[row : row + count]
            for head in range(0, num_heads, heads_step):
                heads = slice(head, min(head + heads_step, num_heads))
                queries = slice(heads.start * group, heads.stop * group)
                yield _Chunk(tokens, heads, queries, count, span.length, part, count == group == 1)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        tokens: Tensor | None,
        features: Tensor | None,
        rows: Rows,
        scale: float,
        p: float,
    ) -> Tensor:
        out = query.new_empty(*query.shape[:2], value.shape[2])
        normalisers = []
        for chunk in _chunks(rows, query, key):
            q, k, v = chunk.take(query, chunk.queries), chunk.take(key, chunk.heads), chunk.take(value, chunk.heads)
            scores = torch.bmm(q, k.transpose(1, 2))
            mask = chunk.mask(tokens, features, p)
            probabilities, lse = softmax(scores.view(chunk.shape), scale, chunk.open_keys, mask)
            chunk.put(out, chunk.queries, torch.bmm(probabilities.view(scores.shape), v))
            normalisers.append(lse.flatten())
        ctx.save_for_backward(query, key, value, tokens, features, *normalisers)
        ctx.rows, ctx.scale, ctx.p = rows, scale, p
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, tokens, features, *normalisers = ctx.saved_tensors
        grads = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        for chunk, lse in zip(_chunks(ctx.rows, query, key), normalisers, strict=True):
            q, k, v = chunk.take(query, chunk.queries), chunk.take(key, chunk.heads), chunk.take(value, chunk.heads)
            g = chunk.take(grad, chunk.queries)
            scores, wanted = torch.bmm(q, k.transpose(1, 2)), torch.bmm(g, v.transpose(1, 2))
            probabilities, d_scores = softmax_backward(
                scores.view(chunk.shape),
                wanted.view(chunk.shape),
                lse.view(chunk.shape[:3]),
                ctx.scale,
                chunk.open_keys,
                chunk.mask(tokens, features, ctx.p),
            )
            probabilities, d_scores = probabilities.view(scores.shape), d_scores.view(scores.shape)
            chunk.put(grads[0], chunk.queries, torch.bmm(d_scores, k))
            chunk.put(grads[1], chunk.heads, torch.bmm(d_scores.transpose(1, 2), q))
            chunk.put(grads[2], chunk.heads, torch.bmm(probabilities.transpose(1, 2), g))
        return (*grads, None, None, None, None, None)
