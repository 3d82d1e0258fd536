"""lit_trainer on the cases: its own task, plan, loader, losses and callbacks."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from exactness_cases import CLASS_WEIGHTS, SEED, STEP_ROWS, Case, LastGradient, Split, hard_rows, make_rows
from torch import Tensor
from transformers import AutoTokenizer

from lit_trainer.data.collation import EncodedRows, PaddingCollator
from lit_trainer.data.loading import EvaluationLoader, StepLoader
from lit_trainer.data.plan import StepPlan, evaluation_batches
from lit_trainer.losses.base import Loss
from lit_trainer.losses.cross_entropy import CrossEntropy
from lit_trainer.losses.focal import FocalLoss
from lit_trainer.losses.function import FunctionLoss
from lit_trainer.losses.multi_task import MultiTask
from lit_trainer.losses.r_drop import RDrop
from lit_trainer.optim.optimizer import OptimizerSpec
from lit_trainer.tasks.sequence_classification import SequenceClassification


def make_loss(name: str) -> Loss:
    """Returns the loss of a case."""
    weighted = CrossEntropy(class_weights=CLASS_WEIGHTS)
    losses: dict[str, Loss] = {
        "cross-entropy": CrossEntropy(),
        "class-weighted": weighted,
        "ignored labels": CrossEntropy(),
        "smoothed": CrossEntropy(label_smoothing=0.1),
        "focal, class-weighted": FocalLoss(gamma=2.0, class_weights=CLASS_WEIGHTS),
        "two tasks": MultiTask({"weighted": weighted, "plain": CrossEntropy()}, {"weighted": 1.0, "plain": 0.5}),
        "R-Drop, dropout 0.1": RDrop(weighted),
        "a user's, weight known late": FunctionLoss(hard_rows, returns="total_and_weight"),
    }
    return losses[name]


class PlannedRows(pl.LightningDataModule):
    """The rows, by the plan's steps.

    Args:
        folder: Of the tokenizer.
        num_rows: How many rows there are.
        ignored: Whether some labels are ignored.
        plan: Settings of the plan.
        num_eval_rows: How many of them are evaluated.
    """

    def __init__(
        self, folder: str, num_rows: int, ignored: bool = False, num_eval_rows: int | None = None, **plan: Any
    ) -> None:
        super().__init__()
        tokens, lengths, labels = make_rows(num_rows, ignored)
        self.rows = EncodedRows(tokens, lengths, labels)
        self.collate = PaddingCollator(AutoTokenizer.from_pretrained(folder))
        self.label_map = SimpleNamespace(names=("a", "b", "c"), kind="classes")
        self.plan = StepPlan(num_rows, seed=SEED, **plan)
        self.num_steps = self.plan.num_steps
        self.num_eval_rows = num_eval_rows or num_rows

    def train_dataloader(self) -> StepLoader:
        """Returns this rank's micro-batches from where training stands."""
        trainer = self.trainer
        assert trainer is not None
        return StepLoader(
            self.rows,
            self.collate,
            self.plan,
            lambda: (trainer.current_epoch, trainer.fit_loop.epoch_loop.batch_progress.current.ready),
            rank=trainer.global_rank,
            num_ranks=trainer.world_size,
            num_micro_batches=trainer.accumulate_grad_batches,
        )

    def test_dataloader(self) -> EvaluationLoader:
        """Returns this rank's share of the rows to evaluate."""
        assert self.trainer is not None
        shares = evaluation_batches(self.num_eval_rows, 2, self.trainer.world_size, self.rows.lengths)
        return EvaluationLoader(self.rows, self.collate, shares[self.trainer.global_rank])


