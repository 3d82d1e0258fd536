"""Logs what the loss scaler of mixed precision does."""

from typing import Any

import lightning.pytorch as pl

from lit_trainer.callbacks.step_metrics import is_logging_step, log_step_metrics


class LossScaleMonitor(pl.Callback):
    """Logs ``amp/loss_scale`` and ``amp/num_skipped_steps`` whenever the Trainer logs; without a scaler nothing."""

    def __init__(self) -> None:
        self._step = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begins at the step that the run starts at."""
        self._step = trainer.global_step

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Logs after the optimizer step, when the scaler has made up its mind."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is None or trainer.global_step == self._step or not is_logging_step(trainer):
            return
        self._step = trainer.global_step
        metrics = {"amp/loss_scale": float(scaler.get_scale())}
        skipped = getattr(trainer.precision_plugin, "num_skipped_steps", None)
        if skipped is not None:
            metrics["amp/num_skipped_steps"] = float(skipped)
        log_step_metrics(trainer, metrics)
