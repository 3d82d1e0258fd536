"""The attention function that models call through Transformers' AttentionInterface.

It is torch's own scaled dot-product attention, except where rows are packed or dropout is keyed.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import create_position_bias_mask, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lit_trainer.models import unpadded_attention
from lit_trainer.models.line_dropout import column_words, drop
from lit_trainer.models.packed_attention import attend
from lit_trainer.models.packing import Rows, Span, open_to
from lit_trainer.models.token_context import Site, TokenContext, untraced

NAME = "lit_trainer"
_SITE = "token_site"
_packs = False


def install(model: nn.Module, context: TokenContext, instead_of: Collection[str] = ("sdpa",)) -> bool:
    """Makes a model use this attention; a saved model does not remember it.

    Args:
        model: The model.
        context: The model's context.
        instead_of: The implementations that may be replaced.

    Returns:
        Whether the model uses it now.
    """
    if not isinstance(model, PreTrainedModel) or not model._can_set_attn_implementation():
        return False
    if model.config._attn_implementation not in {NAME, *instead_of}:
        return False
    model.set_attn_implementation(NAME)
    for name, module in model.named_modules():
        if _SITE not in module.__dict__ and (hasattr(module, "is_causal") or "attention" in _kind(module)):
            setattr(module, _SITE, context.site(name))
    return True


def set_packing(is_on: bool) -> None:
    """Says whether the model that runs now packs its rows, so that no masks need be made for it."""
    global _packs
    _packs = is_on


def mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """Makes the mask of a model that runs padded, as for torch's own attention."""
    made: Tensor | None = None if _packs else sdpa_mask(*args, **kwargs)
    return made


@untraced
def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Has the signature that the AttentionInterface asks for.

    Args:
        module: The attention module that calls.
        query: ``[R, H, L, D]``, or ``[1, H, T, D]`` where rows are packed.
        key: ``[R, K, L, D]`` or ``[1, K, T, D]``.
        value: Like ``key``.
        attention_mask: bool or added ``[R, 1, L, L]``, or None.
        dropout: The probability of a look being dropped.
        scaling: What the products of queries and keys are multiplied by.
        is_causal: Whether a token sees itself and those before it only; by default what the module says.
        kwargs: What else the model has to say; a sliding window counts where rows are packed.

    Returns:
        ``[R, L, H, D]`` or ``[1, T, H, D]``, and no weights.
    """
    site: Site | None = getattr(module, _SITE, None)
    layout = None if site is None else site.context.now.layout
    words = None
    if dropout and site is not None:
        words = site.words((query.shape[0], query.shape[2]), query.device)
    if layout is None and words is None:
        out, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **kwargs
        )
        return out, None
    strange = ("softcap", "s_aux") if layout is None else ("softcap", "s_aux", "position_bias")
    if unknown := [name for name in strange if kwargs.get(name) is not None]:
        raise ValueError(f"attention with packed rows or keyed dropout knows no {', '.join(unknown)}")
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if layout is not None:
        window = kwargs.get("sliding_window")
        return unpadded_attention.attention(query, key, value, layout, causal, window, scale, words, dropout), None
    assert words is not None
    bias = kwargs.get("position_bias")
    return _padded(query, key, value, attention_mask, bias, words, dropout, scale, causal), None


def _kind(module: nn.Module) -> str:
    return type(module).__name__.lower()


def _padded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    words: Tensor,
    p: float,
    scale: float,
    is_causal: bool,
) -> Tensor:
    """Returns attention with keyed dropout over padded rows: ``[R, L, H, D]``."""
    num_rows, num_heads, length, _ = query.shape
    is_self = key.shape[2] == length
    if bias is None and is_self and (mask is None or (mask.dtype == torch.bool and mask.shape[1] == 1)):
        open_keys = open_to(length, is_causal, None, query.device) if mask is None else mask.contiguous()
        rows = Rows([Span(0, num_rows, length)], [open_keys])
        query, key, value = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
        features = column_words(num_heads, length, query.device)
        out = attend(query, key, value, rows, scale, words.flatten(), features, p)
        return out.view(num_rows, length, num_heads, -1)
    return _composed(query, key, value, mask, bias, words, p, scale, is_causal)


def _composed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    words: Tensor,
    p: float,
    scale: float,
    is_causal: bool,
) -> Tensor:
    """Does the same for what is added to the scores and for looks at other rows, one operation at a time."""
    if key.shape[1] != query.shape[1]:
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    if bias is not None:
        mask = create_position_bias_mask(bias, mask, is_causal, query, key)
    elif mask is None and is_causal and query.shape[2] > 1:
        mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
    scores = query @ key.transpose(2, 3) * scale
    if mask is not None:
        lowest = torch.finfo(scores.dtype).min
        scores = scores.masked_fill(~mask, lowest) if mask.dtype == torch.bool else scores + mask
    probabilities = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
    seen: Tensor = drop(probabilities, words, p) @ value
    return seen.transpose(1, 2).contiguous()


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, mask)