class InFloat64(SequenceClassification):
    """The task in float64, so that only what is wrong differs."""

    kept: LastGradient | None = None

    def configure_model(self) -> None:
        """Makes the model float64."""
        super().configure_model()
        self.model.double()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Keeps the gradient where that is what is measured."""
        return super().configure_optimizers() if self.kept is None else self.kept.optimizer(self.model)


def make_task(folder: str, loss: Loss, dropout: float) -> InFloat64:
    """Returns the task on the model that all systems start from."""
    return InFloat64(
        folder,
        loss=loss,
        optimizer=OptimizerSpec(lr=1e-3),
        config={"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout},
    )


def make_trainer(ranks: int, **settings: Any) -> pl.Trainer:
    """Returns a quiet Trainer for real processes."""
    return pl.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **settings,
    )


def gradient(folder: str, case: Case, split: Split) -> Tensor:
    """Returns the gradient of the last step of an epoch."""
    pl.seed_everything(SEED, verbose=False)
    task = make_task(folder, make_loss(case.name), case.dropout)
    task.kept = LastGradient()
    data = PlannedRows(folder, split.num_rows, case.ignored, batch_size=STEP_ROWS, shuffle=False)
    make_trainer(split.ranks, max_epochs=1, accumulate_grad_batches=split.accumulate).fit(task, datamodule=data)
    assert task.kept.gradient is not None
    return task.kept.gradient


def evaluation(folder: str, num_rows: int, ranks: int) -> dict[str, Any]:
    """Returns which rows an evaluation scored, over all ranks, and the loss that it logged."""
    pl.seed_everything(SEED, verbose=False)
    task = make_task(folder, make_loss("cross-entropy"), 0.0)
    trainer = make_trainer(ranks)
    data = PlannedRows(folder, max(num_rows, 1), batch_size=STEP_ROWS)
    trainer.test(task, datamodule=data, verbose=False)
    assert task.scores is not None
    return {"rows": task.scores.rows.tolist(), "loss": float(task.scores.loss)}


class _Saved(pl.Callback):
    """Writes a checkpoint after each of some optimizer steps."""

    def __init__(self, folder: Path, steps: list[int]) -> None:
        self.folder, self.steps = folder, steps

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Writes it."""
        if not trainer.fit_loop._should_accumulate() and trainer.global_step in self.steps:
            trainer.save_checkpoint(self.folder / f"{trainer.global_step}.ckpt")


def final_weights(folder: str, run: Path, steps: list[int], resume: int | None) -> Tensor:
    """Trains 3 epochs of 4 steps with dropout, accumulation, class weights and weighted rows.

    Args:
        folder: Of the model.
        run: Where checkpoints are.
        steps: After which steps to write one.
        resume: The step to continue from; None trains from the start.
    """
    pl.seed_everything(SEED, verbose=False)
    task = make_task(folder, make_loss("class-weighted"), 0.1)
    num_rows = 4 * 16
    labels = make_rows(num_rows)[2]
    data = PlannedRows(folder, num_rows, batch_size=16, weights=np.where(labels == 1, 3.0, 1.0))
    trainer = make_trainer(1, max_epochs=3, accumulate_grad_batches=2)
    if resume is None:
        trainer.callbacks.append(_Saved(run, steps))  # type: ignore[attr-defined]
    trainer.fit(task, datamodule=data, ckpt_path=None if resume is None else str(run / f"{resume}.ckpt"))
    return torch.cat([parameter.detach().flatten() for parameter in task.model.parameters()])


def weighted_draws(folder: str, ranks: int, weights: list[float], num_draws: int, replacement: bool) -> list[int]:
    """Returns the rows that this rank trained on in the second epoch of weighted draws, with dropout.

    Args:
        folder: Of the model.
        ranks: Processes.
        weights: Of the rows.
        num_draws: In the epoch, over all ranks.
        replacement: Whether a row can be drawn twice.
    """
    pl.seed_everything(SEED, verbose=False)
    task = make_task(folder, make_loss("cross-entropy"), 0.1)
    seen: list[int] = []

    class Seen(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, index: int) -> None:
            if trainer.current_epoch == 1:
                seen.extend(row for row in batch["row"].tolist() if row >= 0)

    data = PlannedRows(
        folder, len(weights), batch_size=20, weights=weights, num_draws=num_draws, replacement=replacement
    )
    trainer = make_trainer(ranks, max_epochs=2)
    trainer.callbacks.append(Seen())  # type: ignore[attr-defined]
    trainer.fit(task, datamodule=data)
    return seen
