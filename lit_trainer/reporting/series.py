"""What a run has logged, as series over the optimizer steps."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lit_trainer.decision.probabilities import Floats, Integers


class Series(NamedTuple):
    """The values of one metric.

    Shapes: ``steps`` int64 ``[N]``, rising, how many optimizer steps were done; ``values`` float64 ``[N]``.
    """

    steps: Integers
    values: Floats

    @property
    def last(self) -> float:
        """The last value."""
        return float(self.values[-1])


def read_series(path: Path) -> dict[str, Series]:
    """Reads ``metrics.csv``, by the name of the metric; nothing where the file is missing or empty.

    Of a step that was logged twice, as when a job goes on from an earlier checkpoint, the later line counts. What is no
    number, and a line that was cut short, is left out.

    Args:
        path: The file.
    """
    found: dict[str, dict[int, float]] = {}
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            for line in csv.DictReader(file):
                step = _number(line.get("step"))
                if step is None or not np.isfinite(step):
                    continue
                for name, text in line.items():
                    value = _number(text) if name and name not in ("step", "epoch") else None
                    if value is not None:
                        found.setdefault(name, {})[int(step) + 1] = value  # Lightning counts steps from 0
    except (FileNotFoundError, csv.Error):
        pass
    return {name: _series(values) for name, values in sorted(found.items())}


def with_prefix(series: Mapping[str, Series], prefix: str) -> dict[str, Series]:
    """Returns the metrics whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): each for name, each in series.items() if name.startswith(prefix)}


def merged(series: Mapping[str, Series]) -> dict[str, Series]:
    """Joins metrics that are always the same, such as the rates of two parameter groups, under all their names."""
    names: dict[tuple[bytes, bytes], list[str]] = {}
    for name, each in series.items():
        names.setdefault((each.steps.tobytes(), each.values.tobytes()), []).append(name)
    return {_joined(group): series[group[0]] for group in names.values()}


def thinned(series: Series, num_points: int) -> Series:
    """Returns a series of at most so many points, each the mean of its neighbours; a shorter one as it is."""
    if len(series.steps) <= num_points:
        return series
    parts = np.array_split(np.arange(len(series.steps)), num_points)
    steps = np.array([series.steps[part[-1]] for part in parts])
    return Series(steps, np.array([series.values[part].mean() for part in parts]))


def smoothed(series: Series, window: int) -> Series:
    """Returns the running mean over the latest values, of which the first have fewer; what is not finite is left out.

    Args:
        series: The series.
        window: How many values.
    """
    finite = np.isfinite(series.values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, series.values, 0.0))])
    numbers = np.concatenate([[0], np.cumsum(finite)])
    ends = np.arange(1, len(finite) + 1)
    starts = np.maximum(0, ends - window)
    count = numbers[ends] - numbers[starts]
    means = np.divide(sums[ends] - sums[starts], count, out=np.full(len(finite), np.nan), where=count > 0)
    return Series(series.steps, means)


def _series(values: Mapping[int, float]) -> Series:
    steps = sorted(values)
    return Series(np.array(steps, np.int64), np.array([values[step] for step in steps], np.float64))


def _number(text: object) -> float | None:
    try:
        return float(text) if isinstance(text, str) and text else None
    except ValueError:
        return None


def _joined(names: Iterable[str]) -> str:
    """Returns one name for several; a group without weight decay goes without saying beside its other half."""
    names = list(names)
    kept = [name for name in names if not (name.endswith(".no_decay") and name.removesuffix(".no_decay") in names)]
    if len(kept) > 4:
        return f"{kept[0]} ... {kept[-1]} ({len(kept)} groups)"
    return ", ".join(kept)
