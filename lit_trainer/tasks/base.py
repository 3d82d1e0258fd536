"""The contract of a task: a pretrained model, a loss and the steps that train and evaluate them.

What people override, each alone:

- `compute_loss(outputs, batch)`: another loss than the object in ``loss``.
- `compute_outputs(batch)`: what the model is asked, and what the loss gets to see.
- `training_step(batch, batch_idx)`: a step of one's own; end it with ``return self.step_loss(total, weight, batch)``.
- `evaluation_step(batch)`: what validation and test do with a batch.
- `prediction_step(batch)`: what is found for rows without labels.
- `configure_optimizers()`: another optimizer than the one in ``optimizer``.
"""

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from transformers import PreTrainedModel

from lit_trainer.batch import DRAW, EPOCH, LABELS, MICRO_BATCH, STEP_LABELS, Batch, Labels
from lit_trainer.losses.base import Loss
from lit_trainer.losses.function import FunctionLoss
from lit_trainer.models import keyed_dropout, padding_free
from lit_trainer.models.sharding import shard
from lit_trainer.models.token_context import TokenContext
from lit_trainer.optim.optimizer import OptimizerSpec
from lit_trainer.tasks.compatibility import check_checkpointing, check_optimizer, check_strategy
from lit_trainer.tasks.normalisation import StepNormaliser
from lit_trainer.tasks.partwise import Partwise
from lit_trainer.wheel import WheelMember

_log = logging.getLogger(__name__)

_NUM_MICRO_BATCHES = "num_micro_batches"


