"""How all charts look, and the two forms they are shown in: SVG that follows the colours of a page, and pixels."""

import functools
import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, ParamSpec

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # matplotlib is imported when the first chart is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")

INK: Final = "#1d2433"
MUTED: Final = "#667086"
GRID: Final = "#d8dce4"
LINES: Final = ("#0b62c4", "#d9480f", "#0b7a5c", "#8a3ffc", "#a87b06", "#c2255c", "#0c8599", "#5c6471")
"""The colours on a light ground, told apart by the colour-blind too; in a page each gives way to its variable."""

VARIABLES: Final = {INK: "ink", MUTED: "muted", GRID: "grid", **{line: f"line{n}" for n, line in enumerate(LINES)}}

WIDTH, HEIGHT = 4.6, 2.8
_STYLE: Final = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "text.parse_math": False,  # a class may be called $x
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text, in the font of the page
    "svg.hashsalt": "lit_trainer",
}


def styled(draw: Callable[P, "Figure"]) -> Callable[P, "Figure"]:
    """Decorates a function that draws a chart, so that it does in our style."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> "Figure":
        with _style():
            return draw(*args, **kwargs)

    return drawn


def blank(width: float = WIDTH, height: float = HEIGHT, above: float = 0.0) -> "tuple[Figure, Axes]":
    """Returns a figure with empty axes.

    Args:
        width: In inches.
        height: In inches.
        above: What is to be left free above the axes, in inches.
    """
    from matplotlib.figure import Figure

    figure = Figure((width, height))
    fit_margins(figure, above)
    return figure, figure.subplots()


def fit_margins(figure: "Figure", above: float = 0.0) -> None:
    """Leaves what usual labels need around the axes; matplotlib's own layouts take as long as all the drawing.

    Args:
        figure: The figure.
        above: What is to be left free above the axes besides, in inches.
    """
    width, height = figure.get_size_inches()
    left, right, top, bottom = 0.66 / width, 1 - 0.1 / width, 1 - (0.2 + above) / height, 0.5 / height
    figure.subplots_adjust(left, bottom, right, top, hspace=0.12)


def named(name: str, num_characters: int = 28) -> str:
    """Returns a name as a chart can show it: not too long, in one line, and not hidden for a leading underscore."""
    plain = "".join(character if character.isprintable() else " " for character in name)
    short = plain if len(plain) <= num_characters else f"{plain[: num_characters - 3]}..."
    return f"\N{ZERO WIDTH SPACE}{short}" if short.startswith("_") else short


def as_svg(figure: "Figure", prefix: str, label: str) -> str:
    """Returns a chart as an SVG element whose colours are the variables of the page.

    Args:
        figure: The chart.
        prefix: What its ids begin with, so that charts on one page do not share any.
        label: What it shows, for those who cannot see it.
    """
    file = io.StringIO()
    with _style(), _any_script():
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.S)
    text = re.sub(r"<[^>]+>", lambda tag: _adapted(tag[0], prefix), text)  # what is between tags are names
    opening = f'<svg role="img" aria-label="{_attribute(label)}"'
    return re.sub(r'<svg([^>]*?) width="[^"]*" height="[^"]*"', rf"{opening}\1", text, count=1)


def as_pixels(figure: "Figure") -> NDArray[np.uint8]:
    """Returns a chart on a white ground, ``[height, width, 3]``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    with _style(), _any_script():
        figure.set_facecolor("white")
        figure.set_dpi(120)
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _adapted(tag: str, prefix: str) -> str:
    """Makes a tag of matplotlib's one of the page: its font and colours, ids of its own, no more decimals than show."""
    tag = re.sub(r"font-family: [^;\"]*;? ?", "", tag)
    tag = re.sub(r"\bid=\"", f'id="{prefix}-', tag)
    tag = re.sub(r"(href=\"|url\()#", rf"\1#{prefix}-", tag)
    for colour, variable in VARIABLES.items():
        tag = tag.replace(f": {colour}", f": var(--{variable})")
    return re.sub(r"(\.\d\d)\d+", r"\1", tag)


def _attribute(text: str) -> str:
    escaped = text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return escaped.replace("\\", r"\\")  # it goes through a regular expression


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


@contextmanager
def _any_script() -> Iterator[None]:
    """Lets names be in scripts that matplotlib's own font does not have; the page's font shows them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield
