"""A module and data small enough to train in milliseconds, with a metric that follows a script."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from lit_trainer.runtime.checkpoint_files import AtomicCheckpointIO

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "log_every_n_steps": 1,
}


class TinyTask(pl.LightningModule):
    """A random two-layer BERT that logs, besides its loss, the scripted metric of each evaluated step.

    Args:
        folder: Of the tiny BERT.
        scores: From the optimizer step to ``val/f1``; the step itself over a thousand without.
        num_labels: Classes of the head.
    """

    def __init__(
        self, folder: Path, scores: Callable[[int], float] | dict[int, float] | None = None, num_labels: int = 2
    ) -> None:
        super().__init__()
        self.folder = folder
        self.scores = scores
        self.num_labels = num_labels
        self.evaluated_steps: list[int] = []
        self.trained_rows: list[list[int]] = []
        self.baseline_metrics: dict[str, float] | None = None

    @property
    def num_steps_total(self) -> int:
        trainer = self.trainer
        per_epoch = int(trainer.num_training_batches) // trainer.accumulate_grad_batches
        limits = [trainer.max_steps] if trainer.max_steps > -1 else []
        if trainer.max_epochs is not None and trainer.max_epochs > -1:
            limits.append(per_epoch * trainer.max_epochs)
        return min(limits)

    def configure_model(self) -> None:
        if getattr(self, "model", None) is None:
            torch.manual_seed(0)
            config = AutoConfig.from_pretrained(self.folder, num_labels=self.num_labels)
            self.model = AutoModelForSequenceClassification.from_config(config)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        self.trained_rows.append(batch["row"].tolist())
        torch.manual_seed(self.trainer.global_step)
        loss = self.loss(batch)
        self.log("train/loss", loss, batch_size=len(batch["row"]))
        return loss

    def loss(self, batch: dict[str, Any]) -> Tensor:
        return self.model(input_ids=batch["input_ids"], labels=batch["labels"]).loss

    def on_validation_epoch_end(self) -> None:
        step = self.trainer.global_step
        if not self.trainer.sanity_checking:
            self.evaluated_steps.append(step)
        score = self.scores(step) if callable(self.scores) else (self.scores or {}).get(step, step / 1000)
        self.log("val/f1", torch.tensor(score))

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.log("val/loss", self.loss(batch), batch_size=len(batch["row"]))

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        loss = self.loss(batch)
        self.log_dict({"test/loss": loss, "test/f1": 1 / (1 + loss)}, batch_size=len(batch["row"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=1e-3)


class Batches:
    """The batches of an epoch; a pass goes on where the Trainer's own count of trained batches is."""

    def __init__(self, batches: Sequence[dict[str, Any]], position: Callable[[], int]) -> None:
        self.batches = batches
        self.position = position

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from self.batches[self.position() :]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


class LabelMap:
    names = ("good", "bad")


class TinyData(pl.LightningDataModule):
    """24 rows of six tokens, in batches of two for training and of eight for evaluation.

    Args:
        folder: Of the tiny BERT's tokenizer.
        num_batches: Training batches in an epoch.
    """

    def __init__(self, folder: Path | None = None, num_batches: int = 12) -> None:
        super().__init__()
        self.num_batches = num_batches
        self.tokenizer = AutoTokenizer.from_pretrained(folder) if folder else None
        self.label_map = LabelMap()
        generator = torch.Generator().manual_seed(3)
        self.input_ids = torch.randint(5, 50, (24, 6), generator=generator)
        self.labels = torch.randint(0, 2, (24,), generator=generator)

    def _batches(self, size: int, number: int) -> list[dict[str, Any]]:
        rows = torch.arange(24).repeat(1 + size * number // 24)[: size * number].split(size)
        return [{"row": row, "input_ids": self.input_ids[row], "labels": self.labels[row]} for row in rows]

    def train_dataloader(self) -> Batches:
        def position() -> int:
            return self.trainer.fit_loop.epoch_loop.batch_progress.current.ready

        return Batches(self._batches(2, self.num_batches), position)

    def val_dataloader(self) -> Batches:
        return Batches(self._batches(8, 3), lambda: 0)

    def test_dataloader(self) -> Batches:
        return Batches(self._batches(8, 3), lambda: 0)


def make_trainer(root: Path, callbacks: Sequence[pl.Callback], **kwargs: Any) -> pl.Trainer:
    """Returns a quiet Trainer that writes checkpoints atomically."""
    settings = {**QUIET, "default_root_dir": root, "logger": False, "plugins": [AtomicCheckpointIO()], **kwargs}
    return pl.Trainer(callbacks=list(callbacks), **settings)
