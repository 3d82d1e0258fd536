"""The figures as tables: on a terminal and in Markdown."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable


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

    @classmethod
    def of_gradients(cls, errors: dict[str, Any], whole: str, short: str) -> "Table":
        """Returns the table of gradient errors by loss and split."""
        systems = list(next(iter(next(iter(errors.values())).values())))
        rows = []
        for case, splits in errors.items():
            for split, cells in splits.items():
                if not cells:
                    continue
                name = f"{split} (against the definition)" if split in (whole, short) else split
                rows.append([case, name, *(_error(cells.get(system, "-")) for system in systems)])
        return cls(
            "Gradient of an optimizer step: relative error by loss and split",
            ["loss", "split", *systems],
            rows,
            "Each system against its own gradient with the 32 rows in one batch, and that against the mean as the loss "
            "defines it; float64. 'Trainer, mean' is the model's own loss, the Trainer's own smoothing, or "
            "compute_loss returning a mean; 'Trainer, counted' is compute_loss_func dividing a sum by "
            "num_items_in_batch, the number of labels that are not ignored: the same on any split, but another mean "
            "where labels have weights, and not offered for the two passes of R-Drop. In R-Drop the others also drop "
            "other elements on each split.",
        )

    @classmethod
    def of_evaluations(cls, figures: list[dict[str, Any]]) -> "Table":
        """Returns the table of rows scored by world size."""
        systems = [name for name in figures[0] if name not in ("rows", "ranks")]
        rows = [[str(row["rows"]), str(row["ranks"]), *(_scored(row[system]) for system in systems)] for row in figures]
        return cls(
            "Evaluation: rows scored by world size, batches of 2",
            ["rows", "ranks", *systems],
            rows,
            "Rows scored in all, and the relative error of the mean loss against the same system on one process.",
        )

    @classmethod
    def of_resumes(cls, found: dict[str, dict[str, Any]]) -> "Table":
        """Returns the table of kill points survived."""
        rows = []
        for system, points in found.items():
            differences = [value for value in points.values() if not isinstance(value, str)]
            survived = sum(value == 0 for value in differences)
            largest = f"{max(differences):.1e}" if differences else next(iter(points.values()))
            rows.append([system, f"{survived} of {len(points)}", largest])
        return cls(
            "Resume: kill points survived of those tried",
            ["system", "survived", "largest difference of a weight"],
            rows,
            "A run of 3 epochs of 4 steps with dropout 0.1, accumulation 2 and class weights, killed after a step and "
            "resumed from the checkpoint written there; survived is: final weights equal to the last bit.",
        )

    @classmethod
    def of_draws(cls, figures: list[dict[str, Any]], expected_share: float) -> "Table":
        """Returns the table of weighted draws on two ranks."""
        rows = []
        for row in figures:
            with_, without = row["True"], row["False"]
            rows.append(
                [
                    row["system"],
                    with_ if isinstance(with_, str) else f"{with_['draws']}",
                    "-" if isinstance(with_, str) else f"{with_['rare']:.0%}",
                    without if isinstance(without, str) else f"{without['duplicates']}",
                ]
            )
        return cls(
            "Weighted sampling on two ranks: an epoch of 100 draws of 200 rows",
            ["system", "rows trained on", f"share of up-weighted rows (expected {expected_share:.0%})",
             "duplicates without replacement (expected 0)"],
            rows,
            "A tenth of the rows weighs nine times as much. The second epoch of a run with dropout, which draws as "
            "many random numbers on each rank as its rows have tokens.",
        )  # fmt: skip


def print_tables(tables: list[Table]) -> None:
    """Prints tables to the terminal."""
    console = Console() if Console().is_terminal else Console(width=130)
    for table in tables:
        rich = RichTable(*table.columns, title=table.title, caption=table.note, caption_justify="left")
        for row in table.rows:
            rich.add_row(*row)
        console.print(rich)


def write_markdown(tables: list[Table], versions: dict[str, str], path: Path) -> None:
    """Writes tables to a file."""
    parts = ["# Exactness, measured", "", ", ".join(f"{name} {number}" for name, number in versions.items()), ""]
    for table in tables:
        parts += [f"## {table.title}", "", table.note, ""]
        parts += [_line(table.columns), _line(["---"] * len(table.columns)), *map(_line, table.rows), ""]
    path.write_text("\n".join(parts))


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _error(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.1%}" if value >= 1e-3 else f"{value:.0e}"


def _scored(value: dict[str, Any] | str) -> str:
    if isinstance(value, str):
        return value
    twice = value["scored"] - value["distinct"]
    return f"{value['scored']}{f' ({twice} twice)' if twice else ''}, loss {_error(value['loss_error'])}"
