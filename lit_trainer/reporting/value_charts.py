"""Charts of predicted values beside the true ones."""

from typing import TYPE_CHECKING

import numpy as np

from lit_trainer.decision.probabilities import Floats
from lit_trainer.reporting.drawing import INK, LINES, MUTED, WIDTH, blank, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_POINTS = 1500


@styled
def predicted_chart(true: Floats, predicted: Floats) -> "Figure":
    """Draws each row's prediction over its value; of many rows, an even choice of them.

    Args:
        true: ``[N]``, finite.
        predicted: ``[N]``, finite.
    """
    figure, axes = blank(WIDTH, 3.9)
    chosen = np.unique(np.linspace(0, len(true) - 1, min(len(true), NUM_POINTS)).round().astype(int))
    ends = [min(true.min(), predicted.min()), max(true.max(), predicted.max())]
    axes.plot(ends, ends, color=MUTED, linewidth=0.8, linestyle=(0, (2, 3)), label="as it should be")
    axes.plot(
        true[chosen], predicted[chosen], "o", markersize=3.5, color=LINES[0], alpha=0.5, markeredgewidth=0, label="rows"
    )
    axes.set(xlabel="true value", ylabel="predicted value")
    axes.ticklabel_format(scilimits=(-3, 5))
    axes.legend(loc="upper left", labelcolor=INK)
    return figure


@styled
def residuals_chart(residuals: Floats) -> "Figure":
    """Draws how many rows are how far off.

    Args:
        residuals: ``[N]``, predicted less true, finite.
    """
    figure, axes = blank(WIDTH, 3.9)
    axes.hist(residuals, bins=min(40, max(5, round(len(residuals) ** 0.5))), color=LINES[0], alpha=0.7)
    axes.axvline(0, color=MUTED, linewidth=0.8, linestyle=(0, (2, 3)))
    axes.axvline(float(residuals.mean()), color=LINES[1], linewidth=1.2, label=f"mean {residuals.mean():.4g}")
    axes.set(xlabel="predicted less true", ylabel="rows")
    axes.ticklabel_format(scilimits=(-3, 5))
    axes.legend(loc="best", labelcolor=INK)
    return figure
