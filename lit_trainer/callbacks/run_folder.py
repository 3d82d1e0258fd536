"""Where a run keeps its files."""

from pathlib import Path

import lightning.pytorch as pl


def run_folder(trainer: pl.Trainer) -> Path:
    """Returns the run's own folder, as its first logger versions it, or the Trainer's root folder without a logger.

    To be called on every rank, since a version may be known to the first one only.
    """
    folder = Path(trainer.default_root_dir)
    if trainer.loggers:
        logger = trainer.loggers[0]
        # Loggers that write elsewhere, such as to a service, have no folder of their own but a name and a version.
        own = getattr(logger, "log_dir", None)
        folder = Path(own) if own else Path(logger.save_dir or folder) / str(logger.name) / str(logger.version)
    return Path(trainer.strategy.broadcast(str(folder)))
