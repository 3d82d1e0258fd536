"""The table names what differs by more than chance and nothing else, and says what could not be compared."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from lit_trainer.studies.comparison import Line, Spread, compare_lines
from lit_trainer.studies.comparison_files import Report, columns
from lit_trainer.studies.comparison_plot import plot
from tests.studies.finished_runs import write_run

RANDOM = np.random.default_rng(0)
LABELS = RANDOM.integers(0, 2, 400)
FACTS = {"title": "a comparison", "command": "`lit-trainer compare`"}
Make = Callable[..., Line]


@pytest.fixture
def line(tmp_path: Path) -> Make:
    def make(name: str, wrong: float, seeds: int = 3, labels: np.ndarray = LABELS) -> Line:
        runs = {}
        for seed in range(seeds):
            decided = np.where(RANDOM.random(len(labels)) < wrong, 1 - labels, labels)
            runs[seed] = write_run(tmp_path / f"{name}{seed}", labels, decided, seconds=10.0 + seed)
        return Line(name, (f"{name}.yaml",), runs)

    return make


def test_a_clear_difference_exceeds_the_noise_and_no_difference_does_not(line: Make) -> None:
    first, same, worse = compare_lines([line("none", 0.1), line("same", 0.1), line("worse", 0.4)])
    assert first.gaps is None
    assert same.gaps is not None
    assert worse.gaps is not None
    assert not any(gap.exceeds_noise for gap in same.gaps.values())
    assert all(gap.exceeds_noise and gap.high < 0 for gap in worse.gaps.values())
    assert worse.gaps["accuracy"].value == pytest.approx(-0.3, abs=0.06)
    assert worse.gaps["accuracy"].discordant[0] > worse.gaps["accuracy"].discordant[1]
    assert all(gap.corrected >= gap.p for line in (same, worse) for gap in line.gaps.values())


def test_only_seeds_that_both_have_are_compared(line: Make) -> None:
    first, second = line("none", 0.1), line("other", 0.1, seeds=1)
    found = compare_lines([first, second])[1]
    alone = compare_lines([Line("none", (), {0: first.runs[0]}), second])[1]
    assert found.gaps == alone.gaps


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda runs: {7: runs[0]}, "no seed has finished with both"),
        (lambda runs: {}, "no seed has finished with both"),
    ],
)
def test_without_a_common_seed_nothing_is_compared(line: Make, change: Callable, reason: str) -> None:
    other = line("other", 0.1)
    found = compare_lines([line("none", 0.1), Line("other", (), change(other.runs))])[1]
    assert (found.gaps, found.why_not) == (None, reason)


def test_other_test_rows_and_missing_scores_are_not_compared(line: Make) -> None:
    moved, lost = line("moved", 0.1, labels=1 - LABELS), line("lost", 0.1)
    (lost.runs[1].folder / "scores" / "test.parquet").unlink()
    _, moved, lost = compare_lines([line("none", 0.1), moved, lost])
    assert moved.why_not == "it was tested on other rows"
    assert "their scores" in lost.why_not


def test_a_spread_is_the_sample_deviation_and_none_of_one() -> None:
    assert Spread.of([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))
    assert Spread.of([1.0]) == (1.0, None)
    assert np.isnan(Spread.of([1.0, float("nan")])).all()


def report(lines: list[Line], with_cost: bool = True) -> Report:
    return Report(compare_lines(lines), columns(lines), FACTS, with_cost)


def shown(made: Report, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO())
    made.print(console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_files_hold_the_table_and_every_run(line: Make, tmp_path: Path) -> None:
    broken = Line("broken", (), {}, {0: "exit code 2: no column (log.txt)"})
    made = report([line("none", 0.1), line("worse", 0.4), broken])
    markdown, data, table = made.save(tmp_path / "out" / "table")
    text = markdown.read_text()
    assert "| variant | accuracy | f1 | time, s | peak memory | differs from none |" in text
    assert "| worse | 0." in text
    assert "| broken | - | - | - | - | 1 of 1 failed; no seed has finished with both |" in text
    assert "11 ± 1 | 2.00 GB" in text
    assert "broken, seed 0: exit code 2: no column (log.txt)" in text
    assert "- worse: `worse.yaml`" in text
    found = json.loads(data.read_text())
    assert found["variants"][1]["differences"]["accuracy"]["exceeds_noise"] is True
    assert len(list(csv.DictReader(table.read_text().splitlines()))) == 6


def test_cost_can_be_left_out_everywhere(line: Make, tmp_path: Path) -> None:
    made = report([line("none", 0.1), line("other", 0.1)], with_cost=False)
    for path in made.save(tmp_path / "table"):
        assert not any(word in path.read_text() for word in ("memory", "time, s", "train_seconds", "peak_bytes"))
    assert "memory" not in shown(made)


def test_times_of_runs_with_other_threads_or_devices_are_said_not_to_compare(line: Make) -> None:
    none, other = line("none", 0.1), line("other", 0.1)
    assert "do not compare" not in shown(report([none, other]))
    for changed, said in (({"num_threads": 2}, "cpu, 2 threads a process"), ({"device": "GPU"}, "1 x GPU")):
        runs = {seed: replace(run, cost={**run.cost, **changed}) for seed, run in other.runs.items()}
        text = shown(report([none, replace(other, runs=runs)]), width=200)
        assert f"Times and memory do not compare: runs had cpu, 1 thread a process; others {said}." in text


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_table_fits_the_terminal(line: Make, width: int) -> None:
    text = shown(report([line("none", 0.1), line("worse", 0.4)]), width)
    assert max(map(len, text.splitlines())) <= width
    assert "worse" in text


def test_a_metric_that_is_not_there_is_an_error(line: Make) -> None:
    lines = [line("none", 0.1)]
    assert columns(lines, ["test_rule/f1"]) == ["test_rule/f1"]
    with pytest.raises(ValueError, match="--metrics: the test has no f2; it has accuracy, f1, test_rule/f1"):
        columns(lines, ["f2"])


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_picture_names_every_variant(line: Make, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"table.{suffix}"
    plot([line("none", 0.1), line("other", 0.2), Line("empty", (), {})], ["accuracy", "f1"], path, True)
    assert path.stat().st_size > 1000
    if suffix == "svg":
        text = path.read_text()
        assert all(f">{word}<" in text for word in ("none", "other", "empty", "accuracy", "f1", "time, s"))
