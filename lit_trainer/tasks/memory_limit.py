"""Micro-batches that do not fit into memory: computed in parts, so that the gradients stay the same.

Which rows make an optimizer step, and what their losses are divided by, is settled before anything is computed, and
keyed dropout does not ask which rows share a pass. So a rank that runs out of memory can compute its micro-batch in
parts by itself: the others need not know, they wait for it where they always meet.
"""

import logging
import math
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from lightning.pytorch.utilities.memory import garbage_collection_cuda, is_oom_error
from torch import Tensor

from lit_trainer.batch import ROW, STEP_LABELS, Batch, model_inputs

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

LESS_MEMORY = (
    "model.gradient_checkpointing: true, configs/overlays/precision_bf16.yaml, a smaller data.max_length or a smaller "
    "model take less"
)


class MemoryLimit:
    """How much of a batch is computed at once: all of it, until that has run out of memory.

    Args:
        refusal: Says why a batch cannot be computed in parts, or None where it can.

    Attributes:
        max_size: The largest rows times width that is computed at once; infinite before memory has run out.
    """

    def __init__(self, refusal: Callable[[], str | None]) -> None:
        self.max_size = math.inf
        self._refusal = refusal
        self._failed: str | None = None

    def attempt(self, batch: Batch, function: Callable[[Batch], _Result]) -> _Result | None:
        """Returns what a function makes of a whole batch; None if it is to be computed in parts.

        Args:
            batch: The batch.
            function: Never returns None.
        """
        if math.isfinite(self.max_size) and len(self._parts(batch)) > 1:
            return None
        return self._try(batch, function)

    def in_parts(self, batch: Batch, function: Callable[[Batch], _Result]) -> Iterator[_Result]:
        """Yields what a function makes of each part of a batch; a part that does not fit is halved.

        Args:
            batch: The batch.
            function: Never returns None. It must leave nothing behind when it fails.
        """
        waiting = [batch]
        while waiting:
            first, *rest = self._parts(waiting.pop())
            waiting += rest
            if rest:
                waiting.append(first)
                continue
            result = self._try(first, function)
            if result is None:
                waiting.append(first)
            else:
                yield result
        if self._failed is not None:
            what, self._failed = self._failed, None
            _log.warning(
                "%s: at most %d %s at a time from here on, in more parts; steps, gradients and results stay the same",
                what, self.max_size, _unit(batch), extra={"on_every_rank": True},
            )  # fmt: skip

    def shrink(self, batch: Batch, reason: str) -> None:
        """Takes note that a batch, or a part of one, does not fit.

        Args:
            batch: What did not fit.
            reason: What the allocator said.

        Raises:
            ValueError: If it cannot be computed in smaller parts.
        """
        rows, width = _num_rows(batch), _width(batch)
        what = f"{_rank()}out of memory on {rows} row{'s' * (rows != 1)} of {width} {_unit(batch)}"
        why_not = self._refusal()
        if rows == 1:
            raise ValueError(f"{what}, and there are no fewer: {LESS_MEMORY} ({reason})")
        if why_not is not None:
            raise ValueError(f"{what}, and {why_not}; {LESS_MEMORY} ({reason})")
        self._failed = self._failed or what
        self.max_size = min(self.max_size, -(-rows // 2) * width)
        if torch.cuda.is_initialized():
            garbage_collection_cuda()

    def _try(self, batch: Batch, function: Callable[[Batch], _Result]) -> _Result | None:
        try:
            return function(batch)
        except RuntimeError as error:
            reason = told_of_memory(error)
            if reason is None:
                raise
        # Only here, where the error is gone and with it all that its frames held, is there memory again.
        self.shrink(batch, reason)
        return None

    def _parts(self, batch: Batch) -> list[Batch]:
        """Cuts a batch into as few parts as the limit allows, of similar lengths and numbers of rows."""
        rows = _num_rows(batch)
        at_once = rows if math.isinf(self.max_size) else max(1, int(self.max_size // max(1, _width(batch))))
        number = -(-rows // at_once) if rows else 1
        return [batch] if number == 1 else [_taken(batch, rows, slice(start, None, number)) for start in range(number)]


def told_of_memory(error: RuntimeError) -> str | None:
    """Returns what an error says of memory that is not there, in short; None if it is another error.

    What its frames hold is let go.
    """
    if not (isinstance(error, torch.OutOfMemoryError) or is_oom_error(error)):
        return None
    traceback.clear_frames(error.__traceback__)
    return " ".join(". ".join(str(error).split(". ")[:2]).split()).rstrip(".")


def _rank() -> str:
    return f"rank {dist.get_rank()}: " if dist.is_initialized() and dist.get_world_size() > 1 else ""


def _num_rows(batch: Batch) -> int:
    return len(batch[ROW])


def _width(batch: Batch) -> int:
    """Returns how many values a row has, in the largest of what the model takes: its tokens, padded."""
    sizes = [value.numel() for value in model_inputs(batch).values() if isinstance(value, Tensor)]
    return max(sizes, default=0) // max(1, _num_rows(batch))


def _unit(batch: Batch) -> str:
    return "tokens" if "input_ids" in batch else "values"


def _taken(value: Any, rows: int, which: slice) -> Any:
    """Returns some rows of everything that has as many of them."""
    if isinstance(value, dict):
        return {key: entry if key == STEP_LABELS else _taken(entry, rows, which) for key, entry in value.items()}
    is_by_row = isinstance(value, Tensor | list | tuple) and not (isinstance(value, Tensor) and value.dim() == 0)
    return value[which] if is_by_row and len(value) == rows else value
