"""Which charts a run has, each drawn when it is wanted."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lit_trainer.decision.reliability import reliability
from lit_trainer.reporting import decision_charts, value_charts
from lit_trainer.reporting.decisions import ClassDecisions, Decisions
from lit_trainer.reporting.run import Run
from lit_trainer.reporting.scores import SplitScores
from lit_trainer.reporting.series import Series, merged, with_prefix
from lit_trainer.reporting.training_charts import lines_chart, loss_chart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_CURVES = 8
"""Classes whose curves are drawn; of more, those with the lowest average precision."""

_UNITS = {"amp/loss_scale": "loss scale", "amp/num_skipped_steps": "skipped steps"}


class Chart(NamedTuple):
    """A chart.

    Args:
        key: A short name that no other chart of the run has.
        title: What it shows.
        note: What one has to know to read it; may be empty.
        draw: Draws it.
    """

    key: str
    title: str
    note: str
    draw: "Callable[[], Figure]"


def learning_charts(run: Run) -> Iterator[Chart]:
    """Yields the loss and the metrics of the evaluations."""
    train, validation = run.series.get("train/loss"), run.series.get("val/loss")
    if train is not None or validation is not None:
        draw = partial(loss_chart, train, validation, run.best_step)
        yield Chart("loss", "Loss", "", draw)
    metrics = {name: each for name, each in with_prefix(run.series, "val/").items() if name != "loss"}
    groups: dict[str, dict[str, Series]] = {}
    for name, each in metrics.items():
        family, _, member = name.partition("/")
        finite = each.values[np.isfinite(each.values)]
        if member:
            groups.setdefault(family, {})[member] = each
        elif ((finite >= -1) & (finite <= 1)).all():
            groups.setdefault("", {})[name] = each
        else:
            groups.setdefault(name, {})[name] = each
    for family in sorted(groups):
        title = f"Validation, {family}" if family else "Validation"
        draw = partial(lines_chart, groups[family], family or "metric", best_step=run.best_step)
        yield Chart(f"validation_{family}" if family else "validation", title, "", draw)
    for name, each in with_prefix(run.series, "train/").items():
        if name != "loss":
            yield Chart(f"train_{name}", _words(name), "", partial(lines_chart, {name: each}, ""))


def rate_charts(run: Run) -> Iterator[Chart]:
    """Yields the learning rates of the parameter groups."""
    rates = merged(with_prefix(run.series, "lr/"))
    if rates:
        yield Chart("learning_rates", "Learning rate", "", partial(lines_chart, rates, "rate"))


def gradient_charts(run: Run) -> Iterator[Chart]:
    """Yields the norms of the gradients, and what else is known of them, by group of layers."""
    clipped = with_prefix(run.series, "grad_norm_clipped/")
    shown = {
        "gradient_norms": (
            "Gradient norm" + ", before clipping" * bool(clipped),
            with_prefix(run.series, "grad_norm/"),
        ),
        "clipped_gradient_norms": ("Gradient norm, after clipping", clipped),
        "update_ratios": ("Step, relative to the weights", with_prefix(run.series, "update_ratio/")),
    }
    for key, (title, series) in shown.items():
        if series:
            unit = "ratio" if key == "update_ratios" else "norm"
            yield Chart(key, title, "", partial(lines_chart, series, unit, is_logarithmic=True))


def speed_charts(run: Run) -> Iterator[Chart]:
    """Yields throughput, memory, what the time goes into, and the loss scale, as far as they were logged."""
    for name, each in with_prefix(run.series, "throughput/").items():
        chart = partial(lines_chart, {name: each}, _words(name).lower())
        yield Chart(f"throughput_{name}", _words(name), "", chart)
    for prefix, title, unit in (("time_share/", "Where the time goes", "share"), ("memory/", "Memory", "MiB")):
        if series := with_prefix(run.series, prefix):
            told = {name.replace("_", " "): each for name, each in series.items()}
            yield Chart(prefix.strip("/"), title, "", partial(lines_chart, told, unit))
    for name, unit in _UNITS.items():
        if name in run.series:
            series = {unit: run.series[name]}
            draw = partial(lines_chart, series, unit, is_logarithmic=name == "amp/loss_scale")
            yield Chart(name.replace("/", "_"), unit.capitalize(), "", draw)


def decision_charts_of(decisions: Decisions) -> Iterator[Chart]:
    """Yields what is confused, the curves of the classes, and how far probabilities can be trusted."""
    rule, names = decisions.rule, decisions.names
    if not len(decisions.rows):
        return
    if rule.kind != "multi_label" and len(names) <= decision_charts.MAX_CLASSES:
        draw = partial(decision_charts.confusion_chart, decisions.confusion, names)
        yield Chart("confusion_matrix", "Confusion matrix", "Shares are of the rows with the true class.", draw)
    classes, note = _drawn_classes(decisions)
    if classes:
        decided = "The filled point is where the decisions are."
        note = f"{note} {decided}".strip()
        with_default = decisions.has_rule
        roc = partial(decision_charts.roc_chart, classes, with_default)
        precision_recall = partial(decision_charts.precision_recall_chart, classes, with_default)
        yield Chart("roc", "ROC", note, roc)
        yield Chart("precision_recall", "Precision and recall", note, precision_recall)
    before = reliability(decisions.own, decisions.labels, rule.kind)
    calibrated = rule.calibration is not None
    after = reliability(decisions.probabilities, decisions.labels, rule.kind) if calibrated else None
    said = {
        "binary": f"probability of {names[-1]}",
        "multi_class": "probability of the most probable class",
        "multi_label": "probability of a label",
    }[rule.kind]
    note = "Each point is a bin of equally many rows; the error is their mean distance from the diagonal."
    draw = partial(decision_charts.reliability_chart, before, after, said)
    yield Chart("reliability", "Reliability", note, draw)


def value_charts_of(scores: SplitScores) -> Iterator[Chart]:
    """Yields predicted values beside the true ones."""
    predicted = scores.logits[:, 0].astype(np.float64)
    true = scores.labels.reshape(-1).astype(np.float64)
    finite = np.isfinite(predicted) & np.isfinite(true)
    predicted, true = predicted[finite], true[finite]
    if len(true):
        note = f"{value_charts.NUM_POINTS:,} of {len(true):,} rows." if len(true) > value_charts.NUM_POINTS else ""
        draw = partial(value_charts.predicted_chart, true, predicted)
        yield Chart("predicted_values", "Predicted and true values", note, draw)
        yield Chart("residuals", "Errors", "", partial(value_charts.residuals_chart, predicted - true))


def training_charts(run: Run) -> Iterator[Chart]:
    """Yields all charts of what was logged over the steps."""
    for charts in (learning_charts, rate_charts, gradient_charts, speed_charts):
        yield from charts(run)


def evaluation_charts(run: Run) -> Iterator[Chart]:
    """Yields all charts of the scores, if there are some.

    Raises:
        ValueError: If the scores do not fit their rule, or are not finite.
    """
    if run.scores is not None:
        values = run.scores.rule is None
        yield from value_charts_of(run.scores) if values else decision_charts_of(Decisions.of(run.scores))


def _drawn_classes(decisions: Decisions) -> tuple[list[ClassDecisions], str]:
    """Returns the classes whose curves are drawn, and which these are, in words if not all."""
    numbers = [decisions.rule.positive] if decisions.rule.kind == "binary" else range(len(decisions.names))
    classes = [each for number in numbers if (each := decisions.of_class(number)).has_both]
    if len(classes) <= NUM_CURVES:
        return classes, ""
    lowest = sorted(classes, key=lambda each: each.average_precision)[:NUM_CURVES]
    return lowest, f"The {NUM_CURVES} of {len(classes)} classes with the lowest average precision."


def _words(name: str) -> str:
    return name.replace("_", " ").replace("/", ", ").capitalize()
