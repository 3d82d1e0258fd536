"""A small task and a quiet Trainer for tests of callbacks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

from lit_trainer.optim.optimizer import OptimizerSpec


class Net(nn.Module):
    """An embedding, two layers and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.head = nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


class ToyTask(LightningModule):
    """Learns random targets. The net is made in ``configure_model``, as a task of the package makes its model."""

    def __init__(self, spec: OptimizerSpec | None = None, num_steps_total: int | None = None) -> None:
        super().__init__()
        self.spec = spec or OptimizerSpec(name="torch.optim.SGD", lr=0.1)
        if num_steps_total is not None:
            self.num_steps_total = num_steps_total
        self.loss_factor = 1.0

    def configure_model(self) -> None:
        if not hasattr(self, "model"):
            torch.manual_seed(7)
            self.model = Net()

    def configure_optimizers(self) -> Any:
        return self.spec.build(self)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        ids, targets = batch[:, 0], batch[:, 1]
        return self.loss_factor * nn.functional.cross_entropy(self.model(ids), targets)


def toy_task(spec: OptimizerSpec | None = None, num_steps_total: int | None = None) -> ToyTask:
    """A task whose net is there at once."""
    task = ToyTask(spec, num_steps_total)
    task.configure_model()
    return task


class Batches:
    """A loader of batches that are there already. Lightning takes a bare list for several loaders."""

    def __init__(self, batches: list[Tensor]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.batches)


def rows(num_batches: int, batch_size: int = 4, seed: int = 0) -> Batches:
    """Batches of ids and targets, int64 ``[B, 2]``."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(6, (num_batches, batch_size), generator=generator)
    targets = torch.randint(2, (num_batches, batch_size), generator=generator)
    return Batches(list(torch.stack([ids, targets], dim=-1)))


def quiet_trainer(root: Path | str, **kwargs: Any) -> Trainer:
    """A Trainer on one CPU that writes nothing unless told to."""
    settings: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": root,
    }
    return Trainer(**settings | kwargs)


def weights(module: nn.Module) -> dict[str, Tensor]:
    """A copy of all parameters by name."""
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
