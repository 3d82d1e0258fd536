"""Whole runs on small data, to be compared with one another: run as a script, so that ranks can be started.

Usage: runs.py SETTINGS, a JSON object; writes the final weights and what was logged to ``settings["out"]``.
"""

import json
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from datasets import Dataset
from lightning.pytorch.strategies import ModelParallelStrategy, SingleDeviceStrategy
from transformers import AutoTokenizer

from lit_trainer.data.collation import EncodedRows, PaddingCollator
from lit_trainer.data.loading import EvaluationLoader, StepLoader
from lit_trainer.data.plan import StepPlan, evaluation_batches
from lit_trainer.data.transforms.base import Transforms
from lit_trainer.data.transforms.mask_tokens import MaskTokens
from lit_trainer.losses.cross_entropy import CrossEntropy
from lit_trainer.optim.optimizer import OptimizerSpec
from lit_trainer.tasks.masked_language_modeling import MaskedLanguageModeling
from lit_trainer.tasks.sequence_classification import SequenceClassification
from tests.ending import end

NUM_ROWS, NUM_CLASSES = 75, 3


class PlannedRows(pl.LightningDataModule):
    """Random rows of 3 to 20 tokens with random labels, a fifth of them ignored, drawn by weight."""

    def __init__(self, folder: str, settings: dict[str, Any]) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        lengths = rng.integers(3, 20, NUM_ROWS)
        ids = [rng.integers(5, 45, length).tolist() for length in lengths]
        labels = rng.integers(0, NUM_CLASSES, NUM_ROWS)
        labels[::5] = -100
        tokens = Dataset.from_dict({"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids]})
        masked = settings.get("masked", False)
        self.rows = EncodedRows(tokens, lengths, None if masked else labels)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        self.collate = PaddingCollator(tokenizer)
        self.transforms = Transforms([MaskTokens()] if masked else [], tokenizer, seed=1)
        self.label_map = SimpleNamespace(names=("a", "b", "c"), kind="classes")
        weights = np.where(labels == 0, 4.0, 1.0) if settings.get("weighted", True) else None
        size = {"max_tokens": 150} if settings.get("max_tokens") else {"batch_size": 16}
        self.plan = StepPlan(NUM_ROWS, lengths=lengths, weights=weights, seed=1, **size)
        self.num_steps = self.plan.num_steps
        self.num_workers = settings.get("num_workers", 0)
        self.padding = settings.get("padding", "longest")
        self.num_eval_rows = settings.get("num_eval_rows", NUM_ROWS)
        self.seen: list[list[int]] = []

    def train_dataloader(self) -> StepLoader:
        trainer = self.trainer
        return StepLoader(
            self.rows,
            self.collate,
            self.plan,
            lambda: (trainer.current_epoch, trainer.fit_loop.epoch_loop.batch_progress.current.ready),
            rank=trainer.global_rank,
            num_ranks=trainer.world_size,
            num_micro_batches=trainer.accumulate_grad_batches,
            num_workers=self.num_workers,
            transform=self.transforms.train,
        )

    def val_dataloader(self) -> EvaluationLoader:
        shares = evaluation_batches(self.num_eval_rows, 8, self.trainer.world_size, self.rows.lengths)
        share = shares[self.trainer.global_rank]
        return EvaluationLoader(self.rows, self.collate, share, transform=self.transforms.evaluate)

    test_dataloader = val_dataloader


class InFloat64(SequenceClassification):
    """Everything in float64, so that only what is wrong differs."""

    def configure_model(self) -> None:
        super().configure_model()
        self.model.double()


class MaskedInFloat64(MaskedLanguageModeling):
    """The same for hidden tokens."""

    def configure_model(self) -> None:
        super().configure_model()
        self.model.double()


class KilledError(Exception):
    """The run ends here and now."""


def full(value: torch.Tensor) -> torch.Tensor:
    """A tensor that is spread over ranks, in one piece."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


class OwnAccumulation(SingleDeviceStrategy):
    """Accumulates as DeepSpeed does: divides each loss once more, and is asked for a step at every micro-batch."""

    handles_gradient_accumulation = True

    def backward(self, closure_loss: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return super().backward(closure_loss / self.lightning_module.trainer.accumulate_grad_batches, *args, **kwargs)

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
        closure()
        if not self.lightning_module.trainer.fit_loop._should_accumulate():
            optimizer.step()


def strategy(name: str) -> Any:
    if name == "own accumulation":
        return OwnAccumulation("cpu")
    if name == "fsdp2":
        return ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1, save_distributed_checkpoint=False)
    return name


def run(settings: dict[str, Any]) -> None:
    pl.seed_everything(7, verbose=False)
    data = PlannedRows(settings["folder"], settings)
    dropout = settings.get("dropout", 0.0)
    masked = settings.get("masked", False)
    task = (MaskedInFloat64 if masked else InFloat64)(
        settings["folder"],
        loss=CrossEntropy() if masked else CrossEntropy(class_weights=[1.0, 5.0, 0.3]),
        optimizer=OptimizerSpec(lr=1e-3),
        config={"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout},
    )
    ranks = settings.get("ranks", 1)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy=strategy(settings.get("strategy", "ddp" if ranks > 1 else "auto")),
        accumulate_grad_batches=settings.get("accumulate", 1),
        max_steps=settings.get("max_steps", -1),
        max_epochs=settings.get("max_epochs", 1000),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        limit_val_batches=1.0 if settings.get("validate_every") else 0,
        val_check_interval=settings.get("validate_every"),
        check_val_every_n_epoch=None if isinstance(settings.get("validate_every"), int) else 1,
        reload_dataloaders_every_n_epochs=1 if settings.get("max_tokens") else 0,
    )
    losses = []

    class Losses(pl.Callback):
        """Notes the loss of every step, and stops after one, as a kill would, with a checkpoint written there."""

        def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            if trainer.fit_loop._should_accumulate():
                return
            losses.append(float(trainer.logged_metrics.get("train/loss", float("nan"))))
            if trainer.global_step == settings.get("kill_at"):
                trainer.save_checkpoint(settings["checkpoint"])
                raise KilledError

    trainer.callbacks.append(Losses())
    if settings.get("only_test"):
        trainer.test(task, datamodule=data, verbose=False)
    else:
        try:
            trainer.fit(task, datamodule=data, ckpt_path=settings.get("resume"))
        except KilledError:
            return
    weights = {name: full(value).cpu() for name, value in task.model.state_dict().items()}
    if trainer.is_global_zero:
        torch.save(
            {
                "weights": weights,
                "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
                "steps": trainer.global_step,
                "rows": None if masked or task.scores is None else task.scores.rows,
                "losses": losses,
            },
            settings["out"],
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run(json.loads(sys.argv[1]))
    end()
