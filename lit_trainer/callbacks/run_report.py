"""Keeps what a report of the run needs, and writes it: a page, and its figures to the loggers."""

import dataclasses
import logging
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities import rank_zero_warn
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.trainer.states import TrainerFn

from lit_trainer.callbacks.best_checkpoint import best_callback
from lit_trainer.callbacks.preemption import Preempted
from lit_trainer.callbacks.run_folder import run_folder
from lit_trainer.callbacks.run_position import is_dry_run
from lit_trainer.reporting.charts import Chart, evaluation_charts, training_charts
from lit_trainer.reporting.drawing import as_pixels
from lit_trainer.reporting.notes import RunNotes
from lit_trainer.reporting.page import FILE_NAME, write_page
from lit_trainer.reporting.run import Run
from lit_trainer.reporting.scores import SplitScores
from lit_trainer.reporting.wrong_rows import most_wrong

_log = logging.getLogger(__name__)

PACKAGES = ("lit_trainer", "torch", "lightning", "transformers", "datasets")


class RunReport(pl.Callback):
    """Writes ``report.html`` into the folder of the run when a training or an evaluation ends.

    It is what ``lit-trainer report`` makes of the folder. For it, and for other programs, the run keeps ``run.json``
    and the scores of every row of the best validation and of the test, as ``scores/validation.parquet`` and
    ``scores/test.parquet``. The figures go to TensorBoard and Weights & Biases, too, where the run logs to them.
    Without a logger a run has no folder and nothing is written. That something cannot be written is a warning: it
    never ends a run.

    Args:
        keep_texts: Whether the texts of the rows that are most wrong are kept with the scores, and shown.

    Attributes:
        written_to: The page, once it is there.
    """

    def __init__(self, keep_texts: bool = True) -> None:
        self.keep_texts = keep_texts
        self.written_to: Path | None = None
        self._folder: Path | None = None
        self._notes = RunNotes()
        self._began = 0.0
        self._loaded_step: int | None = None
        self._latest: SplitScores | None = None
        self._best_name = ""
        self._waits_for_test = False
        self._has_new_training = False

    # -- the run -------------------------------------------------------------------------------------------------------

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Finds the folder; a test that follows a training goes on with its notes."""
        folder = run_folder(trainer)  # all ranks have to ask
        writes = trainer.loggers and not is_dry_run(trainer) and trainer.is_global_zero
        self._folder = folder if writes and stage != "predict" else None
        self._loaded_step = self._latest = self.written_to = None
        self._best_name = ""
        if stage == "fit" or self._notes.started is None:
            self._notes = RunNotes(command=stage, started=_now())

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Notes which weights are evaluated."""
        if trainer.state.fn != TrainerFn.FITTING:
            self._loaded_step = int(checkpoint["global_step"])

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Notes what is trained, on what."""
        self._began = time.monotonic()
        self._attempt(lambda: self._describe(trainer, pl_module))

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Notes how far training came, and keeps the scores of the last validation if no checkpoint says of a best."""
        self._attempt(lambda: self._end_training(trainer))

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Notes what the run ended with; there may be no time for a page."""
        notes = self._notes
        wanted = isinstance(exception, KeyboardInterrupt | Preempted)
        notes.status = "interrupted" if wanted else "failed"
        notes.reason = " ".join(f"{type(exception).__name__}: {exception}".split()).removesuffix(":")
        self._attempt(lambda: self._end_training(trainer) if trainer.state.fn == TrainerFn.FITTING else self._save())

    def _describe(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        notes, model = self._notes, getattr(pl_module, "model", pl_module)
        parameters = list(model.parameters())
        notes.model = type(model).__name__
        notes.num_parameters = sum(parameter.numel() for parameter in parameters)
        notes.num_trained_parameters = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
        notes.precision = str(trainer.precision)
        notes.devices = _devices(trainer)
        notes.versions = {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
        report = getattr(_data(trainer), "report", None)
        notes.data = None if report is None else report.as_dict()
        self._save()

    def _end_training(self, trainer: pl.Trainer) -> None:
        notes, best = self._notes, best_callback(trainer)
        self._keep_best(trainer)
        if best is None and self._latest is not None and self._folder is not None:
            self._latest.save(self._folder)
        notes.step = trainer.global_step
        notes.num_steps = _num_steps_total(trainer)
        notes.seconds = time.monotonic() - self._began
        if notes.status == "running":
            reasons = (getattr(callback, "reason", None) for callback in trainer.callbacks)  # type: ignore[attr-defined]
            notes.reason = next((f"Stopped early: {reason}" for reason in reasons if isinstance(reason, str)), None)
        if best is not None:
            step = Path(best.best_model_path).stem.rpartition("=")[2]
            score = best.best_model_score
            notes.best = {
                "step": int(step) if step.isdigit() else trainer.global_step,
                "monitor": best.monitor,
                "score": None if score is None else float(score),
            }
        self._save()

    # -- scores --------------------------------------------------------------------------------------------------------

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keeps the scores of the best validation; which one that was is known when the next one ends."""
        if trainer.sanity_checking or self._folder is None:
            return
        self._attempt(lambda: self._keep_validation(trainer, pl_module))

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keeps the scores of the test."""
        self._attempt(lambda: self._keep_test(trainer, pl_module))

    def _keep_validation(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert self._folder is not None
        if trainer.state.fn == TrainerFn.FITTING:
            self._keep_best(trainer)
            self._latest = self._scores(trainer, pl_module, "validation", trainer.global_step)
        elif (scores := self._scores(trainer, pl_module, "validation", self._loaded_step)) is not None:
            scores.save(self._folder)

    def _keep_best(self, trainer: pl.Trainer) -> None:
        """Writes the scores of the evaluation before if it is the best so far: that is noted after all callbacks."""
        best = best_callback(trainer)
        name = Path(best.best_model_path).name if best else ""
        if name != self._best_name:
            self._best_name = name
            if self._latest is not None and self._folder is not None:
                self._latest.save(self._folder)

    def _keep_test(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._notes.baseline = dict(getattr(pl_module, "baseline_metrics", None) or {})
        if self._notes.model is None:
            self._describe(trainer, pl_module)
        scores = self._scores(trainer, pl_module, "test", self._loaded_step)
        if scores is not None and self._folder is not None:
            scores.save(self._folder)

    def _scores(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, split: str, step: int | None
    ) -> SplitScores | None:
        """Returns the scores of an evaluation, if the task has some that are about whole rows."""
        found: Any = getattr(pl_module, "scores", None)
        names = getattr(getattr(_data(trainer), "label_map", None), "names", None)
        if self._folder is None or found is None or names is None or not hasattr(type(pl_module), "decision_rule"):
            return None
        if found.logits.ndim != 2 or found.labels.ndim not in (1, 2):
            return None
        rule: Any = pl_module.decision_rule
        rows, logits, labels = (column.cpu().numpy() for column in (found.rows, found.logits, found.labels))
        scores = SplitScores(split, step, tuple(names), rule, rows, logits, labels)
        return dataclasses.replace(scores, texts=_texts(trainer, scores)) if self.keep_texts else scores

    # -- the page ------------------------------------------------------------------------------------------------------

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Writes the page and the figures, once the loggers have all metrics."""
        if self._folder is None:
            return
        if self._notes.status == "running":
            self._notes.status = "finished"
        self._latest = None
        self._has_new_training |= stage == "fit"
        self._attempt(self._save)
        if stage != "fit" or not self._waits_for_test:
            self._attempt(lambda: self._write(trainer))

    @staticmethod
    @contextmanager
    def once(trainer: pl.Trainer) -> Iterator[None]:
        """Has one page written of a training and the test that may follow, rather than one after each.

        Args:
            trainer: The Trainer that does both within the context.
        """
        reports = [each for each in trainer.callbacks if isinstance(each, RunReport)]  # type: ignore[attr-defined]
        for report in reports:
            report._waits_for_test = True
        try:
            yield
            for report in reports:
                if report._has_new_training:  # no test has followed
                    report._attempt(partial(report._write, trainer))
        finally:
            for report in reports:
                report._waits_for_test = False

    def _write(self, trainer: pl.Trainer) -> None:
        assert self._folder is not None
        for logger in trainer.loggers:
            logger.save()  # what was logged lately may not be in the file yet
        run = Run.read(self._folder)
        write_page(run, self._folder / FILE_NAME)
        self.written_to = self._folder / FILE_NAME
        charts = [*(training_charts(run) if self._has_new_training else ()), *evaluation_charts(run)]
        self._has_new_training = False
        for logger in trainer.loggers:
            _log_charts(logger, charts, trainer.global_step)

    def _save(self) -> None:
        if self._folder is not None:
            self._notes.ended = _now()
            self._notes.save(self._folder)

    def _attempt(self, action: Callable[[], None]) -> None:
        """Does something for the report, which must not cost anyone a training."""
        if self._folder is None:
            return
        try:
            action()
        except Exception as error:
            _log.debug("", exc_info=True)
            rank_zero_warn(f"the report of the run is incomplete: {type(error).__name__}: {error}")


