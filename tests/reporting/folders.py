"""Folders of runs as a training leaves them, made without one."""

import csv
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lit_trainer.decision.calibration import TemperatureScaling
from lit_trainer.decision.rule import DecisionRule
from lit_trainer.reporting.notes import RunNotes
from lit_trainer.reporting.scores import SplitScores
from lit_trainer.reporting.wrong_rows import most_wrong

Kind = Literal["binary", "multi_class", "multi_label", "values"]
KINDS: tuple[Kind, ...] = ("binary", "multi_class", "multi_label", "values")

SECTIONS = [
    "metrics",
    "learning",
    "decisions",
    "classes",
    "rows",
    "rule",
    "data",
    "rates",
    "gradients",
    "speed",
    "settings",
]
"""The parts of a page, in order."""

SETTINGS = """\
seed_everything: 3
model:
  class_path: lit_trainer.tasks.sequence_classification.SequenceClassification
  init_args:
    pretrained: some/model
    loss:
      class_path: lit_trainer.losses.focal.FocalLoss
      init_args: {gamma: 2.0, class_weights: null}
    optimizer: {name: torch.optim.AdamW, lr: 0.0001}
data:
  class_path: lit_trainer.data.text.TextData
  init_args: {batch_size: 32}
trainer: {max_epochs: 2, precision: null, callbacks: [{class_path: a.b.Monitor, init_args: {every: 1}}]}
"""

TEXT = '<script>alert("x")</script> & <b>bold</b>'


def make_scores(kind: Kind, num_rows: int = 120, split: str = "test", with_rule: bool = True) -> SplitScores:
    """Scores that are right more often than not, every tenth row without a label."""
    rng = np.random.default_rng(0)
    rows = np.arange(num_rows)
    if kind == "values":
        labels = rng.normal(size=num_rows)
        logits = (labels + rng.normal(scale=0.3, size=num_rows))[:, None]
        labels[::10] = np.nan
        return SplitScores(split, 7, ("value",), None, rows, logits.astype(np.float32), labels.astype(np.float32))
    names = {"binary": ("ham", "spam"), "multi_class": ("a", "<b>", "$c$", "_d")}.get(kind, ("x", "y", "z"))
    num = len(names)
    rule = DecisionRule(kind, names)
    if kind == "multi_label":
        labels = (rng.random((num_rows, num)) < 0.3).astype(np.float32)
        logits = 2 * labels - 1 + rng.normal(size=labels.shape)
        labels[::10] = np.nan
    else:
        labels = rng.integers(0, num, num_rows)
        logits = 2 * np.eye(num)[labels] + rng.normal(size=(num_rows, num))
        labels[::10] = -100
    if with_rule:
        thresholds = {"binary": (0.3,), "multi_label": (0.3, 0.5, 0.7)}.get(kind)
        rule = DecisionRule(kind, names, calibration=TemperatureScaling(1.5), thresholds=thresholds)
    scores = SplitScores(split, 7, names, rule, rows, logits.astype(np.float32), labels)
    texts = {wrong.row: (TEXT, "second of the pair") for wrong in most_wrong(scores)}
    return SplitScores(split, 7, names, rule, rows, scores.logits, labels, texts)


def write_metrics(folder: Path, num_steps: int = 40, **more: float) -> None:
    """A ``metrics.csv`` with a line for each kind of metric and step."""
    lines: list[dict[str, Any]] = []
    for step in range(num_steps):
        lines.append({"step": step, "lr/backbone": step, "lr/backbone.no_decay": step, "lr/head": 2 * step})
        lines.append({"step": step, "grad_norm/head": 1 / (step + 1), "grad_norm/body": 0.0})
        lines.append({"step": step, "epoch": 0, "train/loss": 1 / (step + 1)})
        lines.append({"step": step, "throughput/samples_per_second": 50 + step, "memory/peak_mib": 900, "x": "word"})
    for step in (num_steps // 2, num_steps - 1):
        lines.append({"step": step, "val/loss": 0.5, "val/f1": 0.8, "val/mse": 12.5, "val/f1/a": 0.5, "val/f1/b": 0.7})
    lines.append({"step": num_steps, "test/loss": 0.4, "test/f1": 0.75, **more})
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, sorted({name for line in lines for name in line}))
        writer.writeheader()
        writer.writerows(lines)


def notes() -> RunNotes:
    split = {
        "num_rows": 80,
        "num_dropped": 2,
        "num_unlabelled": 1,
        "class_counts": {"ham": 60, "spam": 19},
        "num_characters": {"text": [5, 40, 90, 300]},
    }
    finding = {
        "kind": "no_text",
        "policy": "drop",
        "text": "no text",
        "num_rows": {"train": 2},
        "examples": {"train": [4, 9]},
    }
    return RunNotes(
        status="finished",
        seconds=75.0,
        step=40,
        num_steps=40,
        model="TinyModel",
        num_parameters=1234,
        num_trained_parameters=1000,
        devices="CPU",
        precision="32-true",
        versions={"torch": "2"},
        best={"step": 20, "monitor": "val/f1", "score": 0.8},
        baseline={"f1": 0.25},
        data={"splits": {"train": split, "test": split}, "findings": [finding]},
    )


def make_run(folder: Path, kind: Kind = "binary") -> Path:
    """A run with everything that a report can show."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(SETTINGS)
    write_metrics(folder)
    notes().save(folder)
    make_scores(kind).save(folder)
    return folder
