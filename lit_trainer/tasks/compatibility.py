"""Settings that do not go together, refused before the first step rather than hours later or never."""

import logging
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy
from torch import nn

from lit_trainer.losses.base import Loss

_log = logging.getLogger(__name__)


def check_strategy(trainer: pl.Trainer, loss: Loss) -> None:
    """Refuses a strategy that cannot train as set up.

    Args:
        trainer: With its strategy and accumulation.
        loss: What is to be minimised.

    Raises:
        ValueError: If the pair is known to break, with the reason and what to change.
    """
    strategy = trainer.strategy
    if isinstance(strategy, DDPStrategy):
        options = strategy._ddp_kwargs
        if options.get("static_graph") and trainer.accumulate_grad_batches > 1:
            raise ValueError(
                "trainer.strategy: static_graph counts on every backward pass being averaged over the ranks, and "
                f"accumulate_grad_batches={trainer.accumulate_grad_batches} averages only the last of a step; set one "
                "of the two back"
            )
        if strategy._ddp_comm_hook is not None and strategy.root_device.type != "cuda":
            raise ValueError(
                f"trainer.strategy: ddp_comm_hook has no effect on {strategy.root_device.type}; take it out, or train "
                "on CUDA"
            )
    if isinstance(strategy, ModelParallelStrategy):
        num_shares, num_ranks = strategy.distributed_sampler_kwargs["num_replicas"], trainer.world_size
        if num_shares != num_ranks:
            raise ValueError(
                f"trainer.strategy: {num_ranks} processes would see {num_shares} different shares of the rows and "
                f"split layers instead, which the tasks cannot; set data_parallel_size: {num_ranks} and "
                "tensor_parallel_size: 1"
            )
    if strategy.handles_gradient_accumulation and loss.deferred:
        raise ValueError(
            f"{type(strategy).__name__} accumulates gradients itself, so a loss whose weight is known only after the "
            'forward pass (returns: "total_and_weight") cannot be made exact; let it return one value per row'
        )
    if loss.across_rows and trainer.accumulate_grad_batches > 1:
        _log.warning(
            "%s compares the rows of a micro-batch over all ranks: with accumulate_grad_batches=%d it sees a part of "
            "each step at a time, so another accumulation is another loss",
            type(loss).__name__,
            trainer.accumulate_grad_batches,
        )


def check_optimizer(trainer: pl.Trainer, optimizer: torch.optim.Optimizer) -> None:
    """Refuses a fused optimizer where clipping would need its gradients unscaled.

    Args:
        trainer: With its precision and clipping.
        optimizer: As it was built.

    Raises:
        ValueError: If the optimizer unscales gradients inside its step, after they would have been clipped.
    """
    plugin = trainer.precision_plugin
    own = type(plugin) is MixedPrecision and plugin.scaler is not None
    if own and trainer.gradient_clip_val and getattr(optimizer, "_step_supports_amp_scaling", False):
        raise ValueError(
            "trainer.precision: 16-mixed does not clip gradients (gradient_clip_val) of a fused optimizer; take the "
            "plugin of configs/overlays/precision_16.yaml, or set model.optimizer.fused to false"
        )


def check_checkpointing(trainer: pl.Trainer, model: nn.Module) -> None:
    """Refuses re-entrant gradient checkpointing where unused parameters are looked for.

    Args:
        trainer: With its strategy.
        model: With its layers' checkpoint functions.

    Raises:
        ValueError: If a parameter would be marked as ready twice.
    """
    strategy = trainer.strategy
    if not (isinstance(strategy, DDPStrategy) and strategy._ddp_kwargs.get("find_unused_parameters")):
        return
    for module in model.modules():
        function: Any = getattr(module, "_gradient_checkpointing_func", None)
        inner = getattr(function, "checkpoint", function)  # keyed dropout wraps it
        if getattr(inner, "keywords", {}).get("use_reentrant"):
            raise ValueError(
                "trainer.strategy: find_unused_parameters does not go with re-entrant gradient checkpointing; use "
                "model.gradient_checkpointing: true, which is not re-entrant"
            )


def refusal_of_parts(trainer: pl.Trainer, loss: Loss) -> str | None:
    """Returns why a micro-batch that does not fit into memory cannot be computed in parts, or None if it can.

    Args:
        trainer: With its strategy.
        loss: What is computed.
    """
    strategy = trainer.strategy
    if loss.across_rows:
        return f"{type(loss).__name__} compares its rows, and in parts it would be another loss: use smaller batches"
    if strategy.handles_gradient_accumulation:
        return f"{type(strategy).__name__} runs the backward pass by itself: raise accumulate_grad_batches"
    if not isinstance(strategy, SingleDeviceStrategy | DDPStrategy):
        return f"{type(strategy).__name__} has all ranks compute together, also parts: raise accumulate_grad_batches"
    if trainer.training and isinstance(strategy, DDPStrategy):
        # Of a backward pass that fails, DDP must get what is left as if it had not failed.
        for option in ("static_graph", "ddp_comm_hook"):
            if strategy._ddp_kwargs.get(option) or getattr(strategy, f"_{option}", None) is not None:
                return f"{option} of trainer.strategy does not allow for parts: raise accumulate_grad_batches"
    return None
