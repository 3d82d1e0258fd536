"""Watches the gradients of chosen layers, once for each optimizer step, and says when they vanish or explode."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from lit_trainer.callbacks.step_metrics import is_logging_step, log_step_metrics
from lit_trainer.optim.gradient_statistics import Statistics, combine, combine_norms, measure, norms, to_host
from lit_trainer.optim.parameter_names import compiled, matching


class GradientMonitor(Callback):
    r"""Logs what gradients look like by group of layers, and warns when they vanish, explode or are not finite.

    It looks at the whole gradient of an optimizer step: accumulated over micro-batches, averaged over ranks, and
    without the factor of a gradient scaler. For each group it logs, at the steps at which the Trainer logs,

    - ``grad_norm/<group>``, the norm before clipping, and ``grad_norm_clipped/<group>`` after, where there is clipping;
    - ``grad_max/<group>``, the largest magnitude;
    - ``grad_zeros/<group>``, the share of values that are zero, and ``grad_non_finite/<group>``, how many are NaN or
      infinite;
    - ``update_ratio/<group>``, the norm of what the step changes over the norm of the weights, if asked for.

    Parameters without a gradient, such as frozen ones, are left out, and so is a group that has none.

    Args:
        groups: The layers to watch: regular expressions by group name, each found anywhere in the parameters' names; a
            parameter may be in several. Or one regular expression that makes a group of each text it matches, or of
            what its parentheses capture, as ``layer\.\d+`` or ``layer\.(\d+)\.(attention|output)``. Without it, all
            parameters are one group, ``all``.
        every_n_steps: Look at every n-th optimizer step, rather than when the Trainer logs.
        norm_type: The order of the norm; ``inf`` for the largest magnitude.
        update_ratio: Whether to measure the update, too. It needs a copy of the watched weights for a moment.
        vanishing_below: Warn when the norm of a group falls below this.
        exploding_above: Warn when the norm of a group rises above this.

    Attributes:
        latest: What was measured last, by metric name.

    Raises:
        ValueError: If a pattern matches no parameter, or a value is out of range.
    """

    def __init__(
        self,
        groups: dict[str, str] | str | None = None,
        every_n_steps: int | None = None,
        norm_type: float = 2.0,
        update_ratio: bool = False,
        vanishing_below: float | None = None,
        exploding_above: float | None = None,
    ) -> None:
        if every_n_steps is not None and every_n_steps < 1:
            raise ValueError(f"every_n_steps must be 1 or more, not {every_n_steps}")
        if not norm_type > 0.0:
            raise ValueError(f"norm_type must be above 0, not {norm_type}")
        if vanishing_below is not None and exploding_above is not None and vanishing_below >= exploding_above:
            raise ValueError(f"vanishing_below={vanishing_below} must be less than exploding_above={exploding_above}")
        self.groups = groups
        self.every_n_steps = every_n_steps
        self.norm_type = norm_type
        self.update_ratio = update_ratio
        self.vanishing_below = vanishing_below
        self.exploding_above = exploding_above
        self.latest: dict[str, float] = {}
        self._members: dict[str, list[str]] = {}
        self._watched: dict[str, Parameter] = {}
        self._before_step: dict[str, Tensor] | None = None
        self._alarms: dict[str, str] = {}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Finds the parameters of each group."""
        parameters = dict(pl_module.named_parameters())
        self._members = group_names(self.groups, list(parameters))
        watched = {name for members in self._members.values() for name in members}
        self._watched = {name: parameter for name, parameter in parameters.items() if name in watched}
        self._before_step = None
        self._alarms = {}

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Measures the gradients, before they are clipped."""
        if not self._looks_at_this_step(trainer):
            return
        gradients = self._gradients()
        measured = dict(zip(gradients, measure(list(gradients.values()), self.norm_type), strict=True))
        scale = _gradient_scale(trainer, optimizer)
        self.latest = {}
        for group, members in self._members.items():
            if parts := [measured[name] for name in members if name in measured]:
                self._note(group, combine(parts, self.norm_type), scale)
        self._raise_alarms(trainer)
        # Only what has a gradient is changed by the step.
        self._before_step = {n: self._watched[n].detach().clone() for n in gradients} if self.update_ratio else {}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measures what clipping and the step did, and logs it all."""
        if self._before_step is None:
            return
        before, self._before_step = self._before_step, None
        clips = trainer.gradient_clip_val or is_overridden("configure_gradient_clipping", pl_module)
        # Clipped gradients are still there: they are cleared when the next step begins.
        self.latest |= self._after_step(before, self._gradients() if clips else {})
        log_step_metrics(trainer, self.latest)

    def _looks_at_this_step(self, trainer: Trainer) -> bool:
        if self.every_n_steps is None:
            return is_logging_step(trainer)
        return (trainer.global_step + 1) % self.every_n_steps == 0

    def _note(self, group: str, found: Statistics, scale: float) -> None:
        self.latest |= {
            f"grad_norm/{group}": found.norm / scale,
            f"grad_max/{group}": found.largest / scale,
            f"grad_zeros/{group}": found.num_zeros / found.num_values,
            f"grad_non_finite/{group}": float(found.num_non_finite),
        }

    @torch.no_grad()
    def _after_step(self, before: dict[str, Tensor], clipped: dict[str, Tensor]) -> dict[str, float]:
        """Returns norms of clipped gradients and update ratios by metric name, in one transfer to the host."""
        weights = {name: self._watched[name].detach() for name in before}
        updates = before  # in place, as the copies are of no further use
        if updates:
            torch._foreach_sub_(list(updates.values()), list(weights.values()))
        tensors = [*clipped.values(), *updates.values(), *weights.values()]
        sizes = iter(to_host(norms(tensors, self.norm_type))[0])
        clipped_norms, update_norms, weight_norms = (
            {name: next(sizes) for name in column} for column in (clipped, updates, weights)
        )
        found: dict[str, float] = {}
        for group, members in self._members.items():
            if any(name in clipped_norms for name in members):
                found[f"grad_norm_clipped/{group}"] = self._norm_of(members, clipped_norms)
            if any(name in update_norms for name in members):
                weight = self._norm_of(members, weight_norms)
                found[f"update_ratio/{group}"] = self._norm_of(members, update_norms) / weight if weight else 0.0
        return found

    def _norm_of(self, members: list[str], sizes: dict[str, float]) -> float:
        return combine_norms([sizes[name] for name in members if name in sizes], self.norm_type)

    def _gradients(self) -> dict[str, Tensor]:
        return {name: p.grad for name, p in self._watched.items() if p.grad is not None and p.grad.numel()}

    def _raise_alarms(self, trainer: Trainer) -> None:
        """Warns of what is wrong with a group, once until it is right again."""
        for group in self._members:
            if (norm := self.latest.get(f"grad_norm/{group}")) is None:
                continue
            kind, text = self._problem(norm, self.latest[f"grad_non_finite/{group}"], _has_scaler(trainer))
            if kind and kind != self._alarms.get(group):
                rank_zero_warn(
                    f"GradientMonitor: at optimizer step {trainer.global_step} the gradient of {group} {kind}: {text}"
                )
            self._alarms[group] = kind

    def _problem(self, norm: float, num_non_finite: float, has_scaler: bool) -> tuple[str, str]:
        """Returns what is wrong with a gradient and how that shows, or nothing."""
        if num_non_finite:
            # A gradient scaler seeks the largest factor without overflow; it skips the step and goes on.
            return ("", "") if has_scaler else ("is not finite", f"{num_non_finite:.0f} values are NaN or infinite")
        if self.exploding_above is not None and norm > self.exploding_above:
            return "explodes", f"its norm of {norm:.3g} is above exploding_above={self.exploding_above}"
        if self.vanishing_below is not None and norm < self.vanishing_below:
            return "vanishes", f"its norm of {norm:.3g} is below vanishing_below={self.vanishing_below}"
        return "", ""


