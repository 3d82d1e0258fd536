"""Variants beside one another: metrics over seeds, and which differences to the first exceed the noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from lit_trainer.decision.paired import Measure, accuracy, f1_macro, f1_of_last, holm, mcnemar, paired_bootstrap
from lit_trainer.decision.probabilities import Integers
from lit_trainer.studies.finished_run import FinishedRun

LEVEL = 0.05
"""A corrected p-value below this is called a difference."""


class Spread(NamedTuple):
    """A number over seeds.

    Args:
        mean: Its mean.
        deviation: Its sample standard deviation; None of one seed.
    """

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Returns the spread of at least one value."""
        return cls(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)


@dataclass(frozen=True)
class Gap:
    """How much better a variant is than the first, on the same test rows with the same seeds.

    Args:
        value: The mean over the seeds.
        low: Where its 95 % interval starts.
        high: Where it ends.
        p: How likely so large a one is if there is none.
        corrected: The same, corrected for all that the table tests.
        discordant: Rows that the first, and that this one, is right on more often; for accuracy only.
    """

    value: float
    low: float
    high: float
    p: float
    corrected: float = 1.0
    discordant: tuple[int, int] | None = None

    @property
    def exceeds_noise(self) -> bool:
        """Whether it is more than chance would explain."""
        return self.corrected < LEVEL


@dataclass(frozen=True)
class Line:
    """One variant of the table.

    Args:
        name: Its name.
        changes: What it changes.
        runs: What has finished, by seed.
        failures: What was said of a run that did not, by seed.
        gaps: Its differences to the first variant by metric; None where it cannot be compared.
        why_not: Why it cannot.
    """

    name: str
    changes: tuple[str, ...]
    runs: Mapping[int, FinishedRun]
    failures: Mapping[int, str] = field(default_factory=dict)
    gaps: Mapping[str, Gap] | None = None
    why_not: str = ""

    def metric(self, name: str) -> Spread | None:
        """Returns a metric of the test over seeds."""
        values = [run.metrics[name] for run in self.runs.values() if name in run.metrics]
        return Spread.of(values) if values else None

    @property
    def seconds(self) -> Spread | None:
        """What training alone took."""
        return Spread.of([float(run.cost["train_seconds"]) for run in self.runs.values()]) if self.runs else None

    @property
    def peak_bytes(self) -> int | None:
        """The most memory that any of its runs had."""
        return max((int(run.cost["peak_bytes"]) for run in self.runs.values()), default=None)


def compare_lines(lines: Sequence[Line]) -> list[Line]:
    """Compares every variant with the first, on the seeds that both have finished with.

    Accuracy is tested by McNemar's exact test and F1 by a paired bootstrap over rows and seeds; p-values are corrected
    by Holm for all of them together.

    Args:
        lines: As the runs have left them.
    """
    first, *others = lines
    compared = [_compared(first, line) for line in others]
    gaps = [(position, name, gap) for position, line in enumerate(compared) for name, gap in (line.gaps or {}).items()]
    corrected = holm([gap.p for _, _, gap in gaps])
    for (position, name, gap), p in zip(gaps, corrected, strict=True):
        line = compared[position]
        compared[position] = replace(line, gaps={**(line.gaps or {}), name: replace(gap, corrected=p)})
    return [first, *compared]


def _compared(first: Line, line: Line) -> Line:
    seeds = sorted(first.runs.keys() & line.runs.keys())
    if not seeds:
        return replace(line, why_not="no seed has finished with both")
    pairs = [(first.runs[seed].decisions(), line.runs[seed].decisions()) for seed in seeds]
    found = [(mine, other) for mine, other in pairs if mine is not None and other is not None]
    if len(found) < len(pairs):
        return replace(line, why_not="rows with one class each are needed, and their scores")
    labels = found[0][0][0]
    if any(not np.array_equal(labels, rows[0]) for pair in found for rows in pair):
        return replace(line, why_not="it was tested on other rows")
    decided = [np.stack([pair[side][1] for pair in found]) for side in (0, 1)]
    return replace(line, gaps=_gaps(labels, decided[0], decided[1], first.runs[seeds[0]].metrics))


def _gaps(labels: Integers, first: Integers, second: Integers, metrics: Mapping[str, Any]) -> dict[str, Gap]:
    measures: dict[str, Measure] = {"accuracy": accuracy, "f1": f1_of_last, "f1_macro": f1_macro}
    gaps = {}
    for name, measure in measures.items():
        if name not in metrics:
            continue
        gap = Gap(*paired_bootstrap(labels, first, second, measure))
        if name == "accuracy":
            rows = mcnemar(labels, first, second)
            gap = replace(gap, p=rows.p, discordant=(rows.first, rows.second))
        gaps[name] = gap
    return gaps
