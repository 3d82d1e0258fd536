"""Metrics of single optimizer steps, straight to the loggers.

``self.log`` costs about 200 microseconds for each metric and step even where nothing is written. What is looked at on
logging steps only is therefore written directly, at the same place on the x axis.
"""

from collections.abc import Mapping

from lightning.pytorch import Trainer


def is_logging_step(trainer: Trainer) -> bool:
    """Tells whether the metrics of the optimizer step under way are to be logged: each ``log_every_n_steps``."""
    return bool(trainer._logger_connector.should_update_logs)


def log_step_metrics(trainer: Trainer, metrics: Mapping[str, float]) -> None:
    """Writes metrics of the optimizer step under way to all loggers, if there are any."""
    if not metrics:
        return
    step = trainer.fit_loop.epoch_loop._batches_that_stepped
    for logger in trainer.loggers:
        logger.log_metrics(dict(metrics), step=step)