class Task(pl.LightningModule, ABC):
    """A pretrained model and a loss, trained by optimizer steps whose gradients no split of the hardware changes.

    Args:
        pretrained: The model to start from: a folder, a name on the Hub, or a member of a wheel.
        loss: A `Loss`, or a function of ``(logits, labels)`` that gives one value per row or token. None takes the
            usual one for the labels.
        optimizer: Which optimizer, at which rates.
        config: Entries of the model's configuration to replace, such as ``{hidden_dropout_prob: 0.2}``.
        gradient_checkpointing: Whether activations are computed again in the backward pass instead of kept.
        compile: Whether the model is compiled.
        keyed_dropout: Whether dropout is a function of the row, its place in the plan and the layer rather than of a
            stream of random numbers, so that it is the same on any split of the hardware.
        trust_remote_code: Whether code that comes with the model may run.

    Attributes:
        takes_lengths: Whether the model wants to be told how long the rows are.
    """

    model: PreTrainedModel

    def __init__(
        self,
        pretrained: WheelMember | str,
        loss: Loss | Callable[..., Any] | None = None,
        optimizer: OptimizerSpec | None = None,
        config: dict[str, Any] | None = None,
        gradient_checkpointing: bool = False,
        compile: bool = False,
        keyed_dropout: bool = True,
        trust_remote_code: bool = False,
    ) -> None:
        super().__init__()
        self.pretrained = pretrained
        self.optimizer = optimizer or OptimizerSpec()
        self.config = dict(config or {})
        self.gradient_checkpointing = gradient_checkpointing
        self.compile_model = compile
        self.keyed_dropout = keyed_dropout
        self.trust_remote_code = trust_remote_code
        self.loss = loss if isinstance(loss, Loss) or loss is None else FunctionLoss(loss)
        self._normaliser: StepNormaliser | None = None
        self._step_labels: list[Labels] | None = None
        self._dropout: TokenContext | None = None
        self.takes_lengths = False
        self._partwise = Partwise(self)
        self._step_is_complete = False
        self._num_steps_total: int | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_current_fx_name":  # Lightning notes each hook here, 44 times a step; torch's own way is slow
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    # -- what a task gives -------------------------------------------------------------------------------------------

    @abstractmethod
    def load_model(self) -> PreTrainedModel:
        """Loads the model with the head that the data's labels need."""

    @abstractmethod
    def default_loss(self) -> Loss:
        """Returns the loss for the data's labels when none was given."""

    @abstractmethod
    def compute_outputs(self, batch: Batch) -> dict[str, Any]:
        """Runs the model; returns by name what the loss may look at, ``logits`` at least."""

    @abstractmethod
    def evaluation_step(self, batch: Batch) -> None:
        """Scores a batch of the validation or test split."""

    def compute_loss(self, outputs: dict[str, Any], batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the sum of the losses of a micro-batch and the weight of its rows, each 0-d or ``[T]``.

        Args:
            outputs: What `compute_outputs` returned.
            batch: The micro-batch.
        """
        assert self.loss is not None
        total, weight = self.loss(**outputs, labels=batch[LABELS], batch=batch, progress=self.progress)
        return total, weight

    # -- the run -----------------------------------------------------------------------------------------------------

    @property
    def data(self) -> Any:
        """The run's data module, if it has one."""
        return getattr(self.trainer, "datamodule", None)

    @property
    def num_steps_total(self) -> int:
        """Optimizer steps of the whole run; known once the training data is set up."""
        if self._num_steps_total is None:
            self._num_steps_total = self._count_steps()
        return self._num_steps_total

    def _count_steps(self) -> int:
        trainer = self.trainer
        if trainer.max_epochs is None or trainer.max_epochs < 0:
            return trainer.max_steps
        limit = int(-(-trainer.num_training_batches // trainer.accumulate_grad_batches))
        num_steps = getattr(self.data, "num_steps", None)
        if trainer.limit_train_batches == 1.0 and num_steps is not None:
            steps = sum(int(num_steps(epoch)) for epoch in range(trainer.max_epochs))
        else:
            steps = limit * trainer.max_epochs
        return steps if trainer.max_steps < 0 else min(steps, trainer.max_steps)

    def on_fit_start(self) -> None:
        """Forgets what another run counted, and refuses settings that do not go together."""
        self._num_steps_total = self._step_labels = None
        self._partwise.begin()
        assert self.loss is not None
        check_strategy(self.trainer, self.loss)
        check_checkpointing(self.trainer, self.model)

    @property
    def progress(self) -> float:
        """The share of the run's optimizer steps that are done, in [0, 1]."""
        if not self.trainer.training:
            return 1.0
        return min(1.0, self.trainer.global_step / max(1, self.num_steps_total))

    def configure_model(self) -> None:
        """Loads the model, once."""
        if getattr(self, "model", None) is not None:
            return
        self.model = self.load_model()
        self._dropout = keyed_dropout.install(self.model, self.seed) if self.keyed_dropout else None
        if self.loss is None:
            self.loss = self.default_loss()
        self._set_padding(getattr(self.data, "padding", "longest"))
        if self.compile_model:
            self.model.compile()
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            shard(self.model, self.device_mesh)

    def _set_padding(self, padding: str) -> None:
        """Runs the model without padding where that is asked for, or can be."""
        if padding not in ("auto", "free"):
            return
        try:
            padding_free.install(self.model)
        except ValueError as reason:
            if padding == "free":
                raise ValueError(f"data.padding: {reason}") from reason
            _log.info("padded to the longest row of each micro-batch: %s", reason)
        else:
            self.takes_lengths = not self.compile_model  # which would be compiled anew for each length
            _log.info("padding-free: the model runs on real tokens only")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Builds the optimizer over the parameters of the model and of the loss."""
        optimizer = self.optimizer.build(self)
        check_optimizer(self.trainer, optimizer)
        return optimizer

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Computes the loss of one micro-batch, as its share of the optimizer step's mean.

        Args:
            batch: A micro-batch as the step loader makes it.
            batch_idx: Its number in the epoch.
        """
        self.seed_step(batch[MICRO_BATCH])
        return self._partwise.step_loss(batch)

    def step_loss(self, total: Tensor, weight: Tensor, batch: Batch) -> Tensor:
        """Turns a micro-batch's total and weight into what Lightning takes, and logs the step's mean as ``train/loss``.

        Args:
            total: The sum of its losses, 0-d or ``[T]``.
            weight: What all rows of the step are divided by is the sum of these.
            batch: The micro-batch.
        """
        share = self.begin_step(batch).share(total, weight)
        self._step_is_complete = last = batch[MICRO_BATCH] == self.trainer.accumulate_grad_batches - 1
        if last and self.trainer._logger_connector.should_update_logs:  # a call of log costs 0.2 ms, logged or not
            self.log("train/loss", self.begin_step(batch).mean_loss(), prog_bar=True, batch_size=1)
        return share * self.loss_factor

    @property
    def loss_factor(self) -> int:
        """What undoes later divisions: Lightning divides by the number of micro-batches and DDP by that of ranks.

        DeepSpeed divides by the number of micro-batches once more.
        """
        times = 2 if self.trainer.strategy.handles_gradient_accumulation else 1
        return int(self.trainer.accumulate_grad_batches**times * self.trainer.world_size)

    def begin_step(self, batch: Batch) -> StepNormaliser:
        """Returns the denominator of the optimizer step; its first micro-batch has it worked out, on all ranks.

        Args:
            batch: A micro-batch.
        """
        if batch[MICRO_BATCH] == 0 and batch[STEP_LABELS] is not self._step_labels:
            assert self.loss is not None
            self._step_labels = batch[STEP_LABELS]
            self._normaliser = StepNormaliser(self.loss, self._add_over_ranks)
            self._normaliser.begin(self._step_labels)
        assert self._normaliser is not None
        return self._normaliser

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Computes the gradients of a micro-batch, in parts where it does not fit into memory."""
        self._partwise.backward(loss, lambda: super(Task, self).backward(loss, *args, **kwargs))

    def on_after_backward(self) -> None:
        """Corrects the gradients of a loss whose weight was not known before the forward pass."""
        if self._normaliser is not None and self._step_is_complete:
            self._normaliser.correct_gradients(self.parameters())
            self._step_labels = None

    def key_dropout(self, batch: Batch, pass_index: int = 0) -> None:
        """Tells the model's dropout which rows the next forward pass is for; `compute_outputs` calls it.

        Args:
            batch: The micro-batch.
            pass_index: Which of several passes over it.
        """
        if self._dropout is not None and self.training:
            self._dropout.set_rows(batch[EPOCH], batch[DRAW], pass_index)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Notes how many micro-batches a step has, since Lightning counts those."""
        checkpoint[_NUM_MICRO_BATCHES] = self.trainer.accumulate_grad_batches

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Counts anew where the run goes on with another number of micro-batches in a step.

        Raises:
            ValueError: If the checkpoint was not written between two optimizer steps.
        """
        then, now = checkpoint.get(_NUM_MICRO_BATCHES), self.trainer.accumulate_grad_batches
        if then is not None and then != now and "loops" in checkpoint:
            progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
            for counts in (progress["total"], progress["current"]):
                ready = counts["ready"]
                if ready % then:
                    raise ValueError(
                        f"accumulate_grad_batches was {then} and is {now}: that can only change where a step ends, and "
                        "this checkpoint was written inside one"
                    )
                # The others may be one behind: a checkpoint is often written before the batch counts as completed.
                counts.update({key: ready // then * now - (ready - count) for key, count in counts.items()})

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Scores a batch of the validation split."""
        self._partwise.evaluate(batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Scores a batch of the test split."""
        self._partwise.evaluate(batch)

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Returns what `prediction_step` finds for a batch."""
        return self._partwise.predict(batch)

    def prediction_step(self, batch: Batch) -> dict[str, Tensor]:
        """Returns by name what is found for the rows of a batch, each ``[B, ...]``, ``row`` among it."""
        raise ValueError(f"{type(self).__name__} has nothing to predict")

    def seed_step(self, micro_batch: int) -> None:
        """Makes what is random in a micro-batch a function of seed, step, micro-batch and rank.

        Nothing of a random stream needs saving then, and neither a resume nor a validation shifts it.
        """
        key = [self.seed, self.trainer.global_step, micro_batch, self.trainer.global_rank]
        state = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)
        torch.default_generator.manual_seed(state)
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index or 0].manual_seed(state)

    @property
    def seed(self) -> int:
        """The run's seed, as ``seed_everything`` set it; 0 without."""
        return int(os.environ.get("PL_GLOBAL_SEED", 0))

    def _add_over_ranks(self, tensor: Tensor) -> Tensor:
        if self.trainer.world_size > 1:
            torch.distributed.all_reduce(tensor)
        return tensor
