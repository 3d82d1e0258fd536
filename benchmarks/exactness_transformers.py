"""The Trainer of Transformers on the cases: batch size per device, accumulation, and a loss of one's own."""

import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from exactness_cases import CASES, SEED, Case, LastGradient, Rows, Split, collate, load_model, run_model
from torch import Tensor
from torch.utils.data import WeightedRandomSampler
from transformers import Trainer, TrainingArguments


def _arguments(run: Path, **settings: Any) -> TrainingArguments:
    return TrainingArguments(
        str(run),
        use_cpu=True,
        ddp_backend="gloo" if "RANK" in os.environ else None,
        max_grad_norm=0.0,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        lr_scheduler_type="constant",
        logging_strategy="no",
        dataloader_pin_memory=False,
        seed=SEED,
        **{"save_strategy": "no", **settings},
    )


class MeanTrainer(Trainer):
    """Overrides ``compute_loss`` by one that returns the mean of the batch."""

    case: Case

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        """Returns the mean loss."""
        logits = run_model(model, inputs, self.case.passes)
        loss = self.case.mean(logits, inputs["labels"])
        return (loss, {"loss": loss, "logits": logits}) if return_outputs else loss


class RowsTrainer(Trainer):
    """Takes the number of the row out of the batch, which the model would not accept."""

    trained: list[int]
    sampler: Any = None

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns the model's own loss."""
        if model.training and self.state.epoch >= 1:
            self.trained = [*getattr(self, "trained", []), *inputs["row"].tolist()]
        return super().compute_loss(model, {k: v for k, v in inputs.items() if k != "row"}, *args, **kwargs)

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        return self.sampler or super()._get_train_sampler(*args, **kwargs)


def _divided(case: Case) -> Any:
    """Returns a ``compute_loss_func`` that divides the sum by what the Trainer counts, as its documentation has it."""

    def compute(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        if case.name == "two tasks":
            weighted, plain = (next(c for c in CASES if c.name == n) for n in ("class-weighted", "cross-entropy"))
            assert weighted.total_and_weight is not None
            assert plain.total_and_weight is not None
            total = weighted.total_and_weight(outputs.logits, labels)[0]
            return (total + 0.5 * plain.total_and_weight(outputs.logits, labels)[0]) / num_items_in_batch
        assert case.total_and_weight is not None
        return case.total_and_weight(outputs.logits, labels)[0] / num_items_in_batch

    return compute


def gradient(folder: str, run: Path, case: Case, split: Split, how: str) -> Tensor:
    """Returns the gradient of the last step of an epoch.

    Args:
        folder: Of the model.
        run: Where it may write.
        case: The loss.
        split: Of the step.
        how: ``mean``: the model's own loss or the Trainer's own smoothing where there is one, else ``compute_loss``
            returns the mean. ``counted``: ``compute_loss_func`` divides a sum by ``num_items_in_batch``.
    """
    pl.seed_everything(SEED, verbose=False)
    model, kept = load_model(folder, case.dropout), LastGradient()
    smoothing = {"label_smoothing_factor": 0.1} if case.name == "smoothed" and how == "mean" else {}
    arguments = _arguments(
        run,
        per_device_train_batch_size=split.micro_batch,
        gradient_accumulation_steps=split.accumulate,
        num_train_epochs=1,
        train_sampling_strategy="sequential",
        **smoothing,
    )
    own = case.name in ("cross-entropy", "ignored labels", "smoothed") and how == "mean"
    kind = RowsTrainer if own or how == "counted" else MeanTrainer
    trainer = kind(
        model,
        arguments,
        data_collator=collate,
        train_dataset=Rows(split.num_rows, case.ignored),
        optimizers=(kept.optimizer(model), None),
        compute_loss_func=_divided(case) if how == "counted" else None,
    )
    trainer.case = case
    trainer.train()
    assert kept.gradient is not None
    return kept.gradient


def evaluation(folder: str, run: Path, num_rows: int, ranks: int) -> dict[str, Any]:
    """Returns the rows that were scored over all ranks and the loss that was reported."""
    pl.seed_everything(SEED, verbose=False)
    rows = Rows(num_rows)
    trainer = RowsTrainer(load_model(folder, 0.0), _arguments(run, per_device_eval_batch_size=2), data_collator=collate)
    found = trainer.predict(rows)
    # It gives no row numbers; logits tell rows apart, since no two are equal.
    model = load_model(folder, 0.0).eval()
    alone = [run_model(model, collate([rows[row]]), 1)[0] for row in range(num_rows)]
    logits = torch.as_tensor(found.predictions)
    nearest = torch.cdist(logits.double(), torch.stack(alone)).argmin(1)
    return {"rows": nearest.tolist(), "loss": float(found.metrics["test_loss"])}


def final_weights(folder: str, run: Path, steps: list[int], resume: int | None) -> Tensor:
    """Trains 3 epochs of 4 steps with dropout, accumulation and class weights.

    Args:
        folder: Of the model.
        run: Where checkpoints are.
        steps: After which steps to write one.
        resume: The step to continue from; None trains from the start.
    """
    pl.seed_everything(SEED, verbose=False)
    model = load_model(folder, 0.1)
    weighted = next(case for case in CASES if case.name == "class-weighted")
    trainer = MeanTrainer(
        model,
        _arguments(
            run,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            num_train_epochs=3,
            learning_rate=1e-3,
            **({"save_strategy": "steps", "save_steps": 1} if resume is None else {}),
        ),
        data_collator=collate,
        train_dataset=Rows(4 * 16),
    )
    trainer.case = weighted
    trainer.train(resume_from_checkpoint=None if resume is None else str(run / f"checkpoint-{resume}"))
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


def weighted_draws(folder: str, run: Path, weights: list[float], num_draws: int, replacement: bool) -> list[int]:
    """Returns the rows that this rank trained on in the second epoch of weighted draws, with dropout.

    The Trainer has no weighted sampling; the sampler comes from an override of ``_get_train_sampler``.

    Args:
        folder: Of the model.
        run: Where it may write.
        weights: Of the rows.
        num_draws: In the epoch, over all ranks.
        replacement: Whether a row can be drawn twice.
    """
    pl.seed_everything(SEED, verbose=False)
    trainer = RowsTrainer(
        load_model(folder, 0.1),
        _arguments(run, per_device_train_batch_size=10, num_train_epochs=2),
        data_collator=collate,
        train_dataset=Rows(len(weights)),
    )
    trainer.sampler = WeightedRandomSampler(weights, num_draws, replacement)
    trainer.train()
    return trainer.trained
