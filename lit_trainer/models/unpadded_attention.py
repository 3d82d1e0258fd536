"""Attention over packed rows, by what suits the device.

On a CPU one batch for each length. On CUDA the variable-length FlashAttention that comes with torch, where nothing is
dropped and the numbers are of half precision. Elsewhere, and for dropout on CUDA, the rows are padded for the attention
alone: FlashAttention draws its dropout from a stream and does not let it be keyed.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lit_trainer.models.line_dropout import column_words
from lit_trainer.models.packed_attention import attend
from lit_trainer.models.packing import Packing, Rows


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Packing,
    is_causal: bool,
    window: int | None,
    scale: float,
    words: Tensor | None,
    p: float,
) -> Tensor:
    """Returns what each token sees of its own row: ``[1, T, H, D]``.

    Args:
        query: ``[1, H, T, D]``.
        key: ``[1, K, T, D]``, H a multiple of K.
        value: ``[1, K, T, D]``.
        layout: Where the rows are.
        is_causal: Whether a token sees itself and those before it only.
        window: How many tokens it sees on a side, itself included; None for all.
        scale: What the products of queries and keys are multiplied by.
        words: int32 ``[1, T]``, odd: what dropout is keyed by. Without it dropout is drawn from the device's stream.
        p: The probability of a look being dropped.
    """
    device = query.device
    if torch.is_autocast_enabled(device.type) and query.dtype != torch.float64:
        query, key, value = (x.to(torch.get_autocast_dtype(device.type)) for x in (query, key, value))
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    if p and words is None:
        words = torch.randint(-(2**31), 2**31, (1, layout.num_tokens), dtype=torch.int32, device=device) | 1
    if device.type == "cpu":
        if words is None and query.dtype != torch.bfloat16:  # in which torch's kernel is the slower one
            return _by_length(query, key, value, layout.rows(is_causal, window), scale)[None]
        features = None if words is None else column_words(query.shape[1], layout.max_length, device)
        flat = None if words is None else words.flatten()
        return attend(query, key, value, layout.rows(is_causal, window), scale, flat, features, p)[None]
    if words is None and _has_flash(query, value):
        return _flash(query, key, value, layout, is_causal, window, scale)[None]
    return _repadded(query, key, value, layout, is_causal, window, scale, words, p)


def _by_length(query: Tensor, key: Tensor, value: Tensor, rows: Rows, scale: float) -> Tensor:
    sizes = [span.num_rows * span.length for span in rows.spans]
    seen = []
    for span, open_keys, *parts in zip(
        rows.spans, rows.open_keys, query.split(sizes), key.split(sizes), value.split(sizes), strict=True
    ):
        q, k, v = (part.unflatten(0, (span.num_rows, span.length)).transpose(1, 2) for part in parts)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=open_keys, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        seen.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(seen)


def _has_flash(query: Tensor, value: Tensor) -> bool:
    return (
        query.device.type == "cuda"
        and query.dtype in (torch.float16, torch.bfloat16)
        and query.shape[2] == value.shape[2] <= 256
        and query.shape[2] % 8 == 0
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def _flash(
    query: Tensor, key: Tensor, value: Tensor, layout: Packing, is_causal: bool, window: int | None, scale: float
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    side = -1 if window is None else window - 1
    out = varlen_attn(
        query,
        key,
        value,
        layout.boundaries,
        layout.boundaries,
        layout.max_length,
        layout.max_length,
        scale=scale,
        window_size=(side, 0 if is_causal else side),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(out, Tensor)
    return out


def _repadded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Packing,
    is_causal: bool,
    window: int | None,
    scale: float,
    words: Tensor | None,
    p: float,
) -> Tensor:
    num_rows, length = layout.shape
    rows = layout.padded_rows(is_causal, window)
    query, key, value = (layout.unpack(x[None]) for x in (query, key, value))
    if words is None:
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        has_groups = query.shape[1] != key.shape[1]
        seen = F.scaled_dot_product_attention(
            query, key, value, attn_mask=rows.open_keys[0], scale=scale, enable_gqa=has_groups
        ).transpose(1, 2)
    else:
        query, key, value = (x.flatten(0, 1) for x in (query, key, value))
        features = column_words(query.shape[1], length, query.device)
        flat = layout.unpack(words[..., None]).flatten()
        seen = attend(query, key, value, rows, scale, flat, features, p).view(num_rows, length, *query.shape[1:])
    return layout.pack(seen)
