"""What a page is made of: sections of sentences, tables, charts and rows of text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from lit_trainer.reporting.charts import Chart
from lit_trainer.reporting.wrong_rows import WrongRow


@dataclass(frozen=True)
class Table:
    """A table whose first column names the row.

    Args:
        header: The names of the columns.
        rows: Their cells, as they are to be shown.
        title: What it is; may be empty.
        is_text: Whether its cells are words, to be set to the left.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    is_text: bool = False


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Args:
        key: Its anchor.
        title: Its heading.
        sentences: What there is to say, also what is missing and why.
        tables: Its tables.
        charts: Its charts.
        wrong_rows: Rows to read.
        code: Text to be shown as it is, folded up.
    """

    key: str
    title: str
    sentences: Sequence[str] = ()
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    wrong_rows: Sequence[WrongRow] = ()
    code: Sequence[tuple[str, str]] = field(default=())


def number(value: float | None) -> str:
    """Returns a number as it is read in a table: four decimals where it is of the size of a share."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) >= 10:
        return f"{int(value):,}"
    if value == 0 or 0.001 <= abs(value) < 10:
        return f"{value:.4f}"
    return f"{value:,.1f}" if 10 <= abs(value) < 1e6 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Returns a duration in words: ``42 s``, ``1 min 52 s`` or ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
