"""How many optimizer steps were applied: what schedules count, whatever else Lightning counts."""

from lightning.pytorch import LightningModule, Trainer


def num_applied_steps(trainer: Trainer) -> int:
    """Returns the number of optimizer steps so far that changed the weights.

    Lightning also counts the steps that were skipped, by a gradient scaler after an overflow or by a callback after a
    loss of NaN; what skips steps says how many by its ``num_skipped_steps``.
    """
    skippers = [trainer.precision_plugin, *getattr(trainer, "callbacks", [])]
    return trainer.global_step - sum(int(getattr(skipper, "num_skipped_steps", 0)) for skipper in skippers)


def num_steps_total(pl_module: LightningModule, needed_by: str) -> int:
    """Returns the number of optimizer steps of the whole run, which the task knows.

    Args:
        pl_module: The task, with an int attribute or property ``num_steps_total``.
        needed_by: What asks for it, for the error.

    Raises:
        ValueError: If it has none, or the run has no end.
    """
    total = getattr(pl_module, "num_steps_total", None)
    if total is None:
        raise ValueError(
            f"{needed_by} needs the number of optimizer steps of the run: give {type(pl_module).__name__} an attribute "
            "num_steps_total"
        )
    if total < 1:
        raise ValueError(
            f"{needed_by} needs a run with an end, and num_steps_total is {total}; "
            "set trainer.max_epochs or trainer.max_steps"
        )
    return int(total)
