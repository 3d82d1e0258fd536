"""Hidden tokens to be found: how a model is adapted to texts that have no labels."""

from typing import Any

import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForMaskedLM, PreTrainedModel

from lit_trainer.batch import LABELS, Batch, is_counted, model_inputs
from lit_trainer.losses.base import Loss
from lit_trainer.losses.cross_entropy import CrossEntropy
from lit_trainer.models.chosen_logits import ChosenLogits
from lit_trainer.models.loading import load_pretrained
from lit_trainer.tasks.base import Task


class MaskedLanguageModeling(Task):
    """Trains any model of Transformers that has a head for masked language modeling.

    The data hides the tokens, by the transform `lit_trainer.data.transforms.mask_tokens.MaskTokens`. A step's loss is
    the mean over all tokens that its rows have hidden. Evaluations hide the same tokens each time, on any number of
    ranks, and log ``loss``, ``perplexity`` and ``accuracy`` over them. Any other task can start from what is exported.
    """

    next_command = "lit-trainer fit --config RECIPE.yaml --model.pretrained {export}"

    _sums: list[tuple[Tensor, Tensor, Tensor]]

    def load_model(self) -> PreTrainedModel:
        """Loads the model with the head that finds tokens."""
        return load_pretrained(
            AutoModelForMaskedLM,
            self.pretrained,
            seed=self.seed,
            config=self.config,
            gradient_checkpointing=self.gradient_checkpointing,
            trust_remote_code=self.trust_remote_code,
            is_to_be_trained=self.trainer.state.fn == TrainerFn.FITTING,
        )

    def default_loss(self) -> Loss:
        """Returns cross-entropy."""
        return CrossEntropy()

    def configure_model(self) -> None:
        """Loads the model and sees to it that only hidden tokens are looked for."""
        if getattr(self, "model", None) is None:
            super().configure_model()
            self._logits = ChosenLogits(self.model)

    def compute_outputs(self, batch: Batch) -> dict[str, Any]:
        """Runs the model as often as the loss wants it.

        Args:
            batch: A micro-batch with labels ``[B, L]``, of which K count.

        Returns:
            ``logits`` ``[K, V]``, of each entry of the vocabulary for each hidden token; with a leading axis where the
            loss wants several passes.

        Raises:
            ValueError: If the data has not hidden any token.
        """
        if LABELS not in batch or batch[LABELS].shape != batch["input_ids"].shape:
            raise ValueError(
                "data.transforms: nothing hides the tokens that MaskedLanguageModeling is to find; add "
                "lit_trainer.data.transforms.mask_tokens.MaskTokens"
            )
        assert self.loss is not None
        hidden, logits = is_counted(batch[LABELS]), []
        for pass_index in range(self.loss.passes):
            self.key_dropout(batch, pass_index)
            logits.append(self._logits(hidden, **model_inputs(batch)))
        return {"logits": logits[0] if len(logits) == 1 else torch.stack(logits)}

    def compute_loss(self, outputs: dict[str, Any], batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the sum of the losses of a micro-batch's hidden tokens and their weight.

        Args:
            outputs: What `compute_outputs` returned.
            batch: The micro-batch.
        """
        labels = batch[LABELS]
        return super().compute_loss(outputs, {**batch, LABELS: labels[is_counted(labels)]})

    def evaluation_step(self, batch: Batch) -> None:
        """Adds up what was found of a batch's hidden tokens.

        Args:
            batch: As the evaluation loader makes it.
        """
        outputs = self.compute_outputs(batch)
        total, weight = self.compute_loss(outputs, batch)
        assert self.loss is not None
        logits = outputs["logits"] if self.loss.passes == 1 else outputs["logits"].mean(0)
        labels = batch[LABELS][is_counted(batch[LABELS])]
        surprise = F.cross_entropy(logits.float(), labels, reduction="sum")
        found = (logits.argmax(-1) == labels).sum()
        number = torch.tensor(len(labels), device=labels.device)
        self._sums.append((total.double(), weight.double(), torch.stack([surprise, found, number]).double()))

    def on_validation_epoch_start(self) -> None:
        """Begins an evaluation."""
        self._sums = []

    def on_test_epoch_start(self) -> None:
        """Begins an evaluation."""
        self._sums = []

    def on_validation_epoch_end(self) -> None:
        """Logs ``val/loss``, ``val/perplexity`` and ``val/accuracy``."""
        self._log_scores("val")

    def on_test_epoch_end(self) -> None:
        """Logs ``test/loss``, ``test/perplexity`` and ``test/accuracy``."""
        self._log_scores("test")

    def _log_scores(self, stage: str) -> None:
        sums = [self._add_over_ranks(torch.stack(column).sum(0)) for column in zip(*self._sums, strict=True)]
        self._sums = []
        total, weight, (surprise, found, number) = sums
        values = {"loss": (total / weight).sum(), "perplexity": (surprise / number).exp(), "accuracy": found / number}
        self.log_dict(
            {f"{stage}/{name}": value.float() for name, value in values.items()}, rank_zero_only=False, batch_size=1
        )
