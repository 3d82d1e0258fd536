"""The figures as tables: on a terminal and in Markdown."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import speed_systems as names
from rich.console import Console
from rich.table import Table as RichTable
from speed_figures import Range, added, named, quiet_step, rates, ratio


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        title: What it shows.
        columns: Headings.
        rows: Cells.
        note: How to read it.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str


def make_tables(figures: dict[str, Any]) -> list[Table]:
    """Returns a table for each part that was measured."""
    training, small = figures.get("training", []), figures.get("small", [])
    tables = [_targets(figures)]
    for part, what in (("training", "float32"), ("half_precision", "half precision")):
        if systems := figures.get(part):
            tables += [_training(figures, systems, what), _evaluation(systems, what)]
    tables.append(_precision(training, figures.get("half_precision", [])))
    if small:
        tables += [_small(small), _costs(small)]
    if "score" in figures:
        tables.append(_score(figures))
    if "startup" in figures:
        tables.append(_startup(figures))
    return [table for table in tables if table.rows]


def _training(figures: dict[str, Any], systems: list[dict[str, Any]], what: str) -> Table:
    about, sizes = figures["about"], figures["sizes"]
    ours = named(systems, names.OURS)
    rows = []
    for system in systems:
        rate = Range.of(rates(system))
        if rate is None:
            rows.append([system["system"], system["failure"] or "-", *["-"] * 4])
            continue
        peak = figures.get("peak", {}).get(system["precision"])
        share = f"{rate.middle * about['flops_of_a_token'] / peak:.0%}" if peak else "-"
        rows.append(
            [
                system["system"],
                f"{rate.middle:,.0f} ({rate.low:,.0f} to {rate.high:,.0f})",
                f"{share} of {system['precision']}",
                f"{system['mib']:,.0f}",
                f"{system['first_step_seconds']:.1f}",
                _times(ratio(ours, system)) if system is not ours else "1",
            ]
        )
    num_rounds = max(len(system["rounds"]) for system in systems)
    peaks = ", ".join(f"{name} {value / 1e9:,.0f} GFLOP/s" for name, value in figures.get("peak", {}).items())
    return Table(
        f"Training, {what}: real tokens a second",
        ["system", "tokens/s", "share of peak", "MiB", "first step, s", "lit_trainer is"],
        rows,
        f"{sizes['batch_size']} rows a step of {'/'.join(map(str, about['lengths']))} tokens (percentiles 5, 50, 95); "
        f"median of {num_rounds} rounds of {sizes['steps']} steps, and their range. "
        f"The peak is that of large matrix products here ({peaks}); a token needs "
        f"{about['flops_of_a_token'] / 1e6:.0f} MFLOP. Memory is the most that the process had in training. The first "
        "step is counted from the command. All have fused AdamW and "
        "do not clip.",
    )


def _evaluation(systems: list[dict[str, Any]], what: str) -> Table:
    pairs = {
        names.OURS_SAME: names.TRAINER_DEFAULT,
        names.OURS_32: names.TRAINER_DEFAULT,
        names.OURS: names.TRAINER_BEST,
    }
    rows = []
    for system in systems:
        if (rate := Range.of(rates(system, "evaluations"))) is None:
            continue
        other = pairs.get(system["system"])
        compared = ratio(system, named(systems, other), "evaluations") if other else None
        rows.append(
            [
                system["system"],
                f"{rate.middle:,.0f} ({rate.low:,.0f} to {rate.high:,.0f})",
                f"{_times(compared)} as fast as {other}" if compared else "",
            ]
        )
    return Table(
        f"Evaluation, {what}: real tokens a second",
        ["system", "tokens/s", "compared"],
        rows,
        "Of the Trainer, predict, by its default 8 rows at a time; of lit_trainer, a validation within training.",
    )


def _precision(training: list[dict[str, Any]], half: list[dict[str, Any]]) -> Table:
    ours = named(training, names.OURS)
    found = {
        "32-true": named(training, names.OURS_32),
        ours["precision"] if ours else "auto": ours,
        "16-mixed": named(half, names.OURS_16),
    }
    rows = [
        [kind, f"{rate.middle:,.0f}", f"{system['mib']:,.0f}", _times(ratio(system, found["32-true"]))]
        for kind, system in found.items()
        if system is not None and (rate := Range.of(rates(system)))
    ]
    return Table(
        "Precision", ["trainer.precision", "tokens/s", "MiB", "against 32-true"], rows, "lit_trainer, training."
    )


def _small(systems: list[dict[str, Any]]) -> Table:
    hand = named(systems, names.SMALL_HAND)
    rows = []
    for system in systems:
        if not system["rounds"]:
            rows.append([system["system"], system["failure"] or "-", "-", "-"])
            continue
        more = added(system, hand)
        rows.append(
            [
                system["system"],
                f"{quiet_step(system):.2f}",
                "" if system is hand or more is None else f"{more.middle:+.2f} ({more.low:+.2f} to {more.high:+.2f})",
                "" if system is hand or more is None else f"{more.middle / 30:.1%}",
            ]
        )
    return Table(
        "What is added to a step",
        ["system", "ms a step", "ms more than by hand", "of a step of 30 ms"],
        rows,
        "A tiny random BERT on the same rows, one thread. What disturbs only makes steps longer, so each place in a "
        "round counts with its 10th percentile over rounds; in brackets is the middle 90 % of a bootstrap over rounds. "
        "The loop by hand runs the same model in the same way, without padding and with keyed dropout, so that the "
        "loop alone differs; a plain module in Lightning has the mean of the micro-batch for a loss and dropout from "
        "the stream.",
    )


def _costs(systems: list[dict[str, Any]]) -> Table:
    pairs = {
        "exactness: the step's own denominator, keyed dropout": (names.SMALL_BARE, names.SMALL_PLAIN),
        "StepTimeMonitor": (names.SMALL_MONITOR, names.SMALL_BARE),
        "GradientMonitor, every 10 steps": (names.SMALL_GRADIENTS, names.SMALL_BARE),
        "schedule and gradients by callbacks": (names.SMALL_CALLBACKS, names.SMALL_BARE),
        "schedule and gradients by overriding": (names.SMALL_OVERRIDING, names.SMALL_BARE),
    }
    rows = [
        [what, f"{more.middle:+.2f} ({more.low:+.2f} to {more.high:+.2f})", f"{more.middle / 30:.1%}"]
        for what, (one, other) in pairs.items()
        if (more := added(named(systems, one), named(systems, other))) is not None
    ]
    return Table("What it is for", ["part", "ms a step", "of a step of 30 ms"], rows, "Differences of the rows above.")


def _score(figures: dict[str, Any]) -> Table:
    rows = [
        [
            found["system"],
            f"{found['seconds']:.0f}" if found["reached"] else f"more than {found['seconds']:.0f}",
            str(found["steps"]),
            f"{found['accuracy']:.1%}" + (f" ({found['failure']})" if "failure" in found else ""),
        ]
        for found in figures["score"]
    ]
    sizes = figures["sizes"]
    return Table(
        f"Time to a validation accuracy of {sizes['target']:.0%}",
        ["system", "s", "steps", "accuracy then"],
        rows,
        f"From the first step on, with an evaluation every {sizes['score_steps']} steps. Which of four libraries a "
        "docstring is from; one run each.",
    )


def _startup(figures: dict[str, Any]) -> Table:
    rows = [[name, f"{seconds:.2f}"] for name, seconds in figures["startup"].items()]
    rows += [
        [f"{system['system']}: to the end of the first step", f"{system['first_step_seconds']:.2f}"]
        for system in figures.get("training", [])
        if system["first_step_seconds"]
    ]
    return Table("Start-up", ["command", "s"], rows, "The best of three for the first ones.")


def _targets(figures: dict[str, Any]) -> Table:
    training, half, small = (figures.get(part, []) for part in ("training", "half_precision", "small"))
    same, ours, ours_in_half = named(training, names.OURS_SAME), named(training, names.OURS), named(half, names.OURS)
    rows: list[list[str]] = []

    def speed(what: str, least: float, one: Any, other: Any, kind: str = "rounds") -> None:
        found = ratio(one, other, kind)
        if found is not None:
            rows.append([what, f"at least {least:g}", _times(found), _verdict(found.middle >= least)])

    by_default, best = named(training, names.TRAINER_DEFAULT), named(half, names.TRAINER_BEST)
    for least, name in ((4, names.TRAINER_512), (3, names.TRAINER_DEFAULT), (1.05, names.TRAINER_GROUPED)):
        speed(f"training, float32, against {name}", least, same, named(training, name))
    speed(f"training, as it comes, against {names.TRAINER_BEST}", 2, ours_in_half, best)
    speed(f"training, as it comes, against {names.TRAINER_DEFAULT}", 6, ours, by_default)
    speed("evaluation, float32, against Trainer.predict", 1.5, same, by_default, "evaluations")
    speed("evaluation, bf16, against Trainer.predict by length, bf16", 1.5, ours_in_half, best, "evaluations")
    bare, hand = named(small, names.SMALL_BARE), named(small, names.SMALL_HAND)
    monitors = {"StepTimeMonitor": names.SMALL_MONITOR, "GradientMonitor": names.SMALL_GRADIENTS}
    if (more := added(named(small, names.SMALL_MONITOR), hand)) is not None:
        share = more.middle / 30
        rows.append(
            [
                "added to a step of 30 ms, StepTimeMonitor included",
                "at most 2%",
                f"{share:.1%}",
                _verdict(share <= 0.02),
            ]
        )
    for callback, name in monitors.items():
        if (more := added(named(small, name), bare)) is not None:
            share = more.middle / 30
            rows.append([f"{callback}, of a step of 30 ms", "at most 1%", f"{share:.1%}", _verdict(share <= 0.01)])
    if "startup" in figures:
        *plain, imports = figures["startup"].items()
        for name, seconds in plain:
            rows.append([name, "under 0.5 s", f"{seconds:.2f} s", _verdict(seconds < 0.5)])
        if ours is not None:
            times = ours["first_step_seconds"] / imports[1]
            rows.append(
                [
                    "fit to the end of its first step, against the imports",
                    "at most 1.3",
                    f"{times:.2f}",
                    _verdict(times <= 1.3),
                ]
            )
    if figures["quick"]:
        rows = [[*row[:-1], "-"] for row in rows]  # a tiny model in two steps neither meets nor misses anything
    note = "Ratios of the same round: the median, and in brackets the range."
    return Table("Targets", ["what", "target", "measured", ""], rows, note)


def _times(found: Range | None) -> str:
    return "-" if found is None else f"{found.middle:.2f} ({found.low:.2f} to {found.high:.2f})"


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "missed"


def print_tables(tables: list[Table]) -> None:
    """Prints tables to the terminal."""
    console = Console() if Console().is_terminal else Console(width=130)
    for table in tables:
        rich = RichTable(*table.columns, title=table.title, caption=table.note, caption_justify="left")
        for row in table.rows:
            rich.add_row(*row)
        console.print(rich)


def write_markdown(tables: list[Table], figures: dict[str, Any], path: Path) -> None:
    """Writes tables to a file."""
    machine = figures["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in figures["versions"].items())
    parts = ["# Speed, measured", "", f"{versions}; {machine['device']}, {machine['threads']} threads", ""]
    if figures["quick"]:
        parts += ["The quick form: it shows that all runs, not how fast it is.", ""]
    for part, why in figures.get("failed", {}).items():
        parts += [f"Part {part} failed: {why.splitlines()[0]}", ""]
    for table in tables:
        parts += [f"## {table.title}", "", table.note, ""]
        parts += [_line(table.columns), _line(["---"] * len(table.columns)), *map(_line, table.rows), ""]
    path.write_text("\n".join(parts))


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
