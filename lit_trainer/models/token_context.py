"""What a running forward pass knows about its rows and tokens: their keys, their positions and how they are laid out.

A model has one `TokenContext`. Its dropout and attention modules ask it which words to draw their masks from. It keeps
the answers that belong to a forward pass in a `Pass`, and gives a layer that is recomputed for the backward pass the
same ones, whatever has been run in between.

Shapes: B rows of the batch, R rows the model sees (a multiple of B: four a question in multiple choice), L tokens, T
real tokens.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from lit_trainer.models.keyed_random import fold, odd_words, row_keys, stream_key
from lit_trainer.models.packing import Packing

_log = logging.getLogger(__name__)
_Function = TypeVar("_Function", bound=Callable[..., Any])
_ATTRIBUTE = "token_context"


def untraced(function: _Function) -> _Function:
    """Keeps a function out of ``torch.compile``: what depends on objects and counters is not to be traced."""
    return cast(_Function, torch.compiler.disable(function))


@dataclass
class Pass:
    """One forward pass.

    Attributes:
        rows: int64 ``[B]``: the rows' keys, or None while nobody has set them.
        mask: ``[R, L]``: not zero on real tokens, or None where the model got none.
        layout: How the real tokens are packed, or None while they are padded.
        calls: How often each site has been called under the same keys. A layer that is used twice differs.
        words: The words of all sites, by the shape of the lines they are for.
    """

    rows: Tensor | None = None
    mask: Tensor | None = None
    layout: Packing | None = None
    calls: dict[int, int] = field(default_factory=dict)
    words: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def keys(self, lines: tuple[int, ...], device: torch.device) -> Tensor | None:
        """Returns the int64 keys of lines, flat, or None if it cannot tell whose they are.

        Args:
            lines: ``(R,)``, ``(R * L,)``, ``(R, L)``, or ``(1, T)`` where rows are packed.
            device: Where the keys are wanted.
        """
        layout = self.layout
        if layout is None or lines not in {(1, layout.num_tokens), (layout.num_tokens,)}:
            return self._padded_keys(lines, device)
        padded = self._padded_keys(layout.shape, device)
        return None if padded is None else layout.pack(padded.view(layout.shape)).flatten()

    def _padded_keys(self, lines: tuple[int, ...], device: torch.device) -> Tensor | None:
        if self.rows is None or not self.rows.numel():
            return None
        rows = self.rows.to(device)
        known = {rows.numel(), rows.numel() if self.mask is None else self.mask.shape[0]}
        if lines[0] % rows.numel() or (len(lines) > 1 and lines[0] not in known):
            return None
        if len(lines) == 1 or lines[0] != rows.numel():
            rows = fold(rows[:, None], torch.arange(lines[0] // rows.numel(), device=device)).flatten()
        return rows if len(lines) == 1 else fold(rows[:, None], self._positions(lines, device)).flatten()

    def _positions(self, lines: tuple[int, ...], device: torch.device) -> Tensor:
        """Counts from each row's first real token, so that padding on the left changes nothing."""
        positions = torch.arange(lines[1], device=device)
        if self.mask is None or self.mask.shape != lines:
            return positions
        return positions - (self.mask != 0).to(torch.uint8).argmax(1, keepdim=True)


