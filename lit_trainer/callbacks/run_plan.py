"""Says in a few lines what a run is going to do."""

from typing import Any

import lightning.pytorch as pl
import numpy as np
from rich.console import Console, Group
from rich.text import Text

from lit_trainer.callbacks.memory_estimate import MemoryEstimate, estimate_memory
from lit_trainer.optim.warmup import count_warmup_steps


class RunPlan(pl.Callback):
    """Prints, before the first step, what is going to happen: steps, rows and tokens, parameters, memory, and on what.

    The memory is an estimate for one rank, from a forward pass of one row; what the libraries take is not in it.

    Attributes:
        memory: The estimate.
    """

    def __init__(self) -> None:
        self.memory: MemoryEstimate | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Prints it."""
        self.memory = estimate_memory(trainer, pl_module, _largest_micro_batch(trainer))
        if not trainer.is_global_zero:
            return
        lines = {
            "steps": _steps(trainer, pl_module),
            "each step": _batch(trainer),
            "parameters": _parameters(pl_module),
            "memory": _memory(self.memory),
            "runs on": _machine(trainer, pl_module),
        }
        width = max(map(len, lines)) + 3
        texts = [Text.assemble("  ", (f"{name:{width}}", "cyan"), value) for name, value in lines.items() if value]
        Console().print(Group("", *texts, ""), soft_wrap=True)


def _steps(trainer: pl.Trainer, module: pl.LightningModule) -> str:
    total = getattr(module, "num_steps_total", None)
    if total is None or not 0 < total < float("inf"):
        return "as many as it takes"
    text = f"{total:,}"
    num_steps = getattr(_data(trainer), "num_steps", None)
    if num_steps is not None:
        text += f", {num_steps(0):,} an epoch"
    warmup = sum(
        count_warmup_steps(int(total), callback.warmup_steps, callback.warmup_fraction)
        for callback in _callbacks(trainer)
        if hasattr(callback, "warmup_steps") and hasattr(callback, "warmup_fraction")
    )
    if warmup:
        text += f"; the first {warmup:,} warm up"
    if trainer.global_step:
        text += f"; {trainer.global_step:,} are done"
    return text


def _batch(trainer: pl.Trainer) -> str:
    data, plan = _data(trainer), getattr(_data(trainer), "plan", None)
    ranks, parts = trainer.world_size, trainer.accumulate_grad_batches
    how = f"{ranks} rank{'s' * (ranks != 1)} x {parts} micro-batch{'es' * (parts != 1)}"
    if plan is None:
        return how
    epoch, lengths = plan.epoch(trainer.current_epoch), data.rows("train").lengths
    tokens = f"{lengths[epoch.rows].sum() / len(epoch):,.0f} tokens"
    if plan.batch_size is None:
        return (
            f"up to {plan.max_tokens:,} tokens, on average {tokens} in {len(epoch.rows) / len(epoch):,.1f} rows; {how}"
        )
    size = plan.batch_size / (ranks * parts)
    share = f" of {size:g} rows" if size == int(size) else f" of {int(size)} or {int(size) + 1} rows"
    return f"{plan.batch_size:,} rows, on average {tokens}; {how}{share if ranks * parts > 1 else ''}"


def _largest_micro_batch(trainer: pl.Trainer) -> int | None:
    """Returns the tokens, with padding, of the largest micro-batch of the epoch; None where that is not known."""
    data, plan = _data(trainer), getattr(_data(trainer), "plan", None)
    if plan is None:
        return None
    epoch, places = plan.epoch(trainer.current_epoch), trainer.world_size * trainer.accumulate_grad_batches
    longest = np.maximum.reduceat(data.rows("train").lengths[epoch.rows], epoch.starts[:-1])
    return int((-(-np.diff(epoch.starts) // places) * longest).max())


def _parameters(module: pl.LightningModule) -> str:
    total = sum(parameter.numel() for parameter in module.parameters())
    trained = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    text = f"{count(total)}, all trained" if trained == total else f"{count(trained)} trained of {count(total)}"
    still = sum(not each.training for each in module.modules() if any(True for _ in each.parameters(recurse=False)))
    return f"{text}; {still} modules are in evaluation mode" if still else text


def _machine(trainer: pl.Trainer, module: pl.LightningModule) -> str:
    choices = (getattr(callback, "choices", None) for callback in _callbacks(trainer))
    return next((", ".join(choose(trainer, module)) for choose in choices if choose is not None), "")


def _memory(memory: MemoryEstimate) -> str:
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "activations": memory.activations,
    }
    known = ", ".join(f"{name} {size(value)}" for name, value in parts.items() if value is not None)
    unknown = " and ".join(name for name, value in parts.items() if value is None)
    return f"about {size(memory.total)} (an estimate): {known}" + (f"; without {unknown}" if unknown else "")


def count(number: int) -> str:
    """Returns a number in three digits or so: ``22.7 M``."""
    for factor, letter in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {letter}"
    return str(number)


def size(num_bytes: float) -> str:
    """Returns a size in three digits or so: ``91.2 MB``."""
    for factor, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.3g} {unit}"
    return f"{num_bytes:.0f} B"


def _data(trainer: pl.Trainer) -> Any:
    return getattr(trainer, "datamodule", None)


def _callbacks(trainer: pl.Trainer) -> list[Any]:
    return trainer.callbacks  # type: ignore[attr-defined,no-any-return]
