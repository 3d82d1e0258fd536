"""What follows from what the processes reported: rates, ratios within rounds with their range, what a step has more."""

from dataclasses import dataclass
from statistics import mean, median, quantiles
from typing import Any

MANY = 8
"""From so many rounds on, a range leaves out the outer quarters."""


@dataclass(frozen=True)
class Range:
    """A figure over rounds.

    Args:
        middle: The median.
        low: The least; of many rounds, the first quartile.
        high: The most; of many rounds, the third quartile.
    """

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Range | None":
        """Returns the range of some values, if there are any."""
        if len(values) < MANY:
            return cls(median(values), min(values), max(values)) if values else None
        low, middle, high = quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)


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


def step_milliseconds(system: dict[str, Any] | None) -> list[float]:
    """Returns the mean step of each round: a median would leave out what is done at every tenth step alone."""
    return [] if system is None else [1e3 * mean(each["step_seconds"]) for each in system["rounds"]]


def added(one: dict[str, Any] | None, other: dict[str, Any] | None) -> Range | None:
    """Returns by how many milliseconds a step of the first is longer, round by round."""
    pairs = zip(step_milliseconds(one), step_milliseconds(other), strict=False)
    return Range.of([a - b for a, b in pairs])