def group_names(groups: dict[str, str] | str | None, names: list[str]) -> dict[str, list[str]]:
    """Sorts names of parameters into groups; see `GradientMonitor` for the ways to say which.

    Raises:
        ValueError: If a pattern matches no name.
    """
    if groups is None:
        return {"all": names}
    if groups == {}:
        raise ValueError("groups: there is none; leave it out to watch all parameters as one")
    if isinstance(groups, dict):
        return {group: matching(pattern, names, f"groups.{group}") for group, pattern in groups.items()}
    sorted_names: dict[str, list[str]] = {}
    for name in matching(groups, names, "groups"):
        match = compiled(groups, "groups").search(name)
        assert match is not None
        captured = [text for text in match.groups() if text is not None]
        sorted_names.setdefault(".".join(captured) or match[0] or name, []).append(name)
    return sorted_names


def _has_scaler(trainer: Trainer) -> bool:
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return scaler is not None and bool(scaler.is_enabled())


def _gradient_scale(trainer: Trainer, optimizer: Optimizer) -> float:
    """Returns the factor that gradients still have: an optimizer that unscales in its own step gets them scaled."""
    if _has_scaler(trainer) and getattr(optimizer, "_step_supports_amp_scaling", False):
        return float(trainer.precision_plugin.scaler.get_scale())  # type: ignore[attr-defined]
    return 1.0