def _texts(trainer: pl.Trainer, scores: SplitScores) -> dict[int, tuple[str, ...]]:
    """Returns the texts of the rows that are most wrong, if the data module has them."""
    data = _data(trainer)
    table, columns = (getattr(data, "tables", None) or {}).get(scores.split), getattr(data, "text", None)
    if table is None or not isinstance(columns, list):
        return {}
    try:
        rows = [wrong.row for wrong in most_wrong(scores)]
    except ValueError:  # such as logits that are not finite, of which the page tells
        return {}
    return {row: tuple(str(table[row][column]) for column in columns) for row in rows}


def _log_charts(logger: Any, charts: list[Chart], step: int) -> None:
    """Gives the charts to a logger that can show pictures."""
    if isinstance(logger, TensorBoardLogger):
        for chart in charts:
            logger.experiment.add_image(f"report/{chart.key}", as_pixels(chart.draw()), step, dataformats="HWC")
        logger.save()
    elif hasattr(logger, "log_image"):
        for chart in charts:
            logger.log_image(f"report/{chart.key}", [as_pixels(chart.draw())])


def _data(trainer: pl.Trainer) -> Any:
    return getattr(trainer, "datamodule", None)


def _devices(trainer: pl.Trainer) -> str:
    device = trainer.strategy.root_device
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()
    number = trainer.world_size
    return kind if number == 1 else f"{number} x {kind}"


def _num_steps_total(trainer: pl.Trainer) -> int | None:
    try:
        total = getattr(trainer.lightning_module, "num_steps_total", None)
    except ValueError:  # the run ended before its data was there to be counted
        return None
    return total if isinstance(total, int) and total > 0 else None


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
