"""Running the blocks of a Hugging Face model on real tokens only.

Between the embeddings and the head a block sees one row of all T real tokens instead of B padded ones. Norms and
projections work token by token; attention keeps the rows apart. Before the first block the states ``[B, L, D]`` are
packed to ``[1, T, D]`` and after the last one they are put back among zeros, so embeddings, poolers and heads see what
they always saw.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lit_trainer.batch import LENGTHS
from lit_trainer.models import attention
from lit_trainer.models.packing import Packing
from lit_trainer.models.token_context import TokenContext, argument, untraced

_NEED_PADDING = ("cache", "past_key_values", "encoder_hidden_states")
_RECORDS = ("output_attentions", "output_hidden_states")
_ARGUMENTS = ("input_ids", "inputs_embeds", "attention_mask", "use_cache", *_RECORDS, *_NEED_PADDING)
_REPLACED = ("sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")
_Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def serves(model: nn.Module) -> str | None:
    """Returns why a model cannot be run without padding, or None if it can.

    Args:
        model: A Hugging Face model. If its weights are there, whole, two short rows are run through it both ways.
    """
    if installed(model) is not None:
        return None
    try:
        install(model).remove()
    except ValueError as reason:
        return str(reason)
    return None


def install(model: nn.Module) -> "PaddingFree":
    """Runs a model without padding from now on, in training and evaluation.

    Its forward takes ``lengths`` from then on: the number of real tokens of each row, where the host knows them. It
    spares an accelerator from being waited for.

    A call that asks for what only the padded run has (hidden states, a cache of keys and values, a mask of four axes,
    states of an encoder) is run padded.

    Args:
        model: A Hugging Face model.

    Raises:
        ValueError: If the model cannot be run without padding; the message says why.
    """
    if (free := installed(model)) is not None:
        return free
    blocks = _blocks(model)
    assert isinstance(model, PreTrainedModel)
    free = PaddingFree(model, blocks)
    try:
        _check(model, free)
    except ValueError:
        free.remove()
        raise
    return free


def installed(model: nn.Module) -> "PaddingFree | None":
    """Returns what makes a model run without padding, or None if nothing does.

    Args:
        model: Any model.
    """
    owners = (getattr(hook, "__self__", None) for hook in model._forward_pre_hooks.values())
    return next((owner for owner in owners if isinstance(owner, PaddingFree)), None)


class PaddingFree:
    """A model's hooks that pack before the first block and unpack after the last.

    Args:
        model: The model.
        blocks: Its blocks, in order.

    Attributes:
        is_on: Whether rows are packed; may be switched at any time.
    """

    def __init__(self, model: PreTrainedModel, blocks: Sequence[nn.Module]) -> None:
        self.is_on = True
        self._context = TokenContext.of(model)
        self._first = blocks[0]
        self._lengths: Sequence[int] | None = None
        self._shared: dict[int, tuple[Any, Any]] = {}
        self._model = model
        self._implementation = model.config._attn_implementation
        self._takes_cache = "use_cache" in inspect.signature(model.base_model.forward).parameters
        attention.install(model, self._context, _REPLACED)
        self._handles = [
            model.register_forward_pre_hook(self._take_lengths, with_kwargs=True, prepend=True),
            model.base_model.register_forward_pre_hook(self._enter, with_kwargs=True),
            model.base_model.register_forward_hook(self._leave, always_call=True),
            *(block.register_forward_pre_hook(self._before, with_kwargs=True) for block in blocks),
            blocks[-1].register_forward_hook(self._after),
        ]

    def remove(self) -> None:
        """Takes the hooks away; the model is what it was."""
        for handle in self._handles:
            handle.remove()
        self._model.set_attn_implementation(self._implementation)

    def _take_lengths(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments | None:
        lengths = kwargs.get(LENGTHS)
        self._lengths = lengths.tolist() if isinstance(lengths, Tensor) else lengths
        return None if lengths is None else (args, {name: value for name, value in kwargs.items() if name != LENGTHS})

    @untraced
    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments | None:
        mask = self._mask(module, args, kwargs)
        lengths, self._lengths = self._lengths, None
        layout = None if mask is None else Packing(mask, lengths)
        if layout is None or not layout.num_tokens:
            return None
        self._context.now = replace(self._context.now, layout=layout, words={})
        attention.set_packing(True)
        return (args, {**kwargs, "use_cache": False}) if self._takes_cache else None

    def _mask(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """Returns which tokens are real, ``[B, L]``, or None if this call is to run padded."""
        given = {name: argument(module, args, kwargs, name) for name in _ARGUMENTS}
        tokens = given["inputs_embeds"] if given["input_ids"] is None else given["input_ids"]
        mask = given["attention_mask"]
        if not self.is_on or tokens is None or any(given[name] is not None for name in _NEED_PADDING):
            return None
        if given["use_cache"] or any(given[name] or getattr(module.config, name, False) for name in _RECORDS):
            return None
        if mask is None:
            return torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        return mask if mask.shape == tokens.shape[:2] else None

    @untraced
    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        attention.set_packing(False)
        self._shared.clear()
        if self._context.now.layout is not None:
            self._context.now = replace(self._context.now, layout=None, words={})

    @untraced
    def _before(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments | None:
        layout = self._context.now.layout
        if layout is None:
            return None
        is_first = block is self._first  # the others are given packed states already
        if args:
            states = layout.pack(args[0]) if is_first else args[0]
            args = (states, *(self._packed(value, layout) for value in args[1:]))
        packed = {name: self._packed(value, layout) for name, value in kwargs.items() if name != "hidden_states"}
        if "hidden_states" in kwargs:
            states = kwargs["hidden_states"]
            packed["hidden_states"] = layout.pack(states) if is_first else states
        return args, packed

    def _packed(self, value: Any, layout: Packing) -> Any:
        """Packs what belongs to tokens, such as rotary embeddings; once for all blocks, which are given the same."""
        if isinstance(value, tuple):
            return tuple(self._packed(each, layout) for each in value)
        if not isinstance(value, Tensor) or tuple(value.shape[:2]) not in {layout.shape, (1, layout.shape[1])}:
            return value
        if id(value) not in self._shared:
            self._shared[id(value)] = (value, layout.pack(value))  # the value is kept, so that its id stays its own
        return self._shared[id(value)][1]

    @untraced
    def _after(self, block: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        layout = self._context.now.layout
        if layout is None:
            return None
        if isinstance(output, tuple):
            return (layout.unpack(output[0]), *output[1:])
        return layout.unpack(output)


def _blocks(model: nn.Module) -> Sequence[nn.Module]:
    """Returns the blocks of a model.

    Raises:
        ValueError: If it is clear from its kind that the model cannot be run without padding.
    """
    name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise ValueError(f"{name} is no model of Transformers")
    config = model.config
    if config.is_encoder_decoder:
        raise ValueError(f"{name} has an encoder and a decoder, which pad their rows differently")
    if not model._can_set_attn_implementation():
        raise ValueError(f"{name} has an attention of its own instead of Transformers' AttentionInterface")
    if not model._supports_flash_attn:
        raise ValueError(f"{name} has an attention that needs more than queries, keys and values")
    if config._attn_implementation not in {attention.NAME, *_REPLACED}:
        raise ValueError(f"{name} is set to {config._attn_implementation} attention, which has no form without padding")
    if getattr(config, "layerdrop", 0):
        raise ValueError(f"{name} leaves out blocks at random (layerdrop {config.layerdrop})")
    wanted = getattr(config, "num_hidden_layers", None)
    found = list(_lists(model.base_model, wanted))
    if len(found) != 1:
        raise ValueError(f"{name} has {len(found)} lists of {wanted} blocks, not one")
    return list(found[0])


def _lists(module: nn.Module, length: int | None) -> Iterator[nn.ModuleList]:
    """Yields the outermost lists of that many modules."""
    for child in module.children():
        if isinstance(child, nn.ModuleList) and len(child) == length:
            yield child
        else:
            yield from _lists(child, length)


def _check(model: PreTrainedModel, free: PaddingFree) -> None:
    """Runs two short rows both ways.

    Raises:
        ValueError: If the results differ, or there are none.
    """
    base = model.base_model
    weight = next(base.parameters())
    if weight.is_meta or hasattr(weight, "device_mesh"):  # not there yet, or sharded over ranks
        return
    lengths = (11, 4)
    ids = torch.arange(2 * lengths[0], device=weight.device).view(2, -1) * 7 % max(1, base.config.vocab_size - 4) + 4
    mask = torch.arange(lengths[0], device=weight.device) < torch.tensor(lengths, device=weight.device)[:, None]
    ids = ids.where(mask, base.config.pad_token_id or 0).clamp(max=base.config.vocab_size - 1)
    states = []
    with _evaluating(base):
        for free.is_on in (False, True):
            try:
                states.append(base(input_ids=ids, attention_mask=mask.long())[0][mask])
            except Exception as error:
                raise ValueError(f"{type(model).__name__} fails in a trial without padding: {error}") from error
    padded, packed = states
    scale = float(padded.abs().max())
    difference = float((padded - packed).abs().max()) / scale if scale else 0.0
    if not difference <= _TOLERANCE.get(padded.dtype, 0.0):
        raise ValueError(f"{type(model).__name__} gives other results without padding: they differ by {difference:.1e}")


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), torch.autocast(next(model.parameters()).device.type, enabled=False):
            yield
    finally:
        for module, mode in modes:
            module.training = mode
