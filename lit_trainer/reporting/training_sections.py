"""The parts of the page about the run itself: what happened, settings, data, curves, gradients and speed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lit_trainer.reporting.charts import gradient_charts, learning_charts, rate_charts, speed_charts
from lit_trainer.reporting.page_parts import Section, Table, duration, number
from lit_trainer.reporting.run import METRICS_FILE, SETTINGS_FILE, Run
from lit_trainer.reporting.series import with_prefix

_SPEED = ("throughput/", "memory/", "time_share/")

_UNSAID = {"sha256"}
"""Settings that nobody reads in a table."""

_SHOWN_SETTINGS = {
    "Model": "model.pretrained",
    "Loss": "model.loss",
    "Optimizer": "model.optimizer.name",
    "Learning rate": "model.optimizer.lr",
    "Weight decay": "model.optimizer.weight_decay",
    "Data": "data.source",
    "Rows of a step": "data.batch_size",
    "Tokens of a step": "data.max_tokens",
    "Longest text, in tokens": "data.max_length",
    "Sampling": "data.sampling",
    "Epochs": "trainer.max_epochs",
    "Most steps": "trainer.max_steps",
    "Micro-batches of a step": "trainer.accumulate_grad_batches",
    "Clipped at": "trainer.gradient_clip_val",
    "Precision": "trainer.precision",
    "Devices": "trainer.devices",
    "Strategy": "trainer.strategy",
    "Seed": "seed_everything",
}


def data_section(run: Run) -> Section:
    """Returns what the check of the data found."""
    data = run.notes.data if run.notes else None
    if not data:
        return Section("data", "Data", ["What the data was like was not noted by this run."])
    splits: Mapping[str, Any] = data["splits"]
    labels = list(dict.fromkeys(name for each in splits.values() for name in each["class_counts"]))
    few = len(labels) <= 12
    header = ["split", "rows", "dropped", "without a label", *(labels if few else ()), "characters, median", "longest"]
    rows = []
    for split, each in splits.items():
        total = max(1, each["num_rows"] - each["num_unlabelled"])
        counts = [each["class_counts"].get(name, 0) for name in labels]
        shares = [f"{count:,} ({count / total:.1%})" for count in counts] if few else []
        lengths = list(each["num_characters"].values())
        ends = [" + ".join(f"{percentiles[place]:,}" for percentiles in lengths) for place in (1, 3)]
        plain = [f"{each[key]:,}" for key in ("num_rows", "num_dropped", "num_unlabelled")]
        rows.append([split, *plain, *shares, *ends])
    tables = [Table(header, rows)]
    if labels and not few:
        ranked = sorted(labels, key=lambda name: -max(each["class_counts"].get(name, 0) for each in splits.values()))
        counted = [[name, *(f"{each['class_counts'].get(name, 0):,}" for each in splits.values())] for name in ranked]
        tables.append(Table(["class", *splits], counted, "Rows of each class"))
    done = {"drop": "Dropped", "keep": "Kept"}
    findings = [f"{done.get(each['policy'], each['policy'])}: {_finding(each)}." for each in data["findings"]]
    return Section("data", "Data", findings or ["Nothing was found wrong with the rows."], tables)


def learning_section(run: Run) -> Section:
    """Returns the learning curves."""
    charts = list(learning_charts(run))
    sentences = []
    if not run.series:
        sentences.append(f"{METRICS_FILE} is missing or empty: nothing was logged, so that there are no curves.")
    elif "train/loss" not in run.series:
        sentences.append("No loss of a training was logged: the run did not train, or ended before its first log.")
    if run.series and not with_prefix(run.series, "val/"):
        sentences.append("No validation was logged.")
    return Section("learning", "Learning curves", sentences, charts=charts)


def rates_section(run: Run) -> Section:
    """Returns the learning rates."""
    charts = list(rate_charts(run))
    missing = "No learning rates were logged; the callback LRSchedule does."
    return Section("rates", "Learning rates", [] if charts else [missing], charts=charts)


def gradients_section(run: Run) -> Section:
    """Returns the norms of the gradients by group of layers."""
    charts = list(gradient_charts(run))
    missing = "No gradient norms were logged; the callback GradientMonitor does."
    bad = {group: int((each.values > 0).sum()) for group, each in with_prefix(run.series, "grad_non_finite/").items()}
    sentences = [f"{group}: not finite in {count} of the logged steps." for group, count in bad.items() if count]
    return Section("gradients", "Gradient norms", sentences if charts else [missing], charts=charts)


def speed_section(run: Run) -> Section:
    """Returns throughput and memory."""
    charts = list(speed_charts(run))
    rows = []
    for prefix in _SPEED:
        for name, each in with_prefix(run.series, prefix).items():
            values = each.values[np.isfinite(each.values)]
            if len(values):
                told = [number(float(value)) for value in (np.median(values), values.min(), values.max())]
                rows.append([f"{prefix}{name}", *told])
    sentences = [] if charts else ["No throughput and memory were logged."]
    if run.notes and run.notes.seconds and run.notes.step:
        share = run.notes.seconds / run.notes.step
        pace = f"{1 / share:.3g} optimizer steps a second" if share < 1 else f"{share:.3g} seconds an optimizer step"
        sentences.append(f"Training took {duration(run.notes.seconds)}, evaluations included: {pace}.")
    tables = [Table(["logged", "median", "lowest", "highest"], rows)] if rows else []
    return Section("speed", "Speed and memory", sentences, tables, charts)


def settings_section(run: Run) -> Section:
    """Returns the decisions of the configuration, and all of it."""
    if not run.settings_text:
        return Section("settings", "Configuration", [f"{SETTINGS_FILE} is not there: the run was made from Python."])
    rows = []
    for name, key in _SHOWN_SETTINGS.items():
        value = _setting(run.settings, key.split("."))
        if value is not None and value != -1:
            rows.append([name, told(value)])
    callbacks = _setting(run.settings, ["trainer", "callbacks"])
    if isinstance(callbacks, list):
        names = (callback.get("class_path") if isinstance(callback, Mapping) else callback for callback in callbacks)
        rows.append(["Callbacks", ", ".join(map(_last, names))])
    sentences = [] if run.settings else [f"{SETTINGS_FILE} cannot be read as settings."]
    versions = run.notes.versions if run.notes else {}
    tables = [Table(["setting", "value"], rows, is_text=True)] if rows else []
    if versions:
        tables.append(Table(["package", "version"], list(versions.items()), is_text=True))
    return Section("settings", "Configuration", sentences, tables, code=[(SETTINGS_FILE, run.settings_text)])


def story(run: Run) -> Iterator[str]:
    """Yields what happened, sentence by sentence."""
    notes = run.notes
    if notes is None:
        steps = max((int(each.steps[-1]) for each in run.series.values()), default=None)
        if steps is not None:
            yield f"{steps:,} optimizer steps were logged."
        yield "The run noted nothing about itself (it is of an older version, or broke off before it began)."
        return
    if notes.command == "fit" and notes.step is not None:
        of = f" of {notes.num_steps:,}" if notes.num_steps else ""
        took = f" in {duration(notes.seconds)}" if notes.seconds else ""
        yield f"{notes.step:,}{of} optimizer steps{took}."
    if notes.status == "running":
        yield "The run had not ended when this page was written, or was killed."
    if notes.reason:
        yield f"{notes.reason.rstrip('.')}."
    if notes.best:
        best = notes.best
        score = f" ({best['monitor']} {number(best['score'])})" if best.get("monitor") else ""
        yield f"Best evaluation: step {best['step']:,}{score}."
    if notes.model and notes.num_parameters:
        trained = notes.num_trained_parameters
        some = f", {trained:,} of them trained" if trained is not None and trained != notes.num_parameters else ""
        yield f"{notes.model}, {notes.num_parameters:,} parameters{some}."
    if notes.devices:
        precision = f", precision {notes.precision}" if notes.precision else ""
        yield f"On {notes.devices}{precision}."


def told(value: Any) -> str:
    """Returns a setting in a few words: of an object its class and what it was given."""
    if isinstance(value, Mapping):
        if "class_path" in value:
            given = value.get("init_args") or {}
            shown = {key: each for key, each in given.items() if each not in (None, [], {}, "") and key not in _UNSAID}
            inner = ", ".join(f"{key}={told(each)}" for key, each in shown.items())
            return f"{_last(value['class_path'])}({inner})" if inner else _last(value["class_path"])
        return "{" + ", ".join(f"{key}: {told(each)}" for key, each in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(told, value)) + "]"
    return str(value)


def _last(class_path: object) -> str:
    return str(class_path).rpartition(".")[2]


def _setting(settings: Any, keys: Sequence[str]) -> Any:
    """Returns the value of a dotted key, through ``init_args``; None if it is not there."""
    for key in keys:
        if isinstance(settings, Mapping) and key not in settings:
            settings = settings.get("init_args")
        if not isinstance(settings, Mapping):
            return None
        settings = settings.get(key)
    return settings


def _finding(finding: Mapping[str, Any]) -> str:
    numbers: Mapping[str, int] = finding["num_rows"]
    if not numbers:
        return str(finding["text"])
    where = ", ".join(f"{split} {', '.join(map(str, rows))}" for split, rows in finding["examples"].items())
    total = sum(numbers.values())
    return f"{finding['text']}: {total:,} row{'s' * (total != 1)} (such as {where})"
