"""The parts of the page about an evaluation: metrics, decisions, classes, and the rows that went wrong."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lit_trainer.decision.intervals import Estimate
from lit_trainer.decision.reliability import brier_score, reliability
from lit_trainer.decision.rule import DecisionRule
from lit_trainer.reporting.charts import Chart, decision_charts_of, value_charts_of
from lit_trainer.reporting.decision_charts import MAX_CLASSES
from lit_trainer.reporting.decisions import Decisions
from lit_trainer.reporting.page_parts import Section, Table, number
from lit_trainer.reporting.run import Run
from lit_trainer.reporting.scores import SplitScores
from lit_trainer.reporting.training_sections import told
from lit_trainer.reporting.wrong_rows import NUM_SHOWN, most_wrong

NUM_CONFUSIONS = 20

_PLAIN = 4
"""Of so many classes the confusion matrix is read at a glance."""

_NO_SCORES = (
    "No scores of a test or validation are in the folder. The callback RunReport, which every run of the command line "
    "has, writes them when an evaluation ends; for a run without, lit-trainer test does, in a folder of its own."
)


def metrics_section(run: Run) -> Section:
    """Returns the metrics of the test, beside the baseline's and by the decision rule; else the last validation's."""
    metrics, stage = run.last("test/"), "test"
    sentences = []
    if not metrics:
        metrics, stage = run.last("val/"), "last validation"
        sentences.append("There was no test." if metrics else "There was neither a test nor a validation.")
    baseline = run.notes.baseline if run.notes and stage == "test" else {}
    header = [stage, "model", *(["majority"] if baseline else [])]
    rows = [
        [name, number(value), *([number(baseline.get(name))] if baseline else [])] for name, value in metrics.items()
    ]
    tables = [Table(header, rows)] if rows else []
    by_rule, by_default = run.last("test_rule/"), run.last("test_default/")
    compared = [
        [name, _with_interval(by_rule, name), _with_interval(by_default, name)]
        for name in by_rule
        if f"{name}_low" in by_rule and name in by_default
    ]
    if compared:
        tables.append(Table(["test", "by the decision rule", "without it"], compared, "What the decision rule changes"))
    return Section("metrics", "Metrics", sentences, tables)


def rule_section(run: Run) -> Section:
    """Returns how labels are decided, and where that comes from."""
    rule = run.rule or (run.scores.rule if run.scores else None)
    if rule is None:
        return Section("rule", "Decision rule", ["There is no decision rule."])
    return Section("rule", "Decision rule", list(_how(rule)), list(_rule_tables(rule)))


def decision_sections(run: Run) -> Iterator[Section]:
    """Yields what the scores of the test, or else of the validation, say."""
    scores = run.scores
    if scores is None:
        for key, title in (("decisions", "Decisions"), ("classes", "Classes"), ("rows", "Most confidently wrong rows")):
            yield Section(key, title, [_NO_SCORES])
        return
    try:
        if scores.rule is None:
            yield Section("decisions", "Values", [_which(scores)], charts=list(value_charts_of(scores)))
        else:
            decisions = Decisions.of(scores)
            yield _decisions(scores, decisions)
            yield _classes(decisions)
        yield _wrong_rows(scores)
    except ValueError as error:
        yield Section("decisions", "Decisions", [f"The scores of the {scores.split} split cannot be used: {error}."])


def _which(scores: SplitScores) -> str:
    step = f", by the weights of step {scores.step:,}" if scores.step is not None else ""
    return f"{len(scores.rows):,} rows of the {scores.split} split{step}."


def _decisions(scores: SplitScores, decisions: Decisions) -> Section:
    sentences = [_which(scores)]
    without = len(scores.rows) - len(decisions.rows)
    if without:
        sentences.append(f"{without:,} of them have no label and count for nothing here.")
    if not len(decisions.rows):
        return Section("decisions", "Decisions", [*sentences, "No row has a label, so that there is nothing to show."])
    kind, tables = decisions.rule.kind, []
    if kind == "multi_label":
        sentences.append("Several labels at once have no confusion matrix; the table of classes has their counts.")
    elif len(decisions.names) > MAX_CLASSES:
        sentences.append(f"A confusion matrix of {len(decisions.names)} classes would not be legible.")
    if kind == "multi_class" and len(decisions.names) > _PLAIN:
        tables.append(_confusions(decisions))
    charts: list[Chart] = list(decision_charts_of(decisions))
    if not any(chart.key == "roc" for chart in charts):
        sentences.append("No class has both rows of its own and others, so that there are no curves.")
    calibrated = decisions.rule.calibration is not None
    shown = [("the model's own", decisions.own)]
    shown += [("calibrated", decisions.probabilities)] if calibrated else []
    rows = [
        [
            name,
            number(reliability(p, decisions.labels, kind).calibration_error),
            number(brier_score(p, decisions.labels, kind)),
        ]
        for name, p in shown
    ]
    tables.append(Table(["probabilities", "calibration error", "Brier score"], rows))
    return Section("decisions", "Decisions", sentences, tables, charts)


def _confusions(decisions: Decisions) -> Table:
    confusion = decisions.confusion.copy()
    np.fill_diagonal(confusion, 0)
    order = np.argsort(-confusion, axis=None, kind="stable")[:NUM_CONFUSIONS]
    pairs = [tuple(map(int, np.unravel_index(place, confusion.shape))) for place in order]
    names, totals = decisions.names, decisions.confusion.sum(axis=1)
    rows = [
        [names[true], names[decided], f"{confusion[true, decided]:,}", f"{confusion[true, decided] / totals[true]:.1%}"]
        for true, decided in pairs
        if confusion[true, decided]
    ]
    return Table(["true", "decided", "rows", "share of the true class"], rows, "Most frequent confusions")


def _classes(decisions: Decisions) -> Section:
    rule = decisions.rule
    thresholds: dict[int, float] = {}
    if rule.thresholds is not None:
        numbers = [rule.positive] if rule.kind == "binary" else range(len(decisions.names))
        thresholds = dict(zip(numbers, rule.thresholds, strict=True))
    header = [
        "class",
        "rows",
        "found",
        "missed",
        "false alarms",
        "precision",
        "recall",
        "F1",
        "ROC area",
        "avg. precision",
    ]
    header += ["threshold"] * bool(thresholds) + ["most often taken for"] * (rule.kind == "multi_class")
    rows = []
    for index, name in enumerate(decisions.names):
        one = decisions.of_class(index)
        areas = [number(one.area_under_roc), number(one.average_precision)] if one.has_both else ["", ""]
        counts = [f"{int(count):,}" for count in (one.counts.tp, one.counts.fn, one.counts.fp)]
        row = [
            name,
            f"{one.num_positives:,}",
            *counts,
            number(float(one.counts.precision)),
            number(float(one.counts.recall)),
        ]
        row += [number(one.f1), *areas]
        row += [number(thresholds.get(index))] * bool(thresholds)
        if rule.kind == "multi_class":
            confused = decisions.most_confused_with(index)
            row.append(f"{confused[0]} ({confused[1]:,})" if confused else "")
        rows.append(row)
    by = "by the decision rule" if decisions.has_rule else "without a decision rule"
    return Section("classes", "Classes", [f"Decided {by}."], [Table(header, rows)])


def _wrong_rows(scores: SplitScores) -> Section:
    rows = most_wrong(scores)
    title = "Most confidently wrong rows" if scores.rule else "Values furthest off"
    if not rows:
        return Section("rows", title, ["No row was decided wrongly." if scores.rule else "No value is off."])
    by = "the probability that was given to the truth" if scores.rule else "how far off the value is"
    sentences = [f"At most {NUM_SHOWN} of the {scores.split} split, sorted by {by}."]
    if not any(row.texts for row in rows):
        sentences.append("Their texts were not kept.")
    return Section("rows", title, sentences, wrong_rows=rows)


def _how(rule: DecisionRule) -> Iterator[str]:
    if rule.costs is not None:
        yield "Decided is the label with the lowest expected cost."
    elif rule.thresholds is None:
        yield "Decided is " + (
            "every label from a probability of 0.5 on." if rule.kind == "multi_label" else "the most probable label."
        )
    elif rule.kind == "binary":
        yield f"Decided is {rule.positive_label} from a probability of {rule.thresholds[0]:.4g} on."
    else:
        yield "Decided is each label from its own probability on; the table of classes has them."
    if rule.calibration is not None:
        numbers = rule.calibration.to_dict()
        value = f", {numbers['temperature']:.4g}" if "temperature" in numbers else ""
        yield f"Probabilities are calibrated ({numbers['method']}{value})."
    record = rule.fitted_on
    if record is None:
        return
    step = f", on the weights of step {record.step:,}" if record.step is not None else ""
    by = f" by {told(dict(record.criterion))}" if record.criterion else ""
    yield f"It was fitted on {record.num_rows:,} {record.split} rows{by}{step}."
    yield from (f"Note: {note}." for note in record.notes)


def _rule_tables(rule: DecisionRule) -> Iterator[Table]:
    record = rule.fitted_on
    if record is not None:
        rows = []
        if record.metric is not None and record.default_metric is not None:
            rows.append(["criterion", _told(record.metric), _told(record.default_metric)])
        if record.required is not None and record.default_required is not None:
            rows.append(["required", _told(record.required), _told(record.default_required)])
        for name, pair in (("calibration error", record.calibration_error), ("Brier score", record.brier_score)):
            if pair.after is not None:
                rows.append([name, number(pair.after), number(pair.before)])
        if rows:
            title = "On rows that it was not fitted on" + (f", in {record.folds} parts" if record.folds else "")
            yield Table(["", "with the rule", "without"], rows, title)
        if record.thresholds:
            names = rule.label_names if rule.kind == "multi_label" else (str(rule.positive_label),)
            estimates = [
                [name, _told(each) if each else "0.5, kept"]
                for name, each in zip(names, record.thresholds, strict=False)
            ]
            yield Table(["label", "threshold"], estimates, f"Thresholds, with {record.level:.0%} intervals")
    if rule.costs is not None:
        costs = [
            [name, *(number(cost) for cost in row)] for name, row in zip(rule.label_names, rule.costs, strict=True)
        ]
        yield Table(["true \\ decided", *rule.label_names], costs, "Costs")


def _told(estimate: Estimate) -> str:
    return f"{estimate.value:.4f} ({estimate.low:.4f} to {estimate.high:.4f})"


def _with_interval(metrics: dict[str, Any], name: str) -> str:
    ends = [metrics.get(f"{name}{end}") for end in ("_low", "_high")]
    interval = f" ({ends[0]:.4f} to {ends[1]:.4f})" if None not in ends else ""
    return f"{metrics[name]:.4f}{interval}"
