"""A comparison on the terminal, and as files: Markdown for people, JSON with all of it, CSV with a row for each run."""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lit_trainer.studies.comparison import LEVEL, Gap, Line, Spread

USUAL_METRICS = (
    "accuracy", "f1", "f1_macro", "f1_micro", "exact_match", "precision", "precision_macro", "recall", "recall_macro",
    "mse", "mae", "pearson",
)  # fmt: skip
"""Which metrics of a test are columns, in this order, unless others are asked for."""

_HOW_TESTED = (
    "Decisions are the most probable class, on the same test rows. In McNemar's test a row counts once, for what "
    "is right on it with more seeds. The bootstrap draws rows within each class and seeds, the same for both."
)


@dataclass(frozen=True)
class Report:
    """A comparison with all that must be known to read it.

    Args:
        lines: The variants, compared with the first.
        metrics: Which metrics are columns.
        facts: What it was made with and on, by name.
        with_cost: Whether time and memory are columns.
    """

    lines: Sequence[Line]
    metrics: Sequence[str]
    facts: Mapping[str, str]
    with_cost: bool = True

    # -- the table -----------------------------------------------------------------------------------------------------

    @property
    def header(self) -> list[str]:
        """The names of the columns."""
        cost = ["time, s", "peak memory"] if self.with_cost else []
        return ["variant", *self.metrics, *cost, f"differs from {self.lines[0].name}"]

    def rows(self) -> Iterable[list[str]]:
        """Yields the cells of each variant."""
        for line in self.lines:
            cost = (
                [_spread(line.seconds, 0 if line.seconds and line.seconds.mean >= 10 else 1), _size(line.peak_bytes)]
                if self.with_cost
                else []
            )
            yield [line.name, *(_spread(line.metric(name), 4) for name in self.metrics), *cost, self._verdict(line)]

    def _verdict(self, line: Line) -> str:
        failed = f"{len(line.failures)} of {len(line.runs) + len(line.failures)} failed" if line.failures else ""
        if line is self.lines[0]:
            return failed or "-"
        verdict = line.why_not
        if line.gaps is not None:
            larger = [f"{name} {gap.value:+.4f}" for name, gap in line.gaps.items() if gap.exceeds_noise]
            verdict = ", ".join(larger) or "no"
        return "; ".join(filter(None, (failed, verdict)))

    @property
    def notes(self) -> list[str]:
        """What the numbers are."""
        seeds = max(len(line.runs) for line in self.lines)
        notes = [f"Numbers are of the test split; ± is the standard deviation over {seeds} seeds."] if seeds > 1 else []
        if any(line.gaps for line in self.lines):
            notes.append(
                f"What differs from {self.lines[0].name} by more than the noise of rows and seeds has a p-value below "
                f"{LEVEL}: McNemar's exact test for accuracy, a paired bootstrap for F1, corrected by Holm."
            )
        if self.with_cost:
            notes.append(
                "Time is that of the optimizer steps alone, memory the most that any run's process, or GPU, took."
            )
            hardware = dict.fromkeys(run.hardware for line in self.lines for run in line.runs.values())
            if len(hardware) > 1:
                notes.append(f"Times and memory do not compare: runs had {'; others '.join(hardware)}.")
        return notes

    def failures(self) -> list[str]:
        """Returns what was said of the runs that failed, a line each."""
        return [f"{line.name}, seed {seed}: {text}" for line in self.lines for seed, text in line.failures.items()]

    def print(self, console: Console) -> None:
        """Prints the table, with spreads below the means where it is narrow."""
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        for position, name in enumerate(self.header):
            is_number = 0 < position < len(self.header) - 1
            table.add_column(name, justify="right" if is_number else "left", style="cyan" if position == 0 else "")
        is_narrow = console.width < sum(map(len, self.header)) + 12 * len(self.header)
        for row in self.rows():
            table.add_row(*(cell.replace(" ±", "\n±") if is_narrow else cell for cell in row))
        console.print(table)
        for note in self.notes:
            console.print(f"[dim]{note}[/dim]")
        for failure in self.failures():
            console.print(f"failed: {failure}", markup=False, style="red", soft_wrap=True)

    # -- files ---------------------------------------------------------------------------------------------------------

    def markdown(self) -> str:
        """Returns the table, the differences and what they were made with."""
        parts = [f"# {self.facts['title']}", "\n".join(f"- {k}: {v}" for k, v in self.facts.items() if k != "title")]
        parts += [_markdown_table(self.header, self.rows()), *self.notes]
        if any(line.gaps for line in self.lines):
            names = ["variant", "metric", "difference", "95 % interval", "p", "corrected", "rows only one is right on"]
            parts += [f"## Differences to {self.lines[0].name}", _markdown_table(names, self._gap_rows()), _HOW_TESTED]
        parts += ["## Variants", "\n".join(f"- {line.name}: {_code(line.changes)}" for line in self.lines)]
        if failures := self.failures():
            parts += ["## Failed", "\n".join(f"- {failure}" for failure in failures)]
        return "\n\n".join(parts) + "\n"

    def _gap_rows(self) -> Iterable[list[str]]:
        for line in self.lines:
            for name, gap in (line.gaps or {}).items():
                rows = f"{gap.discordant[1]}, {self.lines[0].name} {gap.discordant[0]}" if gap.discordant else ""
                interval = f"{gap.low:+.4f} to {gap.high:+.4f}"
                yield [line.name, name, f"{gap.value:+.4f}", interval, f"{gap.p:.2g}", f"{gap.corrected:.2g}", rows]

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain data."""
        return {
            "facts": dict(self.facts),
            "variants": [
                {
                    "name": line.name,
                    "changes": list(line.changes),
                    "metrics": {name: _plain(line.metric(name)) for name in _all_metrics(line)},
                    "differences": {name: _plain_gap(gap) for name, gap in (line.gaps or {}).items()},
                    "not_compared": line.why_not,
                    "runs": {
                        str(seed): {
                            "metrics": dict(run.metrics),
                            **({"cost": dict(run.cost)} if self.with_cost else {}),
                        }
                        for seed, run in line.runs.items()
                    },
                    "failures": {str(seed): text for seed, text in line.failures.items()},
                }
                for line in self.lines
            ],
        }

    def save(self, stem: Path) -> list[Path]:
        """Writes ``STEM.md``, ``.json`` and ``.csv``; returns their paths."""
        stem.parent.mkdir(parents=True, exist_ok=True)
        markdown, data, table = (stem.with_name(f"{stem.name}.{suffix}") for suffix in ("md", "json", "csv"))
        markdown.write_text(self.markdown(), encoding="utf-8")
        data.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")
        names = list(dict.fromkeys(name for line in self.lines for name in _all_metrics(line)))
        cost = ["train_seconds", "peak_bytes"] if self.with_cost else []
        with table.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["variant", "seed", *names, *cost])
            for line in self.lines:
                for seed, run in line.runs.items():
                    values = [run.metrics.get(name, "") for name in names]
                    writer.writerow([line.name, seed, *values, *(run.cost[key] for key in cost)])
        return [markdown, data, table]


def columns(lines: Sequence[Line], asked: Sequence[str] | None = None) -> list[str]:
    """Returns which metrics are columns.

    Args:
        lines: The variants.
        asked: What was asked for; None are the usual ones.

    Raises:
        ValueError: If one that was asked for is not there.
    """
    there = list(dict.fromkeys(name for line in lines for name in _all_metrics(line)))
    if asked is None:
        return [name for name in USUAL_METRICS if name in there]
    missing = [name for name in asked if name not in there]
    if missing and there:
        raise ValueError(f"--metrics: the test has no {', '.join(missing)}; it has {', '.join(there)}")
    return list(asked)


def _all_metrics(line: Line) -> list[str]:
    return list(dict.fromkeys(name for run in line.runs.values() for name in run.metrics))


def _spread(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return "-"
    deviation = "" if spread.deviation is None else f" ± {spread.deviation:.{digits}f}"
    return f"{spread.mean:.{digits}f}{deviation}"


def _size(number: int | None) -> str:
    return "-" if number is None else f"{number / 1e9:.2f} GB"


def _plain(spread: Spread | None) -> dict[str, float | None] | None:
    return None if spread is None else spread._asdict()


def _plain_gap(gap: Gap) -> dict[str, Any]:
    return {**asdict(gap), "exceeds_noise": gap.exceeds_noise}


def _code(changes: Sequence[str]) -> str:
    return ", ".join(f"`{change}`" for change in changes) or "the recipe as it is"


def _markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
