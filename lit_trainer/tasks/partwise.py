"""What a task does with a batch that does not fit into memory: the same, in parts."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lit_trainer.batch import MICRO_BATCH, Batch
from lit_trainer.losses.base import Loss
from lit_trainer.tasks.compatibility import refusal_of_parts
from lit_trainer.tasks.memory_limit import MemoryLimit, told_of_memory
from lit_trainer.tasks.part_gradients import GradientMarks, PartGradients

if TYPE_CHECKING:
    from lit_trainer.tasks.base import Task


class Partwise:
    """Trains, evaluates and predicts on a batch whole, or in parts once that has run out of memory.

    Args:
        task: What computes outputs and losses.
    """

    def __init__(self, task: "Task") -> None:
        self._task = task
        # A batch that is too large to train on may be evaluated whole.
        self._training, self._evaluation = (MemoryLimit(self._refusal) for _ in range(2))
        self._parameters: list[nn.Parameter] = []
        self._micro_batch: Batch = {}

    def begin(self) -> None:
        """Takes note of what is to be trained; once for each run."""
        self._parameters = list(self._task.parameters())

    def step_loss(self, batch: Batch) -> Tensor:
        """Returns what a task's training step does.

        Args:
            batch: A micro-batch.
        """
        self._micro_batch = batch
        found = self._training.attempt(batch, self._total_and_weight)
        if found is not None:
            return self._task.step_loss(*found, batch)
        parts = self._gradients(self._parameters)
        return parts.attach(self._task.step_loss(parts.total, parts.weight, batch), self._scaled(torch.ones(())))

    def backward(self, loss: Tensor, backward: Callable[[], None]) -> None:
        """Runs a backward pass; the gradients that memory did not suffice for are computed again, in parts.

        What has got its gradient is not to get it twice, and DDP waits for the others to get theirs: they do, as if the
        pass had not failed. Meanwhile the other ranks wait in the all-reduce that ends their own.

        Args:
            loss: What its gradients are of.
            backward: The pass.
        """
        trainer = self._task.trainer
        marks = GradientMarks(self._parameters)
        try:
            return backward()
        except RuntimeError as error:
            reason = told_of_memory(error)
            if reason is None or not self._micro_batch:
                raise
        for tensor in (loss, getattr(trainer.precision_plugin, "unscaled_loss", None)):
            if tensor is not None:
                tensor.detach_()  # Lightning holds on to it, and it holds on to the graph, which fills the memory
        self._training.shrink(self._micro_batch, reason)
        self._task.seed_step(self._micro_batch[MICRO_BATCH])
        with trainer.precision_plugin.train_step_context():
            parts = self._gradients(marks.unreached())
        parts.attach(loss, torch.tensor(trainer.accumulate_grad_batches)).backward()
        return None

    def evaluate(self, batch: Batch) -> None:
        """Has the task score a batch."""

        def evaluate(part: Batch) -> bool:
            self._task.evaluation_step(part)
            return True

        for _ in self._evaluation.in_parts(batch, evaluate):
            pass

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Returns what the task finds for a batch; in another order of rows if it was parted."""
        found = list(self._evaluation.in_parts(batch, self._task.prediction_step))
        return found[0] if len(found) == 1 else {key: torch.cat([part[key] for part in found]) for key in found[0]}

    def _gradients(self, parameters: list[nn.Parameter]) -> PartGradients:
        """Computes gradients of the present micro-batch in parts."""
        factor = self._task.begin_step(self._micro_batch).factor
        factor = self._scaled(factor * self._task.loss_factor)
        gradients = PartGradients([parameter for parameter in parameters if parameter.requires_grad], factor)

        def add(part: Batch) -> bool:
            gradients.add(*self._total_and_weight(part))
            return True

        for _ in self._training.in_parts(self._micro_batch, add):
            pass
        return gradients

    def _total_and_weight(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self._task.compute_loss(self._task.compute_outputs(batch), batch)

    def _scaled(self, value: Tensor) -> Tensor:
        """Multiplies by what keeps float16 gradients from vanishing, where there is such a thing."""
        scaler: Any = getattr(self._task.trainer.precision_plugin, "scaler", None)
        value = value.to(self._task.device)
        scaled: Tensor = value if scaler is None else scaler.scale(value)
        return scaled

    def _refusal(self) -> str | None:
        loss = self._task.loss
        assert isinstance(loss, Loss)
        return refusal_of_parts(self._task.trainer, loss)
