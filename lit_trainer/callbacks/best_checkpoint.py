"""Keeps the checkpoint of the best evaluation."""

import math
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities import rank_zero_warn
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn

from lit_trainer.callbacks.checkpoint_saving import WriteErrorPolicy, try_to_save
from lit_trainer.callbacks.run_folder import run_folder
from lit_trainer.callbacks.run_position import is_dry_run


class BestCheckpoint(ModelCheckpoint):
    """Saves ``best-step=N.ckpt`` when an evaluation is the best so far, with the weights that were evaluated.

    Only the metric of the evaluation that has just ended counts, never one left over from an earlier step or from
    training; a NaN is never the best, and of equal ones the first stays. Nothing else removes these files. A run that
    resumes in another folder keeps the best so far, where it is.

    Args:
        monitor: The metric, under the name it is logged with in validation, such as ``val/f1``.
        mode: Whether the best is the smallest or the largest.
        num_kept: How many of the best evaluations to keep.
        weights_only: Whether to leave out what only a resume needs, which is about two thirds of the file.
        dirpath: Folder of the files; None is ``checkpoints`` in the run's folder.
        on_write_error: What a failed write is, on a full disk for instance: a warning, after which the run goes on
            with the best before it still in place, or an error.

    Attributes:
        best_model_path: File of the best evaluation so far, empty before the first.
        best_model_score: Its metric.
        best_metrics: All metrics of that evaluation.

    Raises:
        ValueError: If ``mode`` or ``num_kept`` is not one of the allowed values, or, when the first evaluation ends,
            if it did not log ``monitor``.
    """

    def __init__(
        self,
        monitor: str,
        mode: Literal["min", "max"],
        num_kept: int = 1,
        weights_only: bool = False,
        dirpath: str | None = None,
        on_write_error: WriteErrorPolicy = "warn",
    ) -> None:
        if mode not in ("min", "max"):
            raise ValueError(f"mode is {mode!r} but must be min or max (BestCheckpoint)")
        if num_kept < 1:
            raise ValueError(f"num_kept is {num_kept} but must be at least 1 (BestCheckpoint)")
        super().__init__(
            dirpath=dirpath,
            monitor=monitor,
            mode=mode,
            save_top_k=num_kept,
            save_weights_only=weights_only,
            save_on_train_epoch_end=False,
        )
        self.on_write_error = on_write_error
        self._given_dirpath = self.dirpath
        self._metrics: dict[str, dict[str, float]] = {}
        self._dropped: list[str] = []
        self._wanted: frozenset[str] = frozenset()
        self._is_saving = False
        self._folder_resumed_from: Path | None = None

    @property
    def best_metrics(self) -> dict[str, float]:
        """All metrics of the best evaluation so far, by the name they are logged under."""
        return dict(self._metrics.get(self.best_model_path, {}))

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Settles the folder, the same on every rank."""
        self.dirpath = self._given_dirpath or str(run_folder(trainer) / "checkpoints")
        super().setup(trainer, pl_module, stage)

    # -- what Lightning's own would save without an evaluation ---------------------------------------------------------

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Saves nothing, but removes the files that were kept for a checkpoint that there is a newer one of now."""
        self._remove_unwanted(trainer)

    def on_train_epoch_end(self, *_: Any) -> None:
        """Saves nothing."""

    def on_train_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Saves nothing, but removes all files that are no longer among the best."""
        self._wanted = frozenset()
        self._remove_unwanted(trainer)

    # -- evaluations ---------------------------------------------------------------------------------------------------

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forgets the metric of the evaluation before, so that it cannot pass for this one's."""
        trainer.callback_metrics.pop(str(self.monitor), None)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Saves a checkpoint if this evaluation is among the best."""
        if trainer.state.fn != TrainerFn.FITTING:
            return
        score = self._score(trainer)
        if not (trainer.sanity_checking or is_dry_run(trainer)) and self._is_among_best(score):
            self._save(trainer, score)

    def _score(self, trainer: pl.Trainer) -> float:
        metrics = trainer.callback_metrics
        if self.monitor not in metrics:
            names = ", ".join(sorted(metrics)) or "no metric at all"
            raise ValueError(f"BestCheckpoint: monitor is {self.monitor!r}, but the evaluation logged {names}")
        # Ranks may differ in the last bit, but they must not differ in whether they save.
        return float(trainer.strategy.broadcast(float(metrics[self.monitor])))

    def _is_among_best(self, score: float) -> bool:
        if math.isnan(score):
            return False
        if len(self.best_k_models) < self.save_top_k:
            return True
        worst = float(self.best_k_models[self._ranked(self.best_k_models)[-1]])
        return score < worst if self.mode == "min" else score > worst

    def _ranked(self, scores: dict[str, torch.Tensor]) -> list[str]:
        """Sorts files from best to worst, equal ones by age."""
        return sorted(scores, key=lambda path: float(scores[path]) * (1 if self.mode == "min" else -1))

    def _save(self, trainer: pl.Trainer, score: float) -> None:
        path = str(Path(str(self.dirpath)) / f"best-step={trainer.global_step}.ckpt")
        scores = {**self.best_k_models, path: torch.tensor(score, dtype=torch.float64)}
        ranked = self._ranked(scores)
        kept, dropped = ranked[: self.save_top_k], ranked[self.save_top_k :]
        before = self.best_k_models
        stage = str(self.monitor).split("/")[0]
        metrics = {key: float(value) for key, value in trainer.callback_metrics.items() if key.split("/")[0] == stage}
        self._metrics[path] = metrics
        # The new ranking is part of what is saved, so that a resume from this very file knows of it.
        self._rank({name: scores[name] for name in scores if name in kept})
        self.current_score = scores[path]
        self._is_saving = True
        saved = try_to_save(trainer, path, self.save_weights_only, self.on_write_error)
        self._is_saving = False
        if not saved:
            self._rank(before)
            return
        self._last_global_step_saved = trainer.global_step
        self._last_checkpoint_saved = path
        self._dropped = [name for name in self._dropped if name != path] + dropped
        self._remove_unwanted(trainer)
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.after_save_checkpoint(self)

    def _rank(self, scores: dict[str, torch.Tensor]) -> None:
        """Sets all that Lightning and its loggers read off the files kept and their scores."""
        self.best_k_models = scores
        self._metrics = {name: metrics for name, metrics in self._metrics.items() if name in scores}
        ranked = self._ranked(scores)
        self.best_model_path = ranked[0] if ranked else ""
        self.best_model_score = scores[ranked[0]] if ranked else None
        self.kth_best_model_path = ranked[-1] if ranked else ""
        if ranked:
            self.kth_value = scores[ranked[-1]]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Agrees on the best so far: after a resume each rank has looked for its file by itself."""
        super().on_train_start(trainer, pl_module)
        self._rank(trainer.strategy.broadcast(self.best_k_models))

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Notes which files a resume from this checkpoint will want, until there is a newer one."""
        if not self._is_saving:
            self._wanted = frozenset(self.best_k_models)

    def _remove_unwanted(self, trainer: pl.Trainer) -> None:
        for name in [name for name in self._dropped if name not in self._wanted]:
            self._dropped.remove(name)
            if self._should_remove_checkpoint(trainer, name, ""):
                trainer.strategy.remove_checkpoint(name)

    # -- resuming ------------------------------------------------------------------------------------------------------

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Notes whether a run resumes, and from where: the files of a run that was moved are beside its checkpoint."""
        resumes = trainer.state.fn == TrainerFn.FITTING and trainer.ckpt_path is not None
        self._folder_resumed_from = Path(str(trainer.ckpt_path)).parent if resumes else None

    def state_dict(self) -> dict[str, Any]:
        """Returns the best so far and the files that are only there for a resume from an earlier checkpoint."""
        return {**super().state_dict(), "dropped": list(self._dropped), "metrics": dict(self._metrics)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over the best so far when a run resumes; a test loads weights and does not turn time back.

        Args:
            state_dict: What `state_dict` returned.
        """
        if self._folder_resumed_from is None:
            return
        self._dropped = list(state_dict["dropped"])
        scores: dict[str, torch.Tensor] = {}
        for name, score in state_dict["best_k_models"].items():
            places = [Path(name), self._folder_resumed_from / Path(name).name]
            found = next((str(place) for place in places if place.exists()), None)
            if found is None:
                rank_zero_warn(f"the best checkpoint so far, {name}, is gone; a later evaluation takes its place")
            else:
                scores[found] = score
                self._metrics[found] = state_dict["metrics"][name]
        self._rank({name: scores[name] for name in self._ranked(scores)[: self.save_top_k]})
        self._wanted = frozenset(scores)


def best_callback(trainer: pl.Trainer) -> Any:
    """Returns the checkpoint callback that has a best file, one that watches a metric before one that does not."""
    callbacks = sorted(trainer.checkpoint_callbacks, key=lambda callback: getattr(callback, "monitor", None) is None)
    return next((callback for callback in callbacks if getattr(callback, "best_model_path", "")), None)
