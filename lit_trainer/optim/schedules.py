"""Schedules: from the share of the steps that are done, in [0, 1], to what the base rate is multiplied by.

A schedule is any ``Callable[[float], float]``: one of these, or a function of your own by its import path. Each starts
at 1 and knows neither steps nor warm-up: `lit_trainer.optim.warmup` turns it into a rate for each step of a run.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Schedule: TypeAlias = Callable[[float], float]


@dataclass(frozen=True)
class Constant:
    """Keeps the base rate."""

    def __call__(self, progress: float) -> float:
        """Returns 1."""
        return 1.0


@dataclass(frozen=True)
class Linear:
    """Falls in a straight line from 1 to the floor.

    Args:
        floor: Where it ends, as a share of the base rate.
    """

    floor: float = 0.0

    def __post_init__(self) -> None:
        _check_share("floor", self.floor)

    def __call__(self, progress: float) -> float:
        """Returns the multiplier at a share of the steps."""
        return _above(self.floor, 1.0 - progress)


@dataclass(frozen=True)
class Cosine:
    """Falls along a cosine from 1 to the floor; with more than half a cycle it rises again.

    Args:
        floor: The lowest point, as a share of the base rate.
        num_cycles: Periods of the cosine over the run: a half ends at the floor, one is back at 1.

    Source: Loshchilov and Hutter, SGDR, 2017, equation 5.
    """

    floor: float = 0.0
    num_cycles: float = 0.5

    def __post_init__(self) -> None:
        _check_share("floor", self.floor)
        _check_positive("num_cycles", self.num_cycles)

    def __call__(self, progress: float) -> float:
        """Returns the multiplier at a share of the steps."""
        return _above(self.floor, _half_cosine(2.0 * self.num_cycles * progress))


@dataclass(frozen=True)
class CosineWithRestarts:
    """Falls from 1 to the floor several times, and jumps back to 1 in between; with one cycle it is `Cosine`.

    Args:
        num_cycles: How often it falls. The last fall ends at the floor.
        floor: The lowest point, as a share of the base rate.

    Source: Loshchilov and Hutter, SGDR, 2017.
    """

    num_cycles: int = 2
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check_share("floor", self.floor)
        if not (isinstance(self.num_cycles, int) and self.num_cycles >= 1):
            raise ValueError(f"num_cycles must be a whole number of 1 or more, not {self.num_cycles}")

    def __call__(self, progress: float) -> float:
        """Returns the multiplier at a share of the steps."""
        done = progress >= 1.0
        return _above(self.floor, 0.0 if done else _half_cosine(self.num_cycles * progress % 1.0))


@dataclass(frozen=True)
class Polynomial:
    """Falls as a power of the share that is left; with power 1 it is `Linear`.

    Args:
        power: Above 1 it falls early, below 1 late.
        floor: Where it ends, as a share of the base rate.
    """

    power: float = 2.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check_share("floor", self.floor)
        _check_positive("power", self.power)

    def __call__(self, progress: float) -> float:
        """Returns the multiplier at a share of the steps."""
        return _above(self.floor, (1.0 - progress) ** self.power)


@dataclass(frozen=True)
class OneMinusSqrt:
    """Falls as one minus the root of the progress: fast at first; meant for the decay of `WarmupStableDecay`.

    Args:
        floor: Where it ends, as a share of the base rate.

    Source: Haegele et al., Scaling laws and compute-optimal training beyond fixed training durations, 2024.
    """

    floor: float = 0.0

    def __post_init__(self) -> None:
        _check_share("floor", self.floor)

    def __call__(self, progress: float) -> float:
        """Returns the multiplier at a share of the steps."""
        return _above(self.floor, 1.0 - math.sqrt(progress))


@dataclass(frozen=True)
class InverseSquareRoot:
    """Falls as one over the root of the steps, and never ends.

    Args:
        timescale: After this share of the steps the rate has fallen to 1 / sqrt(2). Where it is the number of warm-up
            steps over the number of those that follow, it is the schedule of the first Transformer.

    Source: Vaswani et al., Attention is all you need, 2017, equation 3.
    """

    timescale: float = 0.1

    def __post_init__(self) -> None:
        _check_positive("timescale", self.timescale)

    def __call__(self, progress: float) -> float:
        """Returns the multiplier at a share of the steps."""
        return 1.0 / math.sqrt(1.0 + progress / self.timescale)


@dataclass(frozen=True)
class WarmupStableDecay:
    """Keeps the base rate and decays at the end; with a decay over all of it, it is the decay alone.

    Args:
        decay_fraction: The share of the steps after the warm-up over which it decays.
        decay: How it decays, as a schedule of its own; linear to 0 where there is none.

    Source: Hu et al., MiniCPM, 2024, equation 1.
    """

    decay_fraction: float = 0.2
    decay: Schedule | None = None

    def __post_init__(self) -> None:
        _check_share("decay_fraction", self.decay_fraction)
        _check_positive("decay_fraction", self.decay_fraction)

    def __call__(self, progress: float) -> float:
        """Returns the multiplier at a share of the steps."""
        start = 1.0 - self.decay_fraction
        if progress <= start:
            return 1.0
        # Rounding must not carry the last step past the end of the decay.
        return (self.decay or Linear())(min(1.0, (progress - start) / self.decay_fraction))


def _half_cosine(turns: float) -> float:
    """Falls from 1 at 0 to 0 at 1, and rises again after that."""
    return 0.5 * (1.0 + math.cos(math.pi * turns))


def _above(floor: float, multiplier: float) -> float:
    return floor + (1.0 - floor) * multiplier


def _check_share(key: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{key} must be in [0, 1], not {value}")


def _check_positive(key: str, value: float) -> None:
    if not (value > 0.0 and math.isfinite(value)):
        raise ValueError(f"{key} must be above 0, not {value}")
