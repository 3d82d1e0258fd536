"""Says in a few lines what a run has led to."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lit_trainer.callbacks.decision_card import decided_metrics
from lit_trainer.callbacks.run_folder import run_folder


class RunSummary(pl.Callback):
    """Prints, after a test, its metrics beside the majority baseline's, where the model is, and what to try next.

    Where labels are decided by a rule, it prints how good that is and how good it is without, each with its interval.

    Args:
        next_command: The command to try next, in which ``{run}`` stands for the run's folder, ``{checkpoint}`` for the
            checkpoint that was tested and ``{export}`` for the exported model. None is the task's own
            ``next_command``, else a fitting one.
    """

    def __init__(self, next_command: str | None = None) -> None:
        self.next_command = next_command
        self._tables: list[RenderableType] | None = None
        self._found: dict[str, str] = {}

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Collects what there is to say, while it is there."""
        folder = run_folder(trainer)
        if not trainer.is_global_zero:
            return
        metrics = _of_test({k: v for k, v in trainer.callback_metrics.items() if k.startswith("test/")})
        baseline = _of_test(getattr(pl_module, "baseline_metrics", None) or {})
        tables = [_table(metrics, baseline), *_decisions(decided_metrics(trainer.callback_metrics))]
        self._tables, self._found = tables, self._places(trainer, folder)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Prints it, below all bars."""
        if self._tables is not None:
            reports = [path for callback in _callbacks(trainer) if (path := getattr(callback, "written_to", None))]
            places = {"report": _short(reports[0]), **self._found} if reports else self._found
            # Paths are to be copied: they may be longer than the line, but must not be broken.
            Console().print(Group("", *self._tables, "", _places(places)), soft_wrap=True)
            self._tables = None

    def _places(self, trainer: pl.Trainer, folder: Path) -> dict[str, str]:
        checkpoint = _short(trainer.ckpt_path)
        exported = [_short(path) for c in _callbacks(trainer) if (path := getattr(c, "exported_to", None))]
        places = {"tested": checkpoint + _score(trainer)} if checkpoint else {}
        if exported:
            places["exported"] = exported[0]
        command = self.next_command or getattr(trainer.lightning_module, "next_command", None)
        if command is None and (folder / "config.yaml").is_file() and checkpoint:
            command = "lit-trainer predict --config {run}/config.yaml --ckpt_path {run}"
        elif command is None and exported:
            command = 'python -c \'from transformers import pipeline; print(pipeline(model="{export}")("a text"))\''
        if command is not None:
            words = {"run": _short(folder), "checkpoint": checkpoint, "export": (exported or [""])[0]}
            for word, value in words.items():
                command = command.replace(f"{{{word}}}", value)
            places["next"] = command
        return places


def _callbacks(trainer: pl.Trainer) -> list[pl.Callback]:
    return trainer.callbacks  # type: ignore[attr-defined,no-any-return]


def _of_test(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics of the test by their own names, the loss last."""
    own = {key.removeprefix("test/"): float(value) for key, value in metrics.items()}
    return {name: own[name] for name in sorted(own, key=lambda name: name == "loss")}


def _score(trainer: pl.Trainer) -> str:
    """Returns, if the best checkpoint is what was tested, by what it is the best."""
    for callback in _callbacks(trainer):
        path, monitor = getattr(callback, "best_model_path", None), getattr(callback, "monitor", None)
        if path and monitor and Path(path) == Path(str(trainer.ckpt_path)):
            return f" (the best, {monitor} {float(callback.best_model_score):.4f})"  # type: ignore[attr-defined]
    return ""


def _short(path: str | os.PathLike[str] | None) -> str:
    """Returns a path as one would type it here."""
    if path is None:
        return ""
    full, here = Path(path).absolute(), Path.cwd()
    return str(full.relative_to(here)) if full.is_relative_to(here) else str(full)


def _table(metrics: Mapping[str, float], baseline: Mapping[str, float]) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    table.add_column("test", style="cyan")
    table.add_column("model", justify="right", style="bold")
    if baseline:
        table.add_column("majority", justify="right", style="dim")
    for name, value in metrics.items():
        others = [f"{baseline[name]:.4f}" if name in baseline else ""] if baseline else []
        table.add_row(name, f"{value:.4f}", *others)
    return Padding(table, (0, 0, 0, 2), expand=False)


def _decisions(rows: Mapping[str, tuple[str, str]]) -> list[RenderableType]:
    """Returns a table of the metrics by the decision rule, if there is one, and without it."""
    if not rows:
        return []
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    table.add_column("test", style="cyan")
    table.add_column("by the decision rule", style="bold")
    table.add_column("without it", style="dim")
    for name, both in rows.items():
        table.add_row(name, *both)
    return ["", Padding(table, (0, 0, 0, 2), expand=False)]


def _places(places: Mapping[str, str]) -> RenderableType:
    width = max(map(len, places), default=0) + 3
    lines = [Text.assemble("  ", (f"{name:{width}}", "cyan"), value) for name, value in places.items()]
    return Group(*lines, "") if lines else Text("")
