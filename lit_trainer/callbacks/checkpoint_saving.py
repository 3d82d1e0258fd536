"""Saving a checkpoint on all ranks, so that a disk that cannot take it neither goes unsaid nor ends the run."""

from typing import Literal, TypeAlias

import lightning.pytorch as pl
from lightning.fabric.utilities import rank_zero_warn

WriteErrorPolicy: TypeAlias = Literal["warn", "raise"]


def try_to_save(trainer: pl.Trainer, path: str, weights_only: bool, on_write_error: WriteErrorPolicy) -> bool:
    """Saves a checkpoint and returns, the same on every rank, whether it was written. To be called on every rank.

    Args:
        trainer: The running trainer.
        path: Where to.
        weights_only: Whether optimizer, schedules and callbacks are left out.
        on_write_error: What a failed write is: a warning, or an error on every rank.

    Raises:
        OSError: If the file could not be written and ``on_write_error`` is ``raise``.
        ValueError: If the checkpoint holds what could not be loaded again, whatever ``on_write_error`` says.
    """
    error: OSError | ValueError | None = None
    try:
        trainer.save_checkpoint(path, weights_only)
    except (OSError, ValueError) as raised:
        error = raised
        # Only the rank that writes fails; the others wait at the barrier that follows the write.
        trainer.strategy.barrier("Trainer.save_checkpoint")
    if not _on_any_rank(trainer, error is not None):
        return True
    if _on_any_rank(trainer, isinstance(error, ValueError)) or on_write_error == "raise":
        raise error or OSError(f"another rank could not save {path}")
    rank_zero_warn(f"no checkpoint at step {trainer.global_step}, training goes on without it: {error}")
    return False


def _on_any_rank(trainer: pl.Trainer, condition: bool) -> bool:
    return trainer.strategy.reduce_boolean_decision(condition, all=False)
