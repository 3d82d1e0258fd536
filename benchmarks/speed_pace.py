"""What a measured process does between two rounds: it reports, waits, and does what it is asked.

A round is a few optimizer steps. While one system runs its round all others wait, so that rounds of different systems
alternate, each in its process, and a change of the machine's pace meets all of them.
"""

import json
import os
import resource
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

GATE = "SPEED_GATE"
"""The environment variable with the two file descriptors to read commands from and to write reports to."""


class Pace:
    """Lets training go on a round at a time.

    Args:
        evaluate: Evaluates all rows once and returns the accuracy.
    """

    def __init__(self, evaluate: Callable[[], float] | None = None) -> None:
        commands, reports = map(int, os.environ[GATE].split(","))
        self._commands, self._reports = os.fdopen(commands), os.fdopen(reports, "w")
        self._evaluate = evaluate
        self._tokens: list[torch.Tensor] = []
        self._steps: list[float] = []
        self._left = 0
        self._last = 0.0

    def count_tokens(self, model: nn.Module) -> None:
        """Counts the real tokens that a model is given."""

        def count(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            self._tokens.append(kwargs["attention_mask"].sum())

        model.register_forward_pre_hook(count, with_kwargs=True, prepend=True)

    def begin(self, precision: str) -> None:
        """Says that the first step can be made, in which precision, and waits until it is wanted."""
        self._tell(precision=precision)
        self._obey()

    def step_done(self) -> None:
        """Notes a step; after the last of a round, reports and waits for the next one."""
        self._left -= 1
        if not self._left:
            _wait_for_device()
        now = time.perf_counter()
        self._steps.append(now - self._last)
        self._last = now
        if not self._left:
            self._report()
            self._obey()

    def _report(self, **more: Any) -> None:
        steps, tokens = self._steps, self._tokens
        self._tell(steps=steps, seconds=sum(steps), tokens=int(sum(map(int, tokens))), mib=peak_mib(), **more)

    def _obey(self) -> None:
        """Does what is asked until that is to train on."""
        while True:
            line = self._commands.readline()
            command = json.loads(line) if line else {"do": "quit"}
            self._steps, self._tokens = [], []
            if command["do"] == "train":
                self._left, self._last = command["steps"], time.perf_counter()
                return
            if command["do"] == "quit" or self._evaluate is None:
                os._exit(0)  # nothing that a run does at its end is wanted
            start = time.perf_counter()
            accuracy = self._evaluate()
            _wait_for_device()
            self._steps = [time.perf_counter() - start]
            self._report(accuracy=accuracy)

    def _tell(self, **found: Any) -> None:
        print(json.dumps(found), file=self._reports, flush=True)


def peak_mib() -> float:
    """Returns the most memory so far: of the GPU, or of the process."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _wait_for_device() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
