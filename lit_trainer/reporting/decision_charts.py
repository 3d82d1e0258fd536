"""Charts of decisions: which are wrong, what other thresholds would decide, how far probabilities can be trusted."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from lit_trainer.decision.counts import Counts, share
from lit_trainer.decision.probabilities import Floats, Integers
from lit_trainer.decision.reliability import Reliability
from lit_trainer.reporting.decisions import ClassDecisions
from lit_trainer.reporting.drawing import INK, LINES, MUTED, WIDTH, blank, fit_margins, named, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_CLASSES = 20
"""A confusion matrix of more would not be legible."""

_SQUARE = 3.9

_Place: TypeAlias = Callable[[Counts], tuple[Floats, Floats]]


@styled
def confusion_chart(confusion: Integers, names: Sequence[str]) -> "Figure":
    """Draws how often each class is decided for each; the shade is the share of the true class.

    Args:
        confusion: ``[C, C]``, rows true, columns decided.
        names: The classes.
    """
    from matplotlib.patches import Rectangle

    num = len(names)
    figure, axes = blank(WIDTH, _SQUARE if num <= 8 else WIDTH)
    figure.set_layout_engine("constrained")  # names may be long
    shares = share(confusion.astype(float), confusion.sum(axis=1, keepdims=True).astype(float))
    size = 11 if num <= 4 else 9 if num <= 8 else 6 if num <= 14 else 4.5
    for true in range(num):
        for decided in range(num):
            count, part = int(confusion[true, decided]), float(shares[true, decided])
            colour = LINES[0] if true == decided else LINES[1]
            cell = Rectangle((decided, true), 1, 1, facecolor=colour, alpha=0.62 * part**0.7, linewidth=0)
            axes.add_patch(cell)
            if count or num <= 8:
                text = f"{count:,}\n{part:.1%}" if num <= 4 else f"{count:,}"
                axes.text(decided + 0.5, true + 0.5, text, ha="center", va="center", fontsize=size, color=INK)
    axes.set(xlim=(0, num), ylim=(num, 0), xlabel="decided", ylabel="true")
    shown = [named(name, 14) for name in names]
    turn = 0 if num <= 4 and max(map(len, shown), default=0) <= 10 else 40
    axes.set_xticks(np.arange(num) + 0.5, shown, rotation=turn, ha="right" if turn else "center")
    axes.set_yticks(np.arange(num) + 0.5, shown)
    axes.tick_params(length=0, labelcolor=INK, labelsize=8.5 if num <= 10 else 6.5)
    axes.grid(False)
    for border in range(1, num):
        axes.axhline(border, color=MUTED, linewidth=0.3)
        axes.axvline(border, color=MUTED, linewidth=0.3)
    return figure


@styled
def roc_chart(classes: Sequence[ClassDecisions], with_default: bool) -> "Figure":
    """Draws the receiver operating characteristic of each class, with the point where it is decided.

    Args:
        classes: Classes that have rows and others.
        with_default: Whether the point without a rule is another one, and is to be shown.
    """
    figure, axes = blank(WIDTH, _SQUARE)
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=(0, (2, 3)))
    for number, each in enumerate(classes):
        curve, colour = each.roc.thinned(), LINES[number % len(LINES)]
        axes.plot(curve.x, curve.y, color=colour, label=f"{named(each.name, 20)}, area {each.area_under_roc:.4f}")
        _points(axes, each, colour, with_default, lambda counts: (1 - counts.specificity, counts.recall))
    _unit_square(axes, "false positives / negatives", "true positives / positives (recall)")
    _legend(axes, "lower right", with_default)
    return figure


@styled
def precision_recall_chart(classes: Sequence[ClassDecisions], with_default: bool) -> "Figure":
    """Draws precision over recall of each class, with the point where it is decided.

    Args:
        classes: Classes that have rows and others.
        with_default: Whether the point without a rule is another one, and is to be shown.
    """
    figure, axes = blank(WIDTH, _SQUARE)
    for number, each in enumerate(classes):
        curve, colour = each.precision_recall.thinned(), LINES[number % len(LINES)]
        name = f"{named(each.name, 20)}, average {each.average_precision:.4f}"
        axes.plot(curve.x, curve.y, color=colour, label=name)
        _points(axes, each, colour, with_default, lambda counts: (counts.recall, counts.precision))
    _unit_square(axes, "recall", "precision")
    _legend(axes, "lower left", with_default)
    return figure


@styled
def reliability_chart(before: Reliability, after: Reliability | None, confidence: str) -> "Figure":
    """Draws how often what was said came true, and on how many rows it was said.

    Args:
        before: Of the model's own probabilities.
        after: Of the calibrated ones; None if they are the same.
        confidence: What the probability is of.
    """
    from matplotlib.figure import Figure

    figure = Figure((WIDTH, _SQUARE))
    fit_margins(figure)
    axes, below = figure.subplots(2, 1, height_ratios=(4, 1), sharex=True)
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=(0, (2, 3)), label="as it should be")
    shown = [("before calibration", before, LINES[1])] if after else [("the model", before, LINES[0])]
    shown += [("calibrated", after, LINES[0])] if after else []
    for name, table, colour in shown:
        label = f"{name}, error {table.calibration_error:.4f}"
        axes.plot(table.confidence, table.frequency, color=colour, marker="o", markersize=4, linewidth=1.2, label=label)
    last = shown[-1][1]
    below.bar(last.confidence, last.num_rows, width=0.02, color=shown[-1][2], alpha=0.6)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), ylabel="how often it is true")
    below.set(xlabel=confidence, ylabel="rows")
    below.yaxis.get_major_locator().set_params(nbins=2, integer=True)
    axes.legend(loc="best", labelcolor=INK)
    return figure


def _points(axes: "Axes", decided: ClassDecisions, colour: str, with_default: bool, place: _Place) -> None:
    if with_default:
        x, y = place(decided.counts_by_default)
        axes.plot(x, y, marker="o", markersize=8, markerfacecolor="none", color=colour, linestyle="", clip_on=False)
    x, y = place(decided.counts)
    axes.plot(x, y, marker="o", markersize=7, color=colour, linestyle="", clip_on=False, zorder=4)


def _unit_square(axes: "Axes", x: str, y: str) -> None:
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.02), xlabel=x, ylabel=y)


def _legend(axes: "Axes", place: str, with_default: bool) -> None:
    """Adds what the points mean: they have no colour of their own."""
    from matplotlib.lines import Line2D

    def point(face: str, name: str) -> Line2D:
        return Line2D([], [], linestyle="", marker="o", color=MUTED, markerfacecolor=face, label=name)

    handles = [*axes.get_legend_handles_labels()[0], point(MUTED, "decided here")]
    handles += [point("none", "without the rule")] if with_default else []
    axes.legend(handles=handles, loc=place, labelcolor=INK)
