"""Where the time of training goes: consecutive phases, on the host's clock or on the accelerator's own.

A CUDA device works behind the host's back, so what a phase took there is between two events on its stream. Recording
one waits for nothing; only `read` waits, for the last of them.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch

DATA, FORWARD, BACKWARD, OPTIMIZER, REST = PHASES = ("data", "forward", "backward", "optimizer", "rest")
"""Waiting for a batch, the three parts of a step, and what is between them: callbacks, logging, the loop itself."""


class Timeline(Protocol):
    """Adds up how long each phase took.

    Attributes:
        num_idle: Ends of optimizer steps at which an accelerator had done all that the host had asked of it.
    """

    num_idle: int

    def mark(self, phase: str) -> None:
        """Ends a phase, which began at the last mark."""

    def restart(self) -> None:
        """Lets what was since the last mark count for nothing."""

    def read(self) -> dict[str, float]:
        """Returns the seconds of each phase since the last reading."""


class HostTimeline:
    """Phases on the host's clock, which is where a CPU works.

    Args:
        now: The clock, in seconds.
    """

    num_idle = 0

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._last = now()

    def mark(self, phase: str) -> None:
        """Ends a phase, which began at the last mark."""
        now = self._now()
        self._seconds[phase] += now - self._last
        self._last = now

    def restart(self) -> None:
        """Lets what was since the last mark count for nothing."""
        self._last = self._now()

    def read(self) -> dict[str, float]:
        """Returns the seconds of each phase since the last reading."""
        seconds, self._seconds = self._seconds, dict.fromkeys(PHASES, 0.0)
        return seconds


class CudaTimeline:
    """Phases on the clock of the device, and how often it ran out of work.

    Args:
        make_event: Makes an event that can be recorded, timed and asked whether it has been reached.
    """

    def __init__(self, make_event: Callable[[], Any] = lambda: torch.cuda.Event(enable_timing=True)) -> None:
        self._make_event = make_event
        self._free: deque[Any] = deque()
        self._marks: list[tuple[str | None, Any]] = []
        self.num_idle = 0
        self.restart()

    def mark(self, phase: str) -> None:
        """Ends a phase, which began at the last mark."""
        if phase == OPTIMIZER:
            # The last event was before the optimizer: a device that is past it already waits for the host.
            self.num_idle += bool(self._marks[-1][1].query())
        self._record(phase)

    def restart(self) -> None:
        """Lets what was since the last mark count for nothing."""
        self._record(None)

    def _record(self, phase: str | None) -> None:
        event = self._free.popleft() if self._free else self._make_event()
        event.record()
        self._marks.append((phase, event))

    def read(self) -> dict[str, float]:
        """Returns the seconds of each phase since the last reading; waits until the device has come so far."""
        seconds = dict.fromkeys(PHASES, 0.0)
        self._marks[-1][1].synchronize()
        for (_, before), (phase, event) in zip(self._marks, self._marks[1:], strict=False):
            if phase is not None:
                seconds[phase] += before.elapsed_time(event) / 1e3  # of milliseconds
        *read, last = self._marks
        self._free.extend(event for _, event in read)
        self._marks = [last]
        return seconds
