"""Stops training when a validation metric has come to a plateau."""

import difflib
import math
from dataclasses import dataclass
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn


@dataclass(frozen=True)
class Verdict:
    """What a history of evaluations says.

    Args:
        best: The last value that counted as an improvement, None before the first.
        num_without_improvement: How many evaluations have passed since.
        reason: Why to stop, None to go on.
    """

    best: float | None
    num_without_improvement: int
    reason: str | None


class PlateauEarlyStopping(Callback):
    """Stops when a metric has not improved for some validations and, if asked, hardly fluctuates any more.

    Only validations count: neither training epochs nor the sanity check. The history of the metric is all that a
    checkpoint keeps, and each decision is made anew from it: a resumed run goes on counting where it stopped, with the
    patience and the other settings of the run that resumes. A plateau before ``min_epochs`` or ``min_steps`` stops
    nothing, unless it is still there at the first validation after them. With a patience alone, and one validation an
    epoch, it stops where Lightning's own early stopping does.

    Args:
        monitor: The name of the metric, as validation logs it.
        mode: Whether the metric is better when it is lower (``min``) or higher (``max``).
        patience: Validations in a row without improvement until it stops.
        min_improvement: What counts as an improvement over the best value: more than this.
        relative: Whether `min_improvement` is a share of the best value rather than a difference.
        fluctuation: Stop only if the last `patience` values, too, lie within a band of less than this share of their
            mean, so that a metric that still swings goes on.
        warmup_evaluations: The first validations, which do not count: neither against the patience nor as a best value.
        warmup_steps: Likewise, validations at or before this optimizer step.
        on_nan: When the metric is NaN or infinite: stop, ignore that validation, or raise an error.

    Attributes:
        best: The best value so far.
        reason: Why training was stopped.

    Raises:
        ValueError: If a value is out of range, or validation logs no such metric.

    Source: Prechelt, Early stopping - but when?, 1998, discusses such criteria.
    """

    def __init__(
        self,
        monitor: str = "val/loss",
        mode: Literal["min", "max"] = "min",
        patience: int = 3,
        min_improvement: float = 0.0,
        relative: bool = False,
        fluctuation: float | None = None,
        warmup_evaluations: int = 0,
        warmup_steps: int = 0,
        on_nan: Literal["stop", "ignore", "raise"] = "stop",
    ) -> None:
        if mode not in ("min", "max"):
            raise ValueError(f"mode must be min or max, not {mode}")
        if on_nan not in ("stop", "ignore", "raise"):
            raise ValueError(f"on_nan must be stop, ignore or raise, not {on_nan}")
        if patience < 1:
            raise ValueError(f"patience must be 1 or more, not {patience}")
        if not min_improvement >= 0.0:
            raise ValueError(f"min_improvement must be 0 or more, not {min_improvement}")
        if fluctuation is not None and not fluctuation > 0.0:
            raise ValueError(f"fluctuation must be above 0, not {fluctuation}")
        if warmup_evaluations < 0 or warmup_steps < 0:
            raise ValueError(
                f"warmup_evaluations and warmup_steps must be 0 or more, not {warmup_evaluations} and {warmup_steps}"
            )
        self.monitor = monitor
        self.mode = mode
        self.patience = patience
        self.min_improvement = min_improvement
        self.relative = relative
        self.fluctuation = fluctuation
        self.warmup_evaluations = warmup_evaluations
        self.warmup_steps = warmup_steps
        self.on_nan = on_nan
        self.reason: str | None = None
        # By optimizer step: an evaluation that is repeated after a resume, or without a step in between, is the same.
        self._history: dict[int, float] = {}

    @property
    def best(self) -> float | None:
        """The best value so far, None before the first that counts."""
        return self.verdict().best

    @property
    def state_key(self) -> str:
        """Tells apart two of them that watch different metrics."""
        return self._generate_state_key(monitor=self.monitor)

    def state_dict(self) -> dict[str, Any]:
        """Returns the history; no setting, so that each can be changed for a resume."""
        return {"history": [[step, value] for step, value in self._history.items()]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes up a history."""
        self._history = {int(step): float(value) for step, value in state_dict["history"]}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forgets an earlier run, before a checkpoint brings its history."""
        if stage == "fit":
            self._history = {}
            self.reason = None

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuses a metric that validation does not log, before any training."""
        self._current_value(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stops a resumed run at once that came to its plateau where it was interrupted."""
        if not trainer.enable_validation:
            rank_zero_warn(f"PlateauEarlyStopping: there is no validation to log {self.monitor}, so it stops nothing")
        if trainer.global_step in self._history:
            self._stop_on_plateau(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes up the metric and decides."""
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        value = self._current_value(trainer)
        self._history[trainer.global_step] = value
        if self.on_nan == "raise" and self._counted() and not math.isfinite(value):
            raise ValueError(f"{self.monitor} is {value} after optimizer step {trainer.global_step}")
        self._stop_on_plateau(trainer)

    def verdict(self) -> Verdict:
        """Decides from the history."""
        counted = self._counted()
        finite = [value for value in counted if math.isfinite(value)]
        best, waited = None, 0
        for value in finite:
            if best is None or self._improves(value, best):
                best, waited = value, 0
            else:
                waited += 1
        reason = None
        if counted and not math.isfinite(counted[-1]) and self.on_nan != "ignore":
            reason = f"{self.monitor} is {counted[-1]}"
        elif waited >= self.patience and self._is_calm(finite[-self.patience :]):
            reason = (
                f"{self.monitor} has not improved on {best:.6g} for {waited} validations and is now {finite[-1]:.6g}"
            )
        return Verdict(best, waited, reason)

    def _counted(self) -> list[float]:
        """Returns the values after the warm-up."""
        return [value for step, value in self._history.items() if step > self.warmup_steps][self.warmup_evaluations :]

    def _improves(self, value: float, best: float) -> bool:
        gain = best - value if self.mode == "min" else value - best
        return gain > self.min_improvement * (abs(best) if self.relative else 1.0)

    def _is_calm(self, values: list[float]) -> bool:
        if self.fluctuation is None:
            return True
        # Multiplied out, since the mean may be 0.
        return max(values) - min(values) < self.fluctuation * abs(sum(values) / len(values)) or len(set(values)) == 1

    def _current_value(self, trainer: Trainer) -> float:
        """Returns the metric as rank 0 has it, so that all ranks decide alike.

        Raises:
            ValueError: If it is not among the metrics that are logged, or is not one number.
        """
        metrics = trainer.callback_metrics
        found = metrics.get(self.monitor)
        value = float(found) if found is not None and found.numel() == 1 else None
        value, names = trainer.strategy.broadcast((value, sorted(metrics)))
        if value is None:
            close = difflib.get_close_matches(self.monitor, names, n=1)
            hint = f" Did you mean {close[0]}?" if close and close[0] != self.monitor else ""
            raise ValueError(
                f"PlateauEarlyStopping.monitor: validation logs no single number as {self.monitor}; "
                f"it logs {', '.join(names) or 'nothing'}.{hint}"
            )
        return value

    def _stop_on_plateau(self, trainer: Trainer) -> None:
        reason = self.verdict().reason
        # Set before the minimum, the wish to stop would stay and be granted there, whatever the metric did since.
        if reason and _minimum_is_reached(trainer):
            self.reason = reason
            trainer.should_stop = True
            rank_zero_info(f"PlateauEarlyStopping: {reason}; training stops at optimizer step {trainer.global_step}")


def _minimum_is_reached(trainer: Trainer) -> bool:
    """Tells whether the run has done its ``min_epochs`` and ``min_steps``, an epoch at its last batch included."""
    epochs: Any = trainer.fit_loop.epoch_progress.current
    at_end = trainer.is_last_batch and epochs.started > epochs.processed
    num_epochs = epochs.processed + int(at_end)
    return num_epochs >= (trainer.min_epochs or 0) and trainer.global_step >= (trainer.min_steps or 0)