class TokenContext:
    """The forward passes of one model.

    Attributes:
        now: The forward pass that runs, or the last one.
        seed: The run's seed; None while the model's dropout is not keyed.
    """

    def __init__(self) -> None:
        self.now = Pass()
        self.seed: int | None = None
        self._salts: list[int] = []
        self._has_warned = False

    @classmethod
    def of(cls, model: nn.Module) -> "TokenContext":
        """Returns the model's context, which is made at the first call."""
        context = getattr(model, _ATTRIBUTE, None)
        if not isinstance(context, cls):
            context = cls()
            setattr(model, _ATTRIBUTE, context)
            base = getattr(model, "base_model", model)
            base.register_forward_pre_hook(_Entry(context, base), with_kwargs=True, prepend=True)
        return context

    def set_rows(self, epoch: int, draws: Tensor, pass_index: int = 0) -> None:
        """Says which rows the next forward pass is for. What follows keeps these keys until the next call.

        Args:
            epoch: The epoch of the plan.
            draws: int64 ``[B]``: the draws' numbers in the epoch's plan.
            pass_index: Which of several forward passes over the same batch this is.

        Raises:
            ValueError: If the model's dropout is not keyed.
        """
        if self.seed is None:
            raise ValueError("install keyed dropout before telling it the rows")
        self.now = Pass(rows=row_keys(self.seed, epoch, draws, pass_index))

    def site(self, name: str) -> "Site":
        """Registers a place in the model that draws words of its own."""
        self._salts.append(stream_key(name))
        return Site(self, len(self._salts) - 1)

    def words(self, site: int, lines: tuple[int, ...], device: torch.device) -> Tensor | None:
        """Returns an odd int32 for each line that a site works on, of shape ``lines``; None if the rows are unknown."""
        now = self.now
        if (words := now.words.get(lines)) is None:
            if (keys := now.keys(lines, device)) is None:
                self._warn(lines)
                return None
            words = now.words[lines] = odd_words(keys ^ _salts(tuple(self._salts), device)[:, None])
        call = now.calls[site] = now.calls.get(site, -1) + 1
        if call:
            keys = now.keys(lines, device)
            assert keys is not None
            return odd_words(fold(keys ^ self._salts[site], call)).view(lines)
        return words[site].view(lines)

    @contextmanager
    def restored(self, state: Pass, calls: Mapping[int, int]) -> Iterator[None]:
        """Puts back an earlier pass, as it was when its sites had been called that often."""
        current, self.now = self.now, Pass(state.rows, state.mask, state.layout, dict(calls), state.words)
        try:
            yield
        finally:
            self.now = current

    def _warn(self, lines: tuple[int, ...]) -> None:
        if self.seed is not None and not self._has_warned:
            self._has_warned = True
            rows = "no rows were set" if self.now.rows is None else f"{self.now.rows.numel()} rows were set"
            _log.warning("ordinary dropout for lines of shape %s, as %s: splits of a batch differ", lines, rows)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the running pass out of copies and pickles."""
        return {**self.__dict__, "now": Pass()}


@dataclass(frozen=True)
class Site:
    """A place in the model that draws words of its own."""

    context: TokenContext
    index: int

    def words(self, lines: tuple[int, ...], device: torch.device) -> Tensor | None:
        """Returns an odd int32 for each line, or None if the rows are unknown."""
        return self.context.words(self.index, lines, device)


class _Entry:
    """The hook before the base model: begins a pass, and sees to it that recomputed layers get it back."""

    def __init__(self, context: TokenContext, base: nn.Module) -> None:
        self.context = context
        self.checkpointed = [module for module in base.modules() if hasattr(module, "gradient_checkpointing")]

    @untraced
    def __call__(self, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        mask = argument(base, args, kwargs, "attention_mask")
        now = self.context.now
        is_flat = isinstance(mask, Tensor) and mask.dim() == 2
        self.context.now = Pass(rows=now.rows, mask=mask if is_flat else None, calls=now.calls)
        for module in self.checkpointed:  # at each pass, because checkpointing may be turned on at any time
            function = module.__dict__.get("_gradient_checkpointing_func")
            if function is not None and not isinstance(function, _Recomputed):
                module.__dict__["_gradient_checkpointing_func"] = _Recomputed(function, self.context)


class _Recomputed:
    """A checkpoint function whose second run of a layer sees the pass that the first one saw."""

    def __init__(self, checkpoint: Callable[..., Any], context: TokenContext) -> None:
        self.checkpoint = checkpoint
        self.context = context

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        state, calls = self.context.now, dict(self.context.now.calls)
        is_first = True

        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_first
            if is_first:
                is_first = False
                return function(*args, **kwargs)
            with self.context.restored(state, calls):
                return function(*args, **kwargs)

        return self.checkpoint(run, *args, **kwargs)


def argument(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> Any:
    """Returns an argument of a module's forward by its name, however it was passed, or None."""
    if name in kwargs or not args:
        return kwargs.get(name)
    names = _parameter_names(type(module).forward)
    return args[names.index(name)] if name in names[: len(args)] else None


@functools.cache
def _parameter_names(forward: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(forward).parameters)[1:]


@functools.lru_cache
def _salts(salts: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # kept for later passes, which may need it for their gradients
        return torch.tensor(salts, device=device)
