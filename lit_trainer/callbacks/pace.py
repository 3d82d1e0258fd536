"""How fast training goes and how long it will take."""

import time
from collections.abc import Callable


def clock(seconds: float) -> str:
    """Returns a duration as on a clock: ``1:05`` or ``2:00:09``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Pace:
    """Measures optimizer steps per second of training, evaluations apart, and the time left with them.

    Args:
        step: The step that the run starts at.
        now: The clock, in seconds.
    """

    def __init__(self, step: int, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._first_step = self._last_step = step
        self._start = self._last = now()
        self._paused_at: float | None = None
        self._per_second: float | None = None

    @property
    def num_steps(self) -> int:
        """Steps since the start."""
        return self._last_step - self._first_step

    @property
    def seconds(self) -> float:
        """Since the start, evaluations included."""
        return self._now() - self._start

    def pause(self) -> None:
        """Begins a time that is no training."""
        self._paused_at = self._now()

    def resume(self) -> None:
        """Ends a time that is no training."""
        if self._paused_at is not None:
            self._last += self._now() - self._paused_at
            self._paused_at = None

    def reach(self, step: int) -> None:
        """Notes that training is at a step."""
        now = self._now()
        if step <= self._last_step or now <= self._last:
            return
        latest = (step - self._last_step) / (now - self._last)
        self._per_second = latest if self._per_second is None else (self._per_second + latest) / 2
        self._last_step, self._last = step, now

    @property
    def rate(self) -> str:
        """Steps per second lately, or seconds per step, in words; empty before the first."""
        if self._per_second is None:
            return ""
        if self._per_second < 1:
            return f"{1 / self._per_second:.1f} s/step"
        return f"{self._per_second:.1f} steps/s"

    def left(self, total: int | None) -> str:
        """Returns the time left in words, as the run went so far; empty where it cannot be told.

        Args:
            total: Steps of the whole run.
        """
        if total is None or self.num_steps == 0 or self._last_step >= total:
            return ""
        return f"{clock(self.seconds / self.num_steps * (total - self._last_step))} left"
