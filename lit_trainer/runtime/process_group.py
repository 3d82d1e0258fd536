"""Leaves the process group of a run before the interpreter ends."""

import gc

import lightning.pytorch as pl
import torch.distributed as dist


def leave_process_group(trainer: pl.Trainer) -> None:
    """Destroys the process group once all ranks have done their work.

    Threads of gloo that are still alive when the interpreter ends abort the process: a finished job then counts as
    failed (PyTorch #190489). A model wrapped for DDP keeps them alive, so it goes first. Not to be called after an
    error, where another rank may still wait in the group.

    Args:
        trainer: The Trainer; it cannot be used on several ranks afterwards.
    """
    if not dist.is_available() or not dist.is_initialized():
        return
    trainer.strategy.model = None
    gc.collect()
    dist.destroy_process_group()
