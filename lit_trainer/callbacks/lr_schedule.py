"""Sets the learning rate of every optimizer step: base rate of the group times a schedule of the progress."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch.optim import Optimizer

from lit_trainer.callbacks.applied_steps import num_applied_steps, num_steps_total
from lit_trainer.callbacks.step_metrics import is_logging_step, log_step_metrics
from lit_trainer.optim.schedules import Schedule
from lit_trainer.optim.warmup import count_warmup_steps, multiplier


class LRSchedule(Callback):
    """Multiplies the base rate of each parameter group by a schedule, before each optimizer step.

    The rate is a function of the number of optimizer steps that were applied, and of nothing else: there is no state to
    save, a resumed run goes on at the right rate, and a step that a gradient scaler skips does not use up any of the
    schedule. Base rates are those the optimizer was built with in this run, never a checkpoint's, and groups keep their
    ratio. With `Constant` and no warm-up it changes nothing.

    The rate of each group is logged as ``lr/<name of the group>`` whenever the Trainer logs.

    Args:
        schedule: From the share of the steps that are done, in [0, 1], to a multiplier; a class of
            `lit_trainer.optim.schedules` or a function by its import path. Progress counts from the end of the warm-up.
        warmup_steps: Optimizer steps over which the rate first rises from 0 in a straight line.
        warmup_fraction: The same as a share of the optimizer steps of the run.

    Raises:
        ValueError: If both kinds of warm-up are given or one is out of range, if something else sets the rate, too, or
            if the task does not know the number of its optimizer steps.
    """

    def __init__(
        self, schedule: Schedule, warmup_steps: int | None = None, warmup_fraction: float | None = None
    ) -> None:
        self.schedule = schedule
        self.warmup_steps = warmup_steps
        self.warmup_fraction = warmup_fraction
        count_warmup_steps(1, warmup_steps, warmup_fraction)
        self._base_rates: list[float] = []
        self._num_steps = 0
        self._num_warmup_steps = 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keeps the base rates, while the optimizer is as it was built and before a checkpoint is loaded into it."""
        if trainer.lr_scheduler_configs:
            name = type(trainer.lr_scheduler_configs[0].scheduler).__name__
            raise ValueError(
                f"LRSchedule and the lr_scheduler {name} that configure_optimizers returns would both set the learning "
                "rate; remove one of them"
            )
        if sum(isinstance(callback, LRSchedule) for callback in trainer.callbacks) > 1:  # type: ignore[attr-defined]
            raise ValueError("trainer.callbacks has LRSchedule more than once; only one can set the learning rate")
        # A group that was scheduled in an earlier fit, by the same optimizer, still knows where it began.
        self._base_rates = [float(group.get("initial_lr", group["lr"])) for group in _groups(trainer)]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Counts the steps, now that the data are there, and puts this run's base rates in place of a checkpoint's."""
        self._num_steps = num_steps_total(pl_module, "LRSchedule")
        self._num_warmup_steps = count_warmup_steps(self._num_steps, self.warmup_steps, self.warmup_fraction)
        if self._num_warmup_steps >= self._num_steps:
            rank_zero_warn(
                f"LRSchedule: {self._num_warmup_steps} warm-up steps leave none of the run's {self._num_steps}; "
                "the base rate is never reached"
            )
        for group, rate in zip(_groups(trainer), self._base_rates, strict=True):
            group["initial_lr"] = rate

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Sets the rates; in each micro-batch, since only the optimizer knows when in its step it reads them."""
        factor = multiplier(self.schedule, num_applied_steps(trainer), self._num_steps, self._num_warmup_steps)
        for group, rate in zip(_groups(trainer), self._base_rates, strict=True):
            if isinstance(group["lr"], torch.Tensor):  # a compiled or captured step reads the tensor it knows
                group["lr"].fill_(rate * factor)
            else:
                group["lr"] = rate * factor

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Logs the rates, once for each optimizer step."""
        if is_logging_step(trainer):
            groups = enumerate(_groups(trainer))
            log_step_metrics(trainer, {f"lr/{group.get('name', n)}": float(group["lr"]) for n, group in groups})


def _groups(trainer: Trainer) -> list[dict[str, Any]]:
    return [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
