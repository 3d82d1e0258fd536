"""Sees to it that a loss of NaN or infinity is never hidden."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer

from lit_trainer.batch import ROW
from lit_trainer.callbacks.step_metrics import is_logging_step, log_step_metrics

_MOST_ROWS = 20


class LossGuard(pl.Callback):
    """Ends the run, or skips the optimizer step, when the loss of any of its micro-batches on any rank is not finite.

    All ranks decide alike. The policy ``raise`` never waits for a GPU: there it finds a bad loss one optimizer step
    late, when the bad step may have been applied, but before a checkpoint is written or an evaluation begins. The
    policy ``skip`` waits for the loss of each step before it is applied; weights and optimizer stay as they were. As
    long as every loss is finite it changes nothing.

    Args:
        policy: What to do: end the run with an error that names the rows, or skip the step and count it.
        raise_after_skipped_steps: Skipped steps in a row after which the run ends all the same; None for never.

    Attributes:
        step_skipped: Whether the latest optimizer step was skipped here.
        num_skipped_steps: Steps of the whole run that were skipped here, those that a loss scaler skipped apart.

    Raises:
        ValueError: If an argument is not one of the allowed values.
        FloatingPointError: While training, if a loss is not finite and the policy says so.
    """

    def __init__(self, policy: Literal["raise", "skip"] = "raise", raise_after_skipped_steps: int | None = 10) -> None:
        if policy not in ("raise", "skip"):
            raise ValueError(f"policy is {policy!r} but must be raise or skip (LossGuard)")
        if raise_after_skipped_steps is not None and raise_after_skipped_steps < 1:
            raise ValueError(
                f"raise_after_skipped_steps is {raise_after_skipped_steps} but must be at least 1, or null for never"
                " (LossGuard)"
            )
        self.policy = policy
        self.raise_after_skipped_steps = raise_after_skipped_steps
        self.step_skipped = False
        self.num_skipped_steps = 0
        self.num_skipped_in_a_row = 0
        self._rows: Any = None
        self._micro_batches: list[tuple[Tensor, Any]] = []
        self._open: _Finding | None = None
        self._to_be_counted = False

    # -- one optimizer step --------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begins anew."""
        self._micro_batches, self._open, self.step_skipped = [], None, False

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Notes which rows are about to be trained on."""
        self._rows = batch.get(ROW) if isinstance(batch, Mapping) else None

    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        """Keeps the loss of a micro-batch, on its device."""
        self._micro_batches.append((loss.detach(), self._rows))

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Looks at the losses of the step that is about to be made, or at those of the one before."""
        micro_batches, self._micro_batches = self._micro_batches, []
        self._settle(trainer)
        self.step_skipped = False
        if not micro_batches:
            return
        finding = _Finding(trainer.global_step + 1, micro_batches)
        if self.policy == "skip":
            if finding.is_bad():
                self._skip(trainer, optimizer, finding)
            else:
                self.num_skipped_in_a_row = 0
        else:
            self._open = finding
            if not finding.is_late:
                self._settle(trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Counts a skipped step, unless the loss scaler has skipped it by itself."""
        if self._to_be_counted and not getattr(trainer.precision_plugin, "step_skipped", False):
            self.num_skipped_steps += 1
        self._to_be_counted = False
        if self.num_skipped_steps and is_logging_step(trainer):
            log_step_metrics(trainer, {"train/num_skipped_steps": self.num_skipped_steps})

    def _skip(self, trainer: pl.Trainer, optimizer: Optimizer, finding: "_Finding") -> None:
        self.step_skipped = self._to_be_counted = True
        self.num_skipped_in_a_row += 1
        text = finding.describe(trainer)
        if self.num_skipped_in_a_row == self.raise_after_skipped_steps:
            raise FloatingPointError(f"{text}; it is the last of {self.num_skipped_in_a_row} skipped steps in a row")
        rank_zero_warn(f"skipped: {text}")
        # An optimizer leaves alone what has no gradient: no decay, no momentum, no step count.
        optimizer.zero_grad(set_to_none=True)

    # -- what must not see the consequences ----------------------------------------------------------------------------

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Makes sure that no checkpoint holds what a bad loss has led to."""
        self._settle(trainer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Makes sure that nothing is evaluated that a bad loss has led to."""
        self._settle(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Makes sure of the last step."""
        self._settle(trainer)

    def _settle(self, trainer: pl.Trainer) -> None:
        finding, self._open = self._open, None
        if finding is not None and finding.is_bad():
            raise FloatingPointError(finding.describe(trainer))

    def state_dict(self) -> dict[str, Any]:
        """Returns the counts."""
        return {"num_skipped_steps": self.num_skipped_steps, "num_skipped_in_a_row": self.num_skipped_in_a_row}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over the counts.

        Args:
            state_dict: What `state_dict` returned.
        """
        self.num_skipped_steps = state_dict["num_skipped_steps"]
        self.num_skipped_in_a_row = state_dict["num_skipped_in_a_row"]


class _Finding:
    """Whether an optimizer step has a bad loss, found out on the device and brought to the host without waiting.

    Args:
        step: The number of the step, from 1.
        micro_batches: The loss and the rows of each micro-batch on this rank.
    """

    def __init__(self, step: int, micro_batches: list[tuple[Tensor, Any]]) -> None:
        self.step = step
        self.losses = torch.stack([loss.float() for loss, _ in micro_batches])
        self.rows = [rows for _, rows in micro_batches]
        bad = (~torch.isfinite(self.losses)).any().int()
        if _is_distributed():
            torch.distributed.all_reduce(bad, op=torch.distributed.ReduceOp.MAX)
        self.is_late = bad.is_cuda
        self._read = _bring_to_host(bad)

    def is_bad(self) -> bool:
        """Waits for the answer, which after another step has long arrived."""
        return bool(self._read())

    def describe(self, trainer: pl.Trainer) -> str:
        """Tells step, rows and gradient norms. To be called on every rank, of a bad step."""
        own = [
            (str(float(loss)), _numbers(rows))
            for loss, rows in zip(self.losses, self.rows, strict=True)
            if not torch.isfinite(loss)
        ]
        everywhere = [own]
        if _is_distributed():
            everywhere = [[] for _ in range(torch.distributed.get_world_size())]
            torch.distributed.all_gather_object(everywhere, own)
        values = sorted({value.lstrip("-") for found in everywhere for value, _ in found})
        rows = sorted({row for found in everywhere for _, numbers in found for row in numbers})
        text = f"the loss of optimizer step {self.step} is {' and '.join(values)}"
        if rows:
            more = f" and {len(rows) - _MOST_ROWS} more" if len(rows) > _MOST_ROWS else ""
            text += f", on the micro-batch of rows {', '.join(map(str, rows[:_MOST_ROWS]))}{more} of the training split"
        norms = _gradient_norms(trainer)
        return text + (f"; gradient norms when last measured: {norms}" if norms else "")


def _bring_to_host(value: Tensor) -> Callable[[], Tensor]:
    """Starts to copy a value to the host; what is returned waits for that copy alone, not for later work."""
    if not value.is_cuda:
        return lambda: value
    host = torch.empty_like(value, device="cpu", pin_memory=True)
    host.copy_(value, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()

    def read() -> Tensor:
        copied.synchronize()
        return host

    return read


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _numbers(rows: Any) -> list[int]:
    """Returns the numbers of rows that count; -1 fills up a batch."""
    return [row for row in rows.tolist() if row >= 0] if isinstance(rows, Tensor) else []


def _gradient_norms(trainer: pl.Trainer) -> str:
    """Returns what a callback that measures gradients has in its ``latest``, by group."""
    latest: dict[str, Any] = {}
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        found = getattr(callback, "latest", None)
        latest.update(found if isinstance(found, Mapping) else {})
    prefix = "grad_norm/"
    return ", ".join(f"{k.removeprefix(prefix)} {float(v):.3g}" for k, v in latest.items() if k.startswith(prefix))
