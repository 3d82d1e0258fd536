"""The runs of `runs.py` on a machine whose memory is small: a pass over more than so many tokens fails.

Usage: limited_runs.py SETTINGS, those of runs.py and ``limit``, in tokens with their padding (without it where
``padding`` is free), where the pass fails, ``fails_in`` forward or backward, and the one rank that is small,
``small_rank``.
"""

import gc
import json
import sys
import warnings
import weakref
from typing import Any

import torch

from lit_trainer.tasks.sequence_classification import SequenceClassification
from tests.ending import end
from tests.tasks import runs

REASON = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 2.00 GiB."


class LittleMemory(SequenceClassification):
    """Fails like a GPU that is too small, in the forward pass or in the middle of the backward pass."""

    settings: dict[str, Any]
    num_failures = 0

    def configure_model(self) -> None:
        super().configure_model()
        self.states: list[Any] = []
        if self.trainer.global_rank == self.settings.get("small_rank", self.trainer.global_rank):
            self.model.register_forward_pre_hook(self._count_tokens, with_kwargs=True)
            self.model.base_model.encoder.layer[1].register_forward_hook(self._fail)

    def _count_tokens(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if self.states:
            gc.collect()
            assert not any(state() is not None for state in self.states), "what a failed pass computed is still there"
            self.states = []
        mask = kwargs["attention_mask"]
        self.tokens = int(mask.sum()) if self.settings.get("padding") == "free" else mask.numel()

    def _fail(self, module: Any, args: Any, output: torch.Tensor) -> None:
        if self.tokens <= self.settings["limit"]:
            return
        self.states.append(weakref.ref(output))
        if self.settings.get("fails_in") != "backward" or not output.requires_grad:
            self._run_out(None)
        output.register_hook(self._run_out)

    def _run_out(self, gradient: Any) -> None:
        LittleMemory.num_failures += 1
        raise torch.OutOfMemoryError(REASON)


class InFloat64(LittleMemory, runs.InFloat64):
    """In float64, to be compared."""


def run(settings: dict[str, Any]) -> int:
    """Runs, and returns how often memory ran out."""
    LittleMemory.settings, LittleMemory.num_failures = settings, 0
    plain, runs.InFloat64 = runs.InFloat64, InFloat64
    try:
        runs.run(settings)
    finally:
        runs.InFloat64 = plain
    return LittleMemory.num_failures


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(run(json.loads(sys.argv[1])), file=sys.stderr)
    end()
