"""Freezes layers chosen by name, for the whole run or until a step, an epoch or a share of the run."""

from dataclasses import dataclass
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities import rank_zero_info
from torch.nn import Parameter

from lit_trainer.callbacks.applied_steps import num_applied_steps, num_steps_total
from lit_trainer.optim.parameter_names import matching, sample


@dataclass(frozen=True)
class _Rule:
    """One pattern, and when what it matches is released; without a limit, never."""

    key: Literal["patterns", "until_step", "until_epoch", "until_fraction"]
    pattern: str
    limit: float | None = None


class Freezing(Callback):
    """Keeps chosen parameters from learning, for good or for a while.

    Which parameters are frozen follows from the optimizer step and the epoch alone. There is no state to save, and a
    resumed run has frozen and released what an uninterrupted one has. A parameter that several patterns match is
    released when the last of them is. With no pattern it changes nothing.

    On a single device no gradient of a frozen parameter is computed. On several, a strategy such as DDP decides once,
    when it wraps the model, which gradients it averages; those of parameters that are released later are therefore
    computed all along and dropped after each backward pass, before clipping and the step. The numbers are the same, but
    time and memory are saved only for what stays frozen to the end.

    A frozen layer keeps its mode: its dropout goes on, and batch norms go on collecting statistics.

    Args:
        patterns: Regular expressions, each found anywhere in the names of the parameters to freeze for the whole run.
        until_step: Regular expressions for parameters that are frozen until so many optimizer steps were applied.
        until_epoch: Likewise until so many epochs are done.
        until_fraction: Likewise until this share of the run's optimizer steps is done, in (0, 1).

    Raises:
        ValueError: If a pattern matches no parameter, a number is out of range, nothing is left to train, or the
            optimizer does not hold what is released later.
    """

    def __init__(
        self,
        patterns: list[str] | None = None,
        until_step: dict[str, int] | None = None,
        until_epoch: dict[str, int] | None = None,
        until_fraction: dict[str, float] | None = None,
    ) -> None:
        self._rules = [_Rule("patterns", pattern) for pattern in patterns or []]
        self._rules += [_Rule("until_step", *item) for item in (until_step or {}).items()]
        self._rules += [_Rule("until_epoch", *item) for item in (until_epoch or {}).items()]
        self._rules += [_Rule("until_fraction", *item) for item in (until_fraction or {}).items()]
        for rule in self._rules:
            if rule.key == "until_fraction" and not 0.0 < (rule.limit or 0.0) < 1.0:
                raise ValueError(f"until_fraction: {rule.pattern!r} has {rule.limit}, which must be between 0 and 1")
            if rule.key in ("until_step", "until_epoch") and not (rule.limit or 0) >= 1:
                raise ValueError(f"{rule.key}: {rule.pattern!r} has {rule.limit}, which must be 1 or more")
        self._rules_of: dict[str, list[_Rule]] = {}
        self._parameters: dict[str, Parameter] = {}
        self._due: set[_Rule] = set()
        self._num_steps = 0
        self._without_gradient: list[Parameter] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Arranges that the model is frozen as soon as it is made."""
        if stage != "fit":
            return
        configure_model = pl_module.configure_model

        def configure_and_freeze() -> None:
            pl_module.__dict__.pop("configure_model", None)
            configure_model()
            self._freeze(trainer, pl_module)

        # No hook runs between the making of the model and its wrapping by the strategy, which must see what is frozen.
        pl_module.configure_model = configure_and_freeze  # type: ignore[method-assign]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuses an optimizer that would never train what is released later."""
        held = {id(p) for optimizer in trainer.optimizers for group in optimizer.param_groups for p in group["params"]}
        missing = [name for name in self._rules_of if not self._is_frozen_for_good(name)]
        missing = [name for name in missing if id(self._parameters[name]) not in held]
        if missing:
            raise ValueError(
                f"the optimizer does not hold {sample(missing)}, which Freezing releases later; give it all "
                "parameters, also those that are frozen at first"
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Counts the steps of the run, now that the data are there."""
        if any(rule.key == "until_fraction" for rule in self._rules):
            self._num_steps = num_steps_total(pl_module, "Freezing.until_fraction")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Freezes and releases what is due at this step."""
        step, epoch = num_applied_steps(trainer), trainer.current_epoch
        reached = {
            "until_step": step,
            "until_epoch": epoch,
            "until_fraction": step / self._num_steps if self._num_steps else 0.0,
        }
        due = {rule for rule in self._rules if rule.limit is not None and reached[rule.key] >= rule.limit}
        if due != self._due:
            self._apply(trainer, due)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drops the gradients of what is frozen for a while, where they could not be left out."""
        for parameter in self._without_gradient:
            parameter.grad = None

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Gives the model back as it was."""
        if stage == "fit":
            self._release_all()

    def _freeze(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Finds the parameters of each rule and freezes them, as at the start of a run."""
        self._release_all()
        names = dict(pl_module.named_parameters())
        for rule in self._rules:
            for name in matching(rule.pattern, names, rule.key):
                # What is frozen already, beside an adapter or because it is quantised, is not ours to release.
                if names[name].requires_grad:
                    self._rules_of.setdefault(name, []).append(rule)
                    self._parameters[name] = names[name]
        if self._rules and not any(names[name].requires_grad for name in names.keys() - self._rules_of.keys()):
            raise ValueError("Freezing leaves nothing to train at the start of the run: all parameters are frozen")
        if trainer.strategy.handles_gradient_accumulation and any(rule.limit is not None for rule in self._rules):
            raise ValueError(
                f"Freezing cannot release parameters later under {type(trainer.strategy).__name__}, which keeps the "
                "gradients to itself; only patterns can be given"
            )
        self._apply(trainer, due=set())

    def _apply(self, trainer: Trainer, due: set[_Rule]) -> None:
        """Freezes all parameters but those whose every rule is due."""
        self._due = due
        computes_all = not isinstance(trainer.strategy, SingleDeviceStrategy)
        self._without_gradient = []
        num_frozen = 0
        for name, parameter in self._parameters.items():
            frozen = not due.issuperset(self._rules_of[name])
            num_frozen += frozen
            if frozen and computes_all and not self._is_frozen_for_good(name):
                self._without_gradient.append(parameter)
            else:
                parameter.requires_grad_(not frozen)
        if self._rules:
            rank_zero_info(
                f"Freezing: {num_frozen} parameters are frozen, {len(self._parameters) - num_frozen} released"
            )

    def _is_frozen_for_good(self, name: str) -> bool:
        return any(rule.limit is None for rule in self._rules_of[name])

    def _release_all(self) -> None:
        for parameter in self._parameters.values():
            parameter.requires_grad_(True)
        self._rules_of, self._parameters, self._without_gradient, self._due = {}, {}, [], set()
