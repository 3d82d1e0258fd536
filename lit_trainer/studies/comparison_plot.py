"""A comparison as a picture: a panel for each metric, a dot for each run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from lit_trainer.studies.comparison import Line

MAX_PANELS = 4


def plot(lines: Sequence[Line], metrics: Sequence[str], path: Path, with_cost: bool) -> None:
    """Draws the picture.

    Args:
        lines: The variants; the first is at the top.
        metrics: Which metrics have a panel, at most four.
        path: The file; its suffix says what kind of picture it is.
        with_cost: Whether training time has a panel.
    """
    panels = [(name, [[r.metrics[name] for r in line.runs.values() if name in r.metrics] for line in lines])
              for name in metrics[:MAX_PANELS]]  # fmt: skip
    if with_cost:
        panels.append(("time, s", [[float(r.cost["train_seconds"]) for r in line.runs.values()] for line in lines]))
    with mpl.rc_context({"svg.hashsalt": "lit_trainer", "font.size": 9, "svg.fonttype": "none"}):
        figure = Figure(figsize=(1.5 + 2.1 * len(panels), 0.9 + 0.33 * len(lines)), layout="constrained")
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axis, (name, values) in zip(axes, panels, strict=True):
            _panel(axis, name, values)
        axes[0].set_yticks(range(len(lines)), [line.name for line in lines])
        axes[0].set_ylim(len(lines) - 0.5, -0.5)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=150, facecolor="white", metadata=metadata)


def _panel(axis: Any, name: str, values: Sequence[Sequence[float]]) -> None:
    axis.set_title(name, fontsize=9)
    axis.grid(axis="x", color="0.9")
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.locator_params(axis="x", nbins=3)
    if values[0]:
        axis.axvline(sum(values[0]) / len(values[0]), color="0.6", linewidth=0.8, linestyle="--")
    for position, found in enumerate(values):
        colour = "C7" if position == 0 else "C0"
        axis.plot(found, [position] * len(found), "o", color=colour, alpha=0.45, markersize=5, markeredgewidth=0)
        if found:
            axis.plot(sum(found) / len(found), position, "|", color=colour, markersize=13, markeredgewidth=2)
