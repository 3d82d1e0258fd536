"""Ends a run that is asked to end: all ranks at the same step, with a checkpoint, and queued again by SLURM.

Lightning answers such signals inside their handlers, wherever each rank happens to be, with barriers and broadcasts. A
rank that waits in a collective meanwhile never comes to its handler, and the run hangs (Lightning #20806, #21406). Here
a handler only notes the signal, and the ranks look at their notes together, where all of them pass by.
"""

import logging
import math
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from lightning.pytorch.trainer.states import TrainerFn

from lit_trainer import signals, slurm
from lit_trainer.callbacks.checkpoint_saving import try_to_save
from lit_trainer.callbacks.run_folder import run_folder
from lit_trainer.callbacks.run_position import evaluation_follows, is_dry_run

_log = logging.getLogger(__name__)

_VAL_PROGRESS = "epoch_loop.val_loop.batch_progress"


class Preempted(SystemExit):
    """A run that has ended because it was asked to; the exit code is 128 and the signal's number, as in a shell."""


class Preemption(pl.Callback):
    """Answers SIGUSR1, SIGTERM and Ctrl-C, on whichever rank they come, by ending all ranks at the same step.

    The run is saved as ``preempted-step=N.ckpt`` and goes on from there as if it had not been interrupted, bit by bit;
    an evaluation that was under way is begun again. In a job of SLURM, SIGUSR1 has the job queued again, and SIGTERM
    makes it wait to be killed: SLURM itself queues again a job that gives way to another one, but only if it is still
    there at the end of its time, and one that its user cancels is to stay so. Elsewhere the process exits with 138, 143
    or 130. A second Ctrl-C ends it at once. Lightning's own answers to signals are switched off.

    Args:
        every_n_steps: Optimizer steps from one look at the signals to the next.
        requeue: Whether SIGUSR1 has the job queued again.
        dirpath: Folder of the checkpoint; None is ``checkpoints`` in the run's folder.
        max_wait_seconds: How long a job waits to be killed.

    Raises:
        ValueError: If a number is out of range.
    """

    def __init__(
        self,
        every_n_steps: int = 1,
        requeue: bool = True,
        dirpath: str | None = None,
        max_wait_seconds: float = 3600.0,
    ) -> None:
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps is {every_n_steps} but must be at least 1 (Preemption)")
        if not max_wait_seconds >= 0:
            raise ValueError(f"max_wait_seconds is {max_wait_seconds:g} but must not be negative (Preemption)")
        self.every_n_steps = every_n_steps
        self.requeue = requeue
        self.dirpath = dirpath
        self.max_wait_seconds = max_wait_seconds
        self._watch = ExitStack()
        self._folder = Path()
        self._group: Any = None
        self._world: Any = None
        self._step = 0
        self._evaluation_batches: float = 0
        self._is_mid_evaluation = False
        self._resumes_evaluation = False
        self._schedule: Any = None
        self._max_steps: int | None = None

    # -- the ends of a run ---------------------------------------------------------------------------------------------

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Takes over from Lightning, and ends a run here already that is asked to before it has begun."""
        self._watch.enter_context(signals.watching())
        trainer._signal_connector = _NoHandlers(trainer)
        # What it does at each micro-batch, for SIGTERM alone, waits for the GPU.
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
        self._folder = Path(self.dirpath) if self.dirpath else run_folder(trainer) / "checkpoints"
        self._make_group(trainer)
        self._end_if_asked(trainer, save=False)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Moves behind all other callbacks: their state is part of the checkpoint."""
        trainer.callbacks = [*(c for c in trainer.callbacks if c is not self), self]  # type: ignore[attr-defined]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Has an evaluation begun again that was under way."""
        self._step = trainer.global_step
        self._end_if_asked(trainer, save=False)
        if self._resumes_evaluation:
            self._schedule, trainer.val_check_batch = trainer.val_check_batch, 1

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Gives signals back, and removes what a finished training needs no more."""
        self._watch.close()
        if stage == TrainerFn.FITTING and trainer.is_global_zero and not is_dry_run(trainer):
            self._remove_files()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Gives signals back."""
        self._watch.close()

    # -- where the ranks look at their signals -------------------------------------------------------------------------

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Ends the run between two optimizer steps. Where an evaluation follows, it is that which ends."""
        if trainer.global_step == self._step:  # more micro-batches to come
            return
        self._step = trainer.global_step
        if self._step % self.every_n_steps == 0 and not evaluation_follows(trainer):
            self._end_if_asked(trainer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Counts the batches that all ranks have."""
        if self._max_steps is not None:
            trainer.fit_loop.epoch_loop.max_steps, self._max_steps = self._max_steps, None
        counts = trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches
        self._count_batches(trainer, counts)

    def on_validation_batch_end(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """Ends the run amid an evaluation, which a resume begins again."""
        self._is_mid_evaluation = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        self._end_if_asked_in_evaluation(trainer)
        self._is_mid_evaluation = False

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Ends the run after an evaluation."""
        if self._resumes_evaluation and not trainer.sanity_checking:
            trainer.val_check_batch, self._resumes_evaluation = self._schedule, False
        self._end_if_asked(trainer, save=not trainer.sanity_checking)

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Counts the batches that all ranks have."""
        self._count_batches(trainer, trainer.num_test_batches)

    def on_test_batch_end(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """Ends the run amid a test."""
        self._end_if_asked_in_evaluation(trainer)

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Counts the batches that all ranks have."""
        self._count_batches(trainer, trainer.num_predict_batches)

    def on_predict_batch_end(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """Ends the run amid predictions."""
        self._end_if_asked_in_evaluation(trainer)

    # -- an evaluation in a checkpoint ---------------------------------------------------------------------------------

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Notes an evaluation under way as Lightning's loop does, at its first batch: metrics are not saved."""
        if self._is_mid_evaluation:
            progress = checkpoint["loops"]["fit_loop"][_VAL_PROGRESS]
            for counts in (progress["total"], progress["current"]):
                counts.update(ready=1, started=1, processed=0, completed=0)
            progress["is_last_batch"] = False

    def state_dict(self) -> dict[str, Any]:
        """Returns whether an evaluation is under way."""
        return {"is_mid_evaluation": self._is_mid_evaluation}

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Takes over whether an evaluation is to begin again.

        At the very end, when all steps are done, Lightning would leave it out: there it is given one step to go.
        """
        state = checkpoint.get("callbacks", {}).get(self.state_key, {})
        self._resumes_evaluation = trainer.state.fn == TrainerFn.FITTING and state.get("is_mid_evaluation", False)
        if self._resumes_evaluation and trainer.max_steps == checkpoint["global_step"]:
            self._max_steps = trainer.max_steps
            trainer.fit_loop.epoch_loop.max_steps = self._max_steps + 1

    # -- agreement -----------------------------------------------------------------------------------------------------

    def _make_group(self, trainer: pl.Trainer) -> None:
        """Makes a group of all ranks for their CPUs, so that no GPU is waited for; once for each process group."""
        if trainer.world_size == 1 or not dist.is_available() or not dist.is_initialized():
            self._group = None
        elif self._world is not dist.group.WORLD:
            self._world, self._group = dist.group.WORLD, dist.new_group(backend="gloo")

    def _reduce(self, value: float, operation: Any) -> float:
        if self._group is None:
            return value
        tensor = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(tensor, operation, group=self._group)
        return tensor.item()

    def _count_batches(self, trainer: pl.Trainer, counts: Any) -> None:
        """Finds how many batches of an evaluation every rank has: beyond, one would wait for others in vain."""
        count = self._reduce(float(sum(counts if isinstance(counts, list) else [counts])), dist.ReduceOp.MIN)
        self._evaluation_batches = 0 if math.isinf(count) and self._group is not None else count

    def _end_if_asked_in_evaluation(self, trainer: pl.Trainer) -> None:
        if self._evaluation_batches > 0:
            self._evaluation_batches -= 1
            self._end_if_asked(trainer, save=self._is_mid_evaluation)

    def _end_if_asked(self, trainer: pl.Trainer, save: bool = True) -> None:
        """Ends all ranks if a signal has come on any of them. To be called on every rank."""
        signum = signals.with_precedence(
            int(self._reduce(float(signals.precedence(signals.noted())), dist.ReduceOp.MAX))
        )
        if signum:
            self._end(trainer, signum, save and trainer.state.fn == TrainerFn.FITTING and not is_dry_run(trainer))

    # -- the end -------------------------------------------------------------------------------------------------------

    def _end(self, trainer: pl.Trainer, signum: int, save: bool) -> None:
        name, job = signal.Signals(signum).name, slurm.job_id()
        if save:
            path = self._folder / f"preempted-step={trainer.global_step}.ckpt"
            if try_to_save(trainer, str(path), False, "warn"):
                _log.info("%s: saved %s, to go on from there", name, path)
                if trainer.is_global_zero:
                    self._remove_files(but=path)
        else:
            command = trainer.state.fn.value if trainer.state.fn else "run"
            _log.info("%s: %s ends with nothing new to save", name, command)
        if save and trainer.training:
            trainer._logger_connector.update_train_step_metrics()  # of this step, which Lightning logs after the hooks
        for logger in trainer.loggers:
            logger.save()  # a process that is killed while it waits writes nothing more
        if job and signum == signal.SIGTERM:
            _log.info("job %s waits to be killed: SLURM queues it again if it gives way to another one", job)
            self._wait()
        elif job and self.requeue and signum == signal.SIGUSR1 and self._is_queued_again(trainer, job):
            self._wait(until=signal.SIGTERM)
        # Lightning's launcher kills its own process, and with it the exit code, once a child has ended with another.
        environment = trainer._accelerator_connector.cluster_environment
        is_child = isinstance(environment, LightningEnvironment) and trainer.local_rank > 0
        raise Preempted(0 if is_child else 128 + signum)

    def _is_queued_again(self, trainer: pl.Trainer, job: str) -> bool:
        failed = False
        signals.forget()  # the SIGTERM that follows a request is that of its being granted
        if trainer.is_global_zero:
            fault = slurm.requeue(job)
            failed = fault is not None
            if failed:
                _log.warning("job %s could not be queued again: %s. Submit it anew with ckpt_path %s", job, fault,
                             self._folder.parent)  # fmt: skip
            else:
                _log.info("job %s is queued again", job)
        return not self._reduce(float(failed), dist.ReduceOp.MAX)

    def _wait(self, until: int | None = None) -> None:
        end = time.monotonic() + self.max_wait_seconds
        while time.monotonic() < end and (until is None or signals.noted() != until):
            time.sleep(0.1)

    def _remove_files(self, but: Path | None = None) -> None:
        """Removes the files of former interruptions, unless there is nothing else to go on from."""
        files = set(self._folder.glob("preempted-step=*.ckpt"))
        if but is not None or files < set(self._folder.glob("*.ckpt")):
            for file in files - {but}:
                file.unlink(missing_ok=True)


class _NoHandlers(_SignalConnector):
    """Leaves all signals as they are."""

    def register_signal_handlers(self) -> None:
        """Registers none."""
