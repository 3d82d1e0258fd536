"""Plain Lightning on the cases, as in its documentation: a mean loss, a stock DataLoader, the Trainer's settings."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from exactness_cases import CASES, SEED, Case, LastGradient, Rows, Split, collate, load_model, run_model
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Subset, WeightedRandomSampler


class Batches(BatchSampler):
    """A batch sampler of one's own, such as one that batches by length."""


class Module(pl.LightningModule):
    """A module whose training step returns the mean loss of the batch.

    Args:
        folder: Of the model.
        case: The loss.
        kept: Keeps the gradient where that is what is measured.
    """

    def __init__(self, folder: str, case: Case, kept: LastGradient | None = None) -> None:
        super().__init__()
        self.model, self.case, self.kept = load_model(folder, case.dropout), case, kept
        self.scored: list[int] = []
        self.trained: list[int] = []

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """Returns the mean loss."""
        if self.current_epoch == 1:
            self.trained += batch["row"].tolist()
        return self.case.mean(run_model(self.model, batch, self.case.passes), batch["labels"])

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Logs the mean loss over all ranks."""
        self.scored += batch["row"].tolist()
        loss = self.case.mean(run_model(self.model, batch, 1), batch["labels"])
        self.log("loss", loss, sync_dist=True, batch_size=len(batch["labels"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Returns the optimizer."""
        return self.kept.optimizer(self) if self.kept else torch.optim.AdamW(self.parameters(), lr=1e-3)


def _trainer(ranks: int, **settings: Any) -> pl.Trainer:
    return pl.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **{"enable_checkpointing": False, **settings},
    )


def gradient(folder: str, case: Case, split: Split) -> Tensor:
    """Returns the gradient of the last step of an epoch."""
    pl.seed_everything(SEED, verbose=False)
    module = Module(folder, case, LastGradient())
    loader = DataLoader(Rows(split.num_rows, case.ignored), batch_size=split.micro_batch, collate_fn=collate)
    _trainer(split.ranks, max_epochs=1, accumulate_grad_batches=split.accumulate).fit(module, loader)
    assert module.kept is not None
    assert module.kept.gradient is not None
    return module.kept.gradient


def evaluation(folder: str, num_rows: int, ranks: int) -> dict[str, Any]:
    """Returns the rows that this rank scored and the loss that was logged."""
    pl.seed_everything(SEED, verbose=False)
    module, trainer = Module(folder, CASES[0]), _trainer(ranks)
    module.eval()
    rows = Subset(Rows(num_rows), range(num_rows))
    logged = trainer.test(module, DataLoader(rows, batch_size=2, collate_fn=collate), verbose=False)
    return {"rows": module.scored, "loss": float(logged[0]["loss"])}


def final_weights(folder: str, run: Path, steps: list[int], resume: int | None) -> Tensor:
    """Trains 3 epochs of 4 steps with dropout, accumulation, class weights and a shuffled DataLoader.

    Args:
        folder: Of the model.
        run: Where checkpoints are.
        steps: After which steps to write one.
        resume: The step to continue from; None trains from the start.
    """
    pl.seed_everything(SEED, verbose=False)
    weighted = next(case for case in CASES if case.name == "class-weighted")
    module = Module(folder, replace(weighted, dropout=0.1))
    loader = DataLoader(Rows(4 * 16), batch_size=8, shuffle=True, collate_fn=collate)
    saving = ModelCheckpoint(
        run, filename="{step}", every_n_train_steps=1, save_top_k=-1, auto_insert_metric_name=False
    )
    trainer = _trainer(
        1,
        max_epochs=3,
        accumulate_grad_batches=2,
        **({"callbacks": [saving], "enable_checkpointing": True} if resume is None else {}),
    )
    trainer.fit(module, loader, ckpt_path=None if resume is None else str(run / f"{resume}.ckpt"))
    return torch.cat([parameter.detach().flatten() for parameter in module.model.parameters()])


def weighted_draws(
    folder: str, ranks: int, weights: list[float], num_draws: int, replacement: bool, in_batches: bool = False
) -> list[int]:
    """Returns the rows that this rank trained on in the second epoch of weighted draws, with dropout.

    Args:
        folder: Of the model.
        ranks: Processes.
        weights: Of the rows.
        num_draws: In the epoch, over all ranks.
        replacement: Whether a row can be drawn twice.
        in_batches: Whether the sampler is given inside a batch sampler.
    """
    pl.seed_everything(SEED, verbose=False)
    module = Module(folder, replace(CASES[0], dropout=0.1))
    sampler = WeightedRandomSampler(weights, num_draws, replacement)
    how: dict[str, Any] = {"batch_size": 10, "sampler": sampler}
    if in_batches:
        how = {"batch_sampler": Batches(sampler, 10, drop_last=False)}
    _trainer(ranks, max_epochs=2).fit(module, DataLoader(Rows(len(weights)), collate_fn=collate, **how))
    return module.trained
