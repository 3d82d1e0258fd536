"""Tells a study how a trial does while it runs, and ends it where it is not worth going on."""

import json
import math
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.trainer.states import TrainerFn

from lit_trainer.studies.journal import load_trial
from lit_trainer.studies.run_files import TRIAL_FILE


class TrialReport(pl.Callback):
    """Reports each evaluation to a trial of Optuna and stops training if its pruner says so.

    The first evaluation is compared with the first of other trials, and so on: evaluations stand for the same share of
    the training, whatever the size of a step. What is best of them is written as ``trial.json``.

    Args:
        monitor: The metric, such as ``val/f1``.
        mode: Whether the best is the smallest or the largest.
        folder: Of the study.
        number: Of the trial.
        result: Folder for ``trial.json``.
        prune: Whether training may be stopped.

    Raises:
        ValueError: When the first evaluation ends, if it did not log ``monitor``.
    """

    def __init__(
        self, monitor: str, mode: Literal["min", "max"], folder: str, number: int, result: str, prune: bool = True
    ) -> None:
        self.monitor, self.mode = monitor, mode
        self.folder, self.number, self.result, self.prune = Path(folder), number, Path(result), prune
        self._trial: Any = None
        self._values: list[float] = []
        self._is_pruned = False

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Looks up the trial."""
        if trainer.is_global_zero:
            self._trial = load_trial(self.folder, self.number)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reports what this evaluation found; all ranks stop together."""
        if trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking:
            return
        if self.monitor not in trainer.callback_metrics:
            names = ", ".join(sorted(trainer.callback_metrics)) or "no metric at all"
            raise ValueError(f"monitor is {self.monitor!r}, but the evaluation logged {names}")
        self._values.append(float(trainer.callback_metrics[self.monitor]))
        stops = False
        if self._trial is not None and not math.isnan(self._values[-1]):
            self._trial.report(self._values[-1], len(self._values))
            stops = self.prune and self._trial.should_prune()
        if trainer.strategy.broadcast(stops):
            self._is_pruned = trainer.should_stop = True

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Writes the best value."""
        if not trainer.is_global_zero:
            return
        values = [value for value in self._values if not math.isnan(value)]
        best = (min(values) if self.mode == "min" else max(values)) if values else None
        text = json.dumps({"value": best, "pruned": self._is_pruned, "num_steps": trainer.global_step})
        (self.result / TRIAL_FILE).write_text(text, encoding="utf-8")
