"""A run with everything in it that has to survive a kill, and a way to kill it at any point: run as a script, too.

Usage: interrupted_runs.py SETTINGS, a JSON object; continues from the newest whole checkpoint in ``settings["root"]``
where there is one, is killed at the point numbered ``settings["kill_at"]``, and writes what it ended with to
``settings["out"]``.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from lit_trainer.callbacks.best_checkpoint import BestCheckpoint
from lit_trainer.callbacks.evaluation_schedule import EvaluationSchedule
from lit_trainer.callbacks.freezing import Freezing
from lit_trainer.callbacks.last_checkpoint import LastCheckpoint
from lit_trainer.callbacks.lr_schedule import LRSchedule
from lit_trainer.callbacks.plateau_early_stopping import PlateauEarlyStopping
from lit_trainer.losses.cross_entropy import CrossEntropy
from lit_trainer.optim.optimizer import OptimizerSpec
from lit_trainer.optim.schedules import Cosine
from lit_trainer.runtime.checkpoint_files import AtomicCheckpointIO, newest_valid
from lit_trainer.runtime.precision import ScaledMixedPrecision
from lit_trainer.tasks.sequence_classification import SequenceClassification
from tests.tasks.runs import KilledError, PlannedRows


class Points:
    """Numbers the points of a run and kills it at one of them.

    Args:
        kill_at: The number of the point, counted from the start of this process; None for never.
        kill: How: by an error, or by the end of the process.
    """

    def __init__(self, kill_at: int | None, kill: Callable[[], None]) -> None:
        self.kill_at, self.kill = kill_at, kill
        self.passed: list[str] = []

    def passes(self, name: str, trainer: pl.Trainer | None = None) -> None:
        self.passed.append(name if trainer is None else f"{name}, step {trainer.global_step}")
        if len(self.passed) - 1 == self.kill_at:
            self.kill()


class Watch(pl.Callback):
    """Passes a point at every hook, and notes what each step logged."""

    def __init__(self, points: Points) -> None:
        self.points = points
        self.steps: dict[int, dict[str, float]] = {}

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self.points.passes("before a micro-batch", trainer)

    def on_before_optimizer_step(self, trainer: pl.Trainer, *_: Any) -> None:
        self.points.passes("before an optimizer step", trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.fit_loop._should_accumulate():
            return
        logged = {name: float(value) for name, value in trainer.logged_metrics.items() if name.startswith("train/")}
        rates = {f"lr/{group['name']}": float(group["lr"]) for group in trainer.optimizers[0].param_groups}
        frozen = sum(not p.requires_grad for p in trainer.lightning_module.parameters())
        scale = trainer.precision_plugin.scaler.get_scale()
        self.steps[trainer.global_step] = {**logged, **rates, "frozen": frozen, "scale": scale}
        self.points.passes("after an optimizer step", trainer)

    def on_validation_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self.points.passes("before an evaluation", trainer)

    def on_validation_batch_end(
        self, trainer: pl.Trainer, module: Any, out: Any, batch: Any, index: int, *_: Any
    ) -> None:
        if index == 1:
            self.points.passes("within an evaluation", trainer)

    def on_validation_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self.points.passes("after an evaluation", trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self.points.passes("at the start of an epoch", trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self.points.passes("at the end of an epoch", trainer)

    def on_train_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self.points.passes("at the end of the run", trainer)


class WatchedCheckpointIO(AtomicCheckpointIO):
    """Passes a point before, while and after a checkpoint is written."""

    def __init__(self, points: Points) -> None:
        super().__init__()
        self.points = points

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        name = Path(path).stem
        self.points.passes(f"before writing {name}")
        if len(self.points.passed) == self.points.kill_at:  # half of a file is there when the process ends
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).with_name(f".{Path(path).name}.part").write_bytes(b"PK\x03\x04 half of it")
        self.points.passes(f"while writing {name}")
        super().save_checkpoint(checkpoint, path, storage_options)
        self.points.passes(f"after writing {name}")


def run(settings: dict[str, Any], kill: Callable[[], None]) -> list[str]:
    """Trains, from the newest whole checkpoint if there is one, and returns the points that were passed."""
    root = Path(settings["root"])
    pl.seed_everything(7, verbose=False)
    torch.rand(settings.get("draws", 0))  # what a process did before must not matter
    points = Points(settings.get("kill_at"), kill)
    watch = Watch(points)
    data = PlannedRows(
        settings["folder"], {"max_tokens": settings.get("max_tokens", True), "num_workers": settings.get("workers", 0)}
    )
    task = SequenceClassification(
        settings["folder"],
        loss=CrossEntropy(class_weights=[1.0, 5.0, 0.3]),
        optimizer=OptimizerSpec(lr=2e-2),
        config={"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    )
    best = BestCheckpoint("val/loss", "min", dirpath=str(root))
    last = LastCheckpoint(**settings.get("last", {"every_n_steps": 2}), dirpath=str(root))
    stopping = PlateauEarlyStopping(patience=settings.get("patience", 3), min_improvement=0.01)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        accumulate_grad_batches=settings.get("accumulate", 2),
        max_epochs=4,
        gradient_clip_val=1.0,
        callbacks=[
            watch,
            LRSchedule(Cosine(), warmup_steps=3),
            Freezing(until_epoch={"encoder.layer.0": 1}, until_step={"embeddings": 6}),
            EvaluationSchedule(**settings.get("evaluate", {"every_n_steps": 3})),
            stopping,
            best,
            last,
        ],
        # A scale this high overflows, and grows again soon after: steps are skipped all along.
        plugins=[
            ScaledMixedPrecision("16-mixed", "cpu", init_scale=2.0**19, growth_interval=2),
            WatchedCheckpointIO(points),
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        reload_dataloaders_every_n_epochs=1,
    )
    checkpoint = newest_valid(root)
    try:
        trainer.fit(task, datamodule=data, ckpt_path=checkpoint and str(checkpoint))
    except KilledError:
        return points.passed
    optimizer = trainer.optimizers[0].state_dict()
    found = {
        "weights": task.model.state_dict(),
        "optimizer": [optimizer["state"][index] for index in sorted(optimizer["state"])],
        "rates": [group["lr"] for group in optimizer["param_groups"]],
        "precision": trainer.precision_plugin.state_dict(),
        "step": trainer.global_step,
        "epoch": trainer.current_epoch,
        "early stopping": [stopping.state_dict(), stopping.reason, stopping.best],
        "best": [Path(best.best_model_path).name, float(best.best_model_score), best.best_metrics],
        "files": sorted(path.name for path in root.glob("*.ckpt")),
        "requires_grad": [p.requires_grad for p in task.parameters()],
        "steps": watch.steps,
    }
    torch.save(found, settings["out"])
    return points.passed


def end_process() -> None:
    os._exit(9)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run(json.loads(sys.argv[1]), kill=end_process)
