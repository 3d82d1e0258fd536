"""Keeps a checkpoint to resume from."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.trainer.states import TrainerFn

from lit_trainer.callbacks.checkpoint_saving import WriteErrorPolicy, try_to_save
from lit_trainer.callbacks.run_folder import run_folder
from lit_trainer.callbacks.run_position import ends_run, evaluation_follows, is_dry_run


class LastCheckpoint(Checkpoint):
    """Saves ``last-step=N.ckpt`` at regular optimizer steps and at the end, and keeps the newest few.

    A file is written between two optimizer steps, never between two micro-batches of one, and where an evaluation is
    due after the step it is written after that: a resumed run evaluates neither twice nor not at all. It is independent
    of any metric, and an older file is removed only after the newer one is complete. With neither interval given, it
    saves at the end of each epoch.

    Args:
        every_n_steps: Optimizer steps from one file to the next.
        every_n_epochs: Epochs from one file to the next.
        num_kept: How many files to keep; with two there is one before the last should that be damaged.
        dirpath: Folder of the files; None is ``checkpoints`` in the run's folder.
        on_write_error: What a failed write is, on a full disk for instance: a warning, after which the run goes on and
            tries again at the next interval, or an error. At the end of the run it is an error in either case.

    Attributes:
        last_model_path: The newest file, empty before the first.

    Raises:
        ValueError: If both intervals are given or a number is below 1.
    """

    def __init__(
        self,
        every_n_steps: int | None = None,
        every_n_epochs: int | None = None,
        num_kept: int = 2,
        dirpath: str | None = None,
        on_write_error: WriteErrorPolicy = "warn",
    ) -> None:
        if every_n_steps is not None and every_n_epochs is not None:
            raise ValueError(
                f"every_n_steps is {every_n_steps} and every_n_epochs is {every_n_epochs}: give one (LastCheckpoint)"
            )
        for name, value in (("every_n_steps", every_n_steps), ("every_n_epochs", every_n_epochs)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value} but must be at least 1 (LastCheckpoint)")
        if num_kept < 1:
            raise ValueError(f"num_kept is {num_kept} but must be at least 1 (LastCheckpoint)")
        self.every_n_steps = every_n_steps
        self.every_n_epochs = 1 if every_n_steps is None and every_n_epochs is None else every_n_epochs
        self.num_kept = num_kept
        self.dirpath = dirpath
        self.on_write_error = on_write_error
        self.last_model_path = ""
        self._kept: list[str] = []
        self._folder = Path()
        self._step = 0
        self._saved_step = 0
        self._is_due = False
        self._trainer: pl.Trainer | None = None

    @property
    def best_model_path(self) -> str:
        """The best file of the run's other checkpoint callbacks: what ``ckpt_path="best"`` asks the first one for."""
        others = self._trainer.checkpoint_callbacks if self._trainer else []
        paths = (getattr(other, "best_model_path", "") for other in others if not isinstance(other, LastCheckpoint))
        return next(filter(None, paths), "")

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Moves behind all other callbacks and settles the folder, the same on every rank."""
        self._trainer = trainer
        # The state of every other callback is part of the file, so all of them must have had their turn.
        trainer.callbacks = [*(c for c in trainer.callbacks if c is not self), self]  # type: ignore[attr-defined]
        self._folder = Path(self.dirpath) if self.dirpath else run_folder(trainer) / "checkpoints"

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Starts counting at the step that the run starts at."""
        self._step = self._saved_step = trainer.global_step
        self._is_due = False

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Saves if it is time and no evaluation follows."""
        if trainer.global_step == self._step:  # more micro-batches to come
            return
        self._step = trainer.global_step
        self._is_due |= self._ends_interval(trainer) or ends_run(trainer)
        if self._is_due and not evaluation_follows(trainer):
            self._save(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Saves if it was time before the evaluation, or if the evaluation has ended the run."""
        if (
            trainer.state.fn == TrainerFn.FITTING
            and not trainer.sanity_checking
            and (self._is_due or ends_run(trainer))
        ):
            self._save(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Saves what has not been saved for whatever reason."""
        if self._saved_step != trainer.global_step:
            self._save(trainer, "raise")

    def _ends_interval(self, trainer: pl.Trainer) -> bool:
        if self.every_n_steps is not None:
            return trainer.global_step % self.every_n_steps == 0
        assert self.every_n_epochs is not None
        return trainer.is_last_batch and (trainer.current_epoch + 1) % self.every_n_epochs == 0

    def _save(self, trainer: pl.Trainer, on_write_error: WriteErrorPolicy | None = None) -> None:
        self._is_due = False
        if is_dry_run(trainer):
            return
        path = str(self._folder / f"last-step={trainer.global_step}.ckpt")
        before = self._kept
        self._kept = [name for name in before if name != path] + [path]
        dropped, self._kept = self._kept[: -self.num_kept], self._kept[-self.num_kept :]
        self.last_model_path = path
        if not try_to_save(trainer, path, False, on_write_error or self.on_write_error):
            self._kept = before
            self.last_model_path = before[-1] if before else ""
            return
        self._saved_step = trainer.global_step
        for name in dropped:
            # Files of the run that this one continues, in its own folder, and the file it started from are not ours.
            if Path(name).parent == self._folder and name != str(trainer.ckpt_path):
                trainer.strategy.remove_checkpoint(name)

    def state_dict(self) -> dict[str, Any]:
        """Returns the files that are kept, oldest first."""
        return {"kept": list(self._kept)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on replacing the oldest file when a run resumes; a test does not turn time back.

        Args:
            state_dict: What `state_dict` returned.
        """
        if self._trainer is not None and self._trainer.state.fn != TrainerFn.FITTING:
            return
        self._kept = list(state_dict["kept"])
        self.last_model_path = self._kept[-1] if self._kept else ""
