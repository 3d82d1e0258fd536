"""How much memory training will take, worked out before the first step."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lit_trainer.batch import EPOCH, MICRO_BATCH, Batch

_SIDE = 64  # of the matrix that an optimizer's state is measured with


@dataclass(frozen=True)
class MemoryEstimate:
    """What one rank will need, in bytes; None where it cannot be told.

    Args:
        weights: Parameters and buffers; of a sharded model this rank's part.
        gradients: One for each parameter that is trained.
        optimizer: What the optimizer keeps of each of them.
        activations: What the largest micro-batch keeps for its backward pass.
    """

    weights: int
    gradients: int
    optimizer: int | None
    activations: int | None

    @property
    def total(self) -> int:
        """The sum of what is known."""
        return self.weights + self.gradients + (self.optimizer or 0) + (self.activations or 0)


def estimate_memory(trainer: pl.Trainer, module: pl.LightningModule, num_tokens: int | None) -> MemoryEstimate:
    """Estimates memory from the parameters, a step of the optimizer on one matrix and a forward pass of one row.

    Not in it are what the libraries take, copies of weights in another precision, and what a layer needs for a moment.

    Args:
        trainer: At the start of training, with the data loaded.
        module: The task.
        num_tokens: Tokens of the largest micro-batch, with padding; None if unknown.
    """
    trained = [_local(parameter) for parameter in module.parameters() if parameter.requires_grad]
    factors = [_state_factor(optimizer) for optimizer in trainer.optimizers]
    per_token = None if num_tokens is None else _activations_per_token(trainer, module)
    gradients = _size(trained)
    return MemoryEstimate(
        weights=_size(_local(tensor) for tensor in [*module.parameters(), *module.buffers()]),
        gradients=gradients,
        optimizer=None if None in factors else round(gradients * sum(factor or 0 for factor in factors)),
        activations=None if per_token is None or num_tokens is None else round(per_token * num_tokens),
    )


def saved_bytes(function: Callable[[], Any], apart_from: Iterable[Tensor] = ()) -> int:
    """Returns how much a function keeps for its backward pass.

    Args:
        function: Computes something that has a graph.
        apart_from: Tensors that are there anyway, such as weights.
    """
    known = {tensor.untyped_storage().data_ptr() for tensor in apart_from}
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        kept = function()
    del kept  # until here, so that no two tensors were at the same place
    return sum(sizes.values())


def _activations_per_token(trainer: pl.Trainer, module: Any) -> float | None:
    """Measures the longest row; None where layers are computed again, or there is no such row, or no memory for it."""
    longest: Callable[[], Batch] | None = getattr(trainer.train_dataloader, "longest_row", None)
    if longest is None or getattr(module, "gradient_checkpointing", False):
        return None
    batch = trainer.strategy.batch_to_device({**longest(), EPOCH: 0, MICRO_BATCH: 0})

    def run() -> Any:
        with trainer.precision_plugin.train_step_context():
            return module.compute_loss(module.compute_outputs(batch), batch)

    # What the pass draws at random is given back, and what it computes is of no use.
    with torch.random.fork_rng(devices=[module.device] if module.device.type == "cuda" else []):
        try:
            return saved_bytes(run, module.parameters()) / max(1, int(batch["input_ids"].numel()))
        except torch.OutOfMemoryError:
            return None


def _state_factor(optimizer: Optimizer) -> float | None:
    """Returns how many bytes an optimizer keeps for each byte of a matrix, by one step of it; None if it cannot."""
    matrix = nn.Parameter(torch.zeros(_SIDE, _SIDE))
    matrix.grad = torch.zeros_like(matrix)
    accepted = inspect.signature(type(optimizer)).parameters
    settings = {key: value for key, value in optimizer.defaults.items() if key in accepted}
    try:
        twin = type(optimizer)([matrix], **settings)
        twin.step()
        return _size(_tensors(twin.state[matrix])) / _size([matrix])
    except Exception:  # of whatever kind: it is somebody else's class, which need not be like torch's
        return None


def _tensors(state: Mapping[str, Any]) -> list[Tensor]:
    return [value for value in state.values() if isinstance(value, Tensor) and value.dim()]


def _local(tensor: Tensor) -> Tensor:
    """Returns the part of a sharded tensor that this rank has."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.itemsize for tensor in tensors)
