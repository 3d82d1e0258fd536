"""What follows from what the processes reported: rates, ratios within rounds with their range, what a step has more."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

_BOOTSTRAPS = 500


@dataclass(frozen=True)
class Range:
    """A figure over rounds.

    Args:
        middle: The median.
        low: The least.
        high: The most.
    """

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Range | None":
        """Returns the range of some values, if there are any."""
        return cls(median(values), min(values), max(values)) if values else None


def named(systems: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """Returns the figures of a system, if it gave any."""
    return next((system for system in systems if system["system"] == name and system["rounds"]), None)


def rates(system: dict[str, Any] | None, kind: str = "rounds") -> list[float]:
    """Returns real tokens a second, by round, or by evaluation without the first, which warms up."""
    if system is None:
        return []
    found = system[kind][1:] if kind == "evaluations" else system[kind]
    return [each["tokens"] / each["seconds"] for each in found]


def ratio(one: dict[str, Any] | None, other: dict[str, Any] | None, kind: str = "rounds") -> Range | None:
    """Returns how many times as fast the first is, round by round."""
    return Range.of([a / b for a, b in zip(rates(one, kind), rates(other, kind), strict=False)])


def quiet_step(system: dict[str, Any] | None, rounds: Sequence[int] | None = None) -> float | None:
    """Returns the milliseconds of a step where nothing else disturbs it.

    What disturbs makes steps longer, never shorter, so that each place in a round counts with its 10th percentile over
    rounds. The mean over places then has what is done at every tenth step alone.

    Args:
        system: What was reported.
        rounds: Which rounds count; all of them if None.
    """
    if system is None:
        return None
    steps = np.asarray([each["step_seconds"] for each in system["rounds"]])
    chosen = steps if rounds is None else steps[np.asarray(rounds)]
    return 1e3 * float(np.quantile(chosen, 0.1, axis=0).mean())


def added(one: dict[str, Any] | None, other: dict[str, Any] | None) -> Range | None:
    """Returns by how many milliseconds a quiet step of the first is longer, with the middle 90 % of a bootstrap."""
    if one is None or other is None:
        return None
    number = min(len(one["rounds"]), len(other["rounds"]))
    rng = np.random.default_rng(0)

    def difference(rounds: Sequence[int] | None) -> float:
        return (quiet_step(one, rounds) or 0.0) - (quiet_step(other, rounds) or 0.0)

    drawn = [difference(rng.integers(0, number, number).tolist()) for _ in range(_BOOTSTRAPS)]
    low, high = np.quantile(drawn, [0.05, 0.95])
    return Range(difference(range(number)), float(low), float(high))
