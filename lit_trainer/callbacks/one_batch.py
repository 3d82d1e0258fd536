"""Trains on the same rows at every step: a model and a loss that cannot learn one batch by heart are wrong."""

from typing import Any

import lightning.pytorch as pl


class OneBatch(pl.Callback):
    """Puts the micro-batches of the run's first optimizer step in place of those of every other."""

    def __init__(self) -> None:
        self._step: list[dict[str, Any]] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forgets the rows of another run."""
        self._step = []

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: dict[str, Any], batch_idx: int
    ) -> None:
        """Replaces a micro-batch by that in the same place of the first step.

        Args:
            trainer: The Trainer.
            pl_module: The task.
            batch: What `training_step` gets.
            batch_idx: Its number in the epoch.
        """
        if len(self._step) < trainer.accumulate_grad_batches:
            self._step.append(dict(batch))
            return
        kept = self._step[batch_idx % trainer.accumulate_grad_batches]
        batch.clear()
        batch.update(kept)
