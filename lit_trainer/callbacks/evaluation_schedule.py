"""Says when the validation loop runs, in optimizer steps."""

import math
import sys
from typing import Any

import lightning.pytorch as pl

from lit_trainer.callbacks.run_position import ends_run


class EvaluationSchedule(pl.Callback):
    """Evaluates at regular optimizer steps, and always at the end of training, once.

    Lightning counts micro-batches instead, and leaves out what lies between the last interval and the last step. With
    no interval given, it evaluates at the end of each epoch and at the end of training.

    Args:
        every_n_steps: Optimizer steps from one evaluation to the next.
        every_n_epochs: Epochs from one evaluation to the next.
        every_fraction: The same as a share of the optimizer steps of the whole run, in (0, 1]; an evaluation falls on
            the first step at or after each multiple of it.

    Raises:
        ValueError: If more than one interval is given or one is out of range, if the Trainer has an interval of its
            own, or if ``every_fraction`` is given and the module does not know the number of steps.
    """

    def __init__(
        self,
        every_n_steps: int | None = None,
        every_n_epochs: int | None = None,
        every_fraction: float | None = None,
    ) -> None:
        settings = {"every_n_steps": every_n_steps, "every_n_epochs": every_n_epochs, "every_fraction": every_fraction}
        given = {name: float(value) for name, value in settings.items() if value is not None}
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are given but only one can be (EvaluationSchedule)")
        for name, value in given.items():
            if name == "every_fraction" and not 0 < value <= 1:
                raise ValueError(f"{name} is {value:g} but must be above 0 and at most 1 (EvaluationSchedule)")
            if name != "every_fraction" and value < 1:
                raise ValueError(f"{name} is {value:g} but must be at least 1 (EvaluationSchedule)")
        self.every_n_steps = every_n_steps
        self.every_n_epochs = every_n_epochs if given else 1
        self.every_fraction = every_fraction
        self._num_steps_total = 0
        self._step = 0
        self._evaluated_step: int | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuses a second schedule."""
        if trainer.val_check_interval != 1.0 or trainer.check_val_every_n_epoch not in (1, None):
            raise ValueError(
                f"EvaluationSchedule and the Trainer both say when to evaluate: remove val_check_interval"
                f" ({trainer.val_check_interval}) and check_val_every_n_epoch ({trainer.check_val_every_n_epoch})"
            )

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Takes over from the Trainer."""
        if self.every_fraction is not None:
            total = getattr(pl_module, "num_steps_total", None)
            if total is None:
                raise ValueError(
                    f"EvaluationSchedule: every_fraction needs the number of optimizer steps of the run, but"
                    f" {type(pl_module).__name__} has no num_steps_total; give every_n_steps"
                )
            self._num_steps_total = int(total)
        self._step = trainer.global_step
        trainer.check_val_every_n_epoch = None  # else the Trainer counts batches from the start of each epoch
        # When the run resumes right after an evaluation, Lightning asks again whether one is due, to skip it.
        self._ask_for_evaluation(trainer, 0 < self._step == self._evaluated_step)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Decides whether an evaluation follows."""
        is_boundary = trainer.global_step != self._step
        self._step = trainer.global_step
        self._ask_for_evaluation(trainer, is_boundary and (self._ends_interval(trainer) or ends_run(trainer)))

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Notes which step was evaluated."""
        if not trainer.sanity_checking:
            self._evaluated_step = trainer.global_step

    def _ends_interval(self, trainer: pl.Trainer) -> bool:
        step = trainer.global_step
        if self.every_n_steps is not None:
            return step % self.every_n_steps == 0
        if self.every_fraction is not None:
            interval = self.every_fraction * self._num_steps_total
            return math.floor(step / interval) > math.floor((step - 1) / interval)
        assert self.every_n_epochs is not None
        return trainer.is_last_batch and (trainer.current_epoch + 1) % self.every_n_epochs == 0

    @staticmethod
    def _ask_for_evaluation(trainer: pl.Trainer, due: bool) -> None:
        """Sets the interval in micro-batches that Lightning tests the number of the current one against."""
        trainer.val_check_batch = 1 if due else sys.maxsize

    def state_dict(self) -> dict[str, Any]:
        """Returns which step was evaluated last."""
        return {"evaluated_step": self._evaluated_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over which step was evaluated last.

        Args:
            state_dict: What `state_dict` returned.
        """
        self._evaluated_step = state_dict["evaluated_step"]
