"""Charts of a training: what was logged over its optimizer steps."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from lit_trainer.reporting.drawing import INK, LINES, MUTED, blank, named, styled
from lit_trainer.reporting.series import Series, smoothed, thinned

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUM_POINTS = 500
_FEW = 30

MAX_NAMES, NUM_INSIDE, NUM_COLUMNS = 8, 4, 3
"""Names that a chart explains; how many of them fit inside it, and in a line above it."""

LINE = 0.19
"""The height of a line of names, in inches."""


@styled
def loss_chart(train: Series | None, validation: Series | None, best_step: int | None) -> "Figure":
    """Draws the loss of the training rows, smoothed where there are many, and that of the validation split.

    Args:
        train: ``train/loss``.
        validation: ``val/loss``.
        best_step: Which step to mark.
    """
    figure, axes = blank()
    if train is not None:
        many = len(train.steps) > _FEW
        _line(axes, train, LINES[0], "" if many else "train", alpha=0.25 if many else 1.0)
        if many:
            _line(axes, smoothed(train, max(5, len(train.steps) // 20)), LINES[0], "train, smoothed", markers=False)
    if validation is not None:
        _line(axes, validation, LINES[1], "validation", markers=len(validation.steps) <= _FEW)
    _mark(axes, best_step)
    _finish(axes, "loss")
    return figure


@styled
def lines_chart(
    series: Mapping[str, Series], unit: str, is_logarithmic: bool = False, best_step: int | None = None
) -> "Figure":
    """Draws several metrics.

    Args:
        series: The metrics by the name to show.
        unit: What the y axis says.
        is_logarithmic: Whether the y axis is, where what is above zero spans more than a decade.
        best_step: Which step to mark.
    """
    num_names = min(MAX_NAMES, len(series) + (best_step is not None))
    outside = num_names > NUM_INSIDE
    figure, axes = blank(above=LINE * -(-num_names // NUM_COLUMNS) if outside else 0)
    for number, (name, each) in enumerate(series.items()):
        if len(series) <= len(LINES):
            _line(axes, each, LINES[number], name)
        else:  # many layers: one colour, from pale to full, as colours of their own could not be told apart
            _line(axes, each, LINES[0], name, alpha=0.2 + 0.8 * number / (len(series) - 1), markers=False)
    if is_logarithmic and _spans_decades(series):
        axes.set_yscale("log", nonpositive="mask")
        axes.yaxis.set_major_formatter("{x:g}")  # matplotlib's own writes powers in mathematics
        axes.yaxis.set_minor_formatter("")
    else:
        axes.ticklabel_format(axis="y", scilimits=(-3, 5))
    _mark(axes, best_step)
    _finish(axes, unit, outside)
    return figure


def _spans_decades(series: Mapping[str, Series]) -> bool:
    values = np.concatenate([each.values for each in series.values()])
    positive = values[np.isfinite(values) & (values > 0)]
    return len(positive) > 0 and bool(positive.max() >= 10 * positive.min())


def _line(axes: "Axes", series: Series, colour: str, name: str, alpha: float = 1.0, markers: bool = True) -> None:
    few = len(series.steps) <= _FEW
    series = thinned(series, NUM_POINTS)
    values = np.where(np.isfinite(series.values), series.values, np.nan)
    marker = "o" if (few and markers) or len(series.steps) == 1 else ""
    axes.plot(series.steps, values, color=colour, alpha=alpha, marker=marker, markersize=3.5, label=named(name))


def _mark(axes: "Axes", step: int | None) -> None:
    if step is not None:
        axes.axvline(step, color=MUTED, linewidth=1, linestyle=(0, (3, 3)), label=f"best, step {step:,}")


def _finish(axes: "Axes", unit: str, outside: bool = False) -> None:
    axes.set_xlabel("optimizer steps")
    axes.set_ylabel(unit)
    axes.locator_params(axis="x", integer=True)
    handles, labels = axes.get_legend_handles_labels()
    shown = [(handle, label) for handle, label in zip(handles, labels, strict=True) if label]
    if len(shown) > MAX_NAMES:
        shown = [shown[index] for index in np.linspace(0, len(shown) - 1, MAX_NAMES).round().astype(int)]
    if len(shown) < 2:  # the title of the chart says it
        return
    kept, texts = zip(*shown, strict=True)
    if outside:
        legend = axes.figure.legend(kept, texts, loc="upper left", ncols=NUM_COLUMNS)
    else:
        legend = axes.legend(kept, texts, loc="best")
    for text in legend.get_texts():
        text.set_color(INK)
