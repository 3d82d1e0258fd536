"""What lit_trainer is measured with: a callback that has it wait between rounds, and two other tasks."""

from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from speed_pace import Pace
from torch import Tensor
from torch.optim import Optimizer

from lit_trainer.batch import LABELS, Batch, model_inputs
from lit_trainer.callbacks.step_metrics import is_logging_step, log_step_metrics
from lit_trainer.tasks.sequence_classification import SequenceClassification


class Paced(pl.Callback):
    """Has the training wait between rounds."""

    def __init__(self) -> None:
        self.pace: Pace | None = None

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Begins."""
        if self.pace is None:
            self.pace = Pace(lambda: _evaluate(trainer))
            self.pace.count_tokens(pl_module.model)
            self.pace.begin(str(trainer.precision))

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Notes a step."""
        assert self.pace is not None
        self.pace.step_done()


def _evaluate(trainer: pl.Trainer) -> float:
    """Validates as Lightning does in the middle of an epoch, though before the batch has ended."""
    connector = trainer._logger_connector
    is_first = connector._first_loop_iter
    trainer.validating = True
    trainer.fit_loop.epoch_loop.val_loop.run()
    trainer.training = True
    connector._first_loop_iter = is_first
    return float(trainer.callback_metrics["val/accuracy"])


class Overriding(SequenceClassification):
    """Sets the rate and measures gradients as callbacks would, by overriding the task's own hooks."""

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Sets the rates by the progress of the run."""
        factor = 1 - self.progress
        for group in self.trainer.optimizers[0].param_groups:
            group.setdefault("initial_lr", group["lr"])
            group["lr"] = group["initial_lr"] * factor

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Logs norms and rates."""
        if is_logging_step(self.trainer):
            gradients = [p.grad for p in self.parameters() if p.grad is not None]
            norms = torch.stack(torch._foreach_norm(gradients)), torch.stack(torch._foreach_norm(gradients, torch.inf))
            zeros = sum(int((gradient == 0).sum()) for gradient in gradients)
            found = {"grad_norm": float(norms[0].norm()), "grad_max": float(norms[1].max()), "grad_zeros": zeros}
            log_step_metrics(self.trainer, {**found, "lr": optimizer.param_groups[0]["lr"]})


class PlainLightning(SequenceClassification):
    """What a plain LightningModule would do in a step: the mean loss of the micro-batch, dropout from the stream."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Returns the mean loss."""
        loss = F.cross_entropy(self.model(**model_inputs(batch)).logits.float(), batch[LABELS])
        if self.trainer._logger_connector.should_update_logs:
            self.log("train/loss", loss, prog_bar=True, batch_size=1)
        return loss

    def on_after_backward(self) -> None:
        """Corrects nothing."""
