"""The figures as a picture."""

from pathlib import Path
from typing import Any

import speed_systems as names
from speed_figures import Range, added, named, rates

_OURS, _OTHERS = "#1f77b4", "#9aa5b1"


def draw(figures: dict[str, Any], path: Path) -> None:
    """Draws training, evaluation and what is added to a step; does without where there is no matplotlib."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("no picture: matplotlib is not installed")
        return
    training = figures.get("training", []) + [
        system
        for system in figures.get("half_precision", [])
        if not named(figures.get("training", []), system["system"])
    ]
    small = figures.get("small", [])
    hand = named(small, names.SMALL_HAND)
    panels = [
        ("training, real tokens a second", {s["system"]: Range.of(rates(s)) for s in training}, "{:,.0f}"),
        (
            "evaluation, real tokens a second",
            {s["system"]: Range.of(rates(s, "evaluations")) for s in training},
            "{:,.0f}",
        ),
        (
            "added to a step of a loop by hand, ms (2 % of 30 ms is 0.6)",
            {s["system"]: added(s, hand) for s in small if s is not hand},
            "{:.2f}",
        ),
    ]
    kept = [(title, {k: v for k, v in bars.items() if v is not None}, form) for title, bars, form in panels]
    kept = [panel for panel in kept if panel[1]]
    if not kept:
        return
    heights = [len(bars) + 1.5 for _, bars, _ in kept]
    figure, axes = plt.subplots(
        len(kept), 1, figsize=(9, 0.36 * sum(heights) + 0.6), height_ratios=heights, squeeze=False, layout="constrained"
    )
    for axis, (title, bars, form) in zip(axes[:, 0], kept, strict=True):
        middles = [found.middle for found in bars.values()]
        errors = [
            [found.middle - found.low for found in bars.values()],
            [found.high - found.middle for found in bars.values()],
        ]
        colours = [_OURS if name.startswith(("lit_trainer", "+", "the same")) else _OTHERS for name in bars]
        axis.barh(list(bars), middles, xerr=errors, color=colours, error_kw={"ecolor": "#444444", "lw": 0.8})
        for place, found in enumerate(bars.values()):
            text = "  " + form.format(found.middle)
            axis.text(max(found.high, 0.0), place, text, va="center", fontsize=8)
        axis.invert_yaxis()
        axis.margins(x=0.12)
        axis.set_title(title, loc="left", fontsize=10)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
