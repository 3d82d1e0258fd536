"""Where a run stands and what Lightning will do next."""

import lightning.pytorch as pl


def is_dry_run(trainer: pl.Trainer) -> bool:
    """Tells whether the run only tries out its code and is to leave nothing behind (``fast_dev_run``)."""
    return bool(getattr(trainer, "fast_dev_run", False))


def ends_run(trainer: pl.Trainer) -> bool:
    """Tells, at the end of a training batch or of the evaluation after it, whether no other batch follows."""
    last_step = -1 < trainer.max_steps <= trainer.global_step
    last_epoch = trainer.max_epochs is not None and -1 < trainer.max_epochs <= trainer.current_epoch + 1
    stops = trainer.should_stop and trainer.fit_loop._can_stop_early
    return stops or last_step or (last_epoch and trainer.is_last_batch)


def evaluation_follows(trainer: pl.Trainer) -> bool:
    """Tells, at the end of a training batch, whether the validation loop runs before the next one."""
    fit_loop = trainer.fit_loop
    assert fit_loop._data_fetcher is not None
    return fit_loop.epoch_loop._should_check_val_fx(fit_loop._data_fetcher)
