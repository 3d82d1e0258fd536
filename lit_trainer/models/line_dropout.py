"""Dropout on lines of which each has a word of its own, with its gradient."""

import functools
from typing import Any

import torch
from torch import Tensor

from lit_trainer.models.fused_kernels import Mask, dropout
from lit_trainer.models.keyed_random import fold, odd_words


def drop(x: Tensor, words: Tensor, p: float) -> Tensor:
    """Returns ``x`` with elements dropped and the others scaled; the same words give the same mask.

    Args:
        x: ``[..., W]``, or ``[R, H, Q, K]`` for the probabilities of attention.
        words: int32, odd: one for each line, of the shape of ``x`` without its last axis. For attention ``[R, Q]``: the
            heads tell themselves apart.
        p: The probability of an element being dropped, in [0, 1].
    """
    lines = x if x.dim() == 4 else x.reshape(1, 1, -1, x.shape[-1])
    if round(p * 2**31) == 2**31:
        return x * 0.0
    features = column_words(lines.shape[1], lines.shape[3], x.device)
    out: Tensor = _Drop.apply(lines, words.reshape(lines.shape[0], lines.shape[2]), features, p)
    return out.view(x.shape)


def column_words(num_heads: int, width: int, device: torch.device) -> Tensor:
    """Returns the odd int32 of each column of each head, ``[num_heads, width]``, the same in every run."""
    capacity = max(64, 1 << (width - 1).bit_length())  # few tables for many lengths
    return _column_words(num_heads, capacity, device)[:, :width]


@functools.lru_cache
def _column_words(num_heads: int, width: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # kept for later passes, which may need them for their gradients
        heads = fold(torch.arange(num_heads, device=device), 0)
        return odd_words(fold(heads[:, None], torch.arange(width, device=device)))


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tokens: Tensor, features: Tensor, p: float) -> Tensor:
        ctx.save_for_backward(tokens, features)
        ctx.p = p
        return dropout(x, Mask(tokens, features, p))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        tokens, features = ctx.saved_tensors
        return _Drop.apply(grad, tokens, features, ctx.p), None, None, None
