"""Mixed precision with the loss scaler's settings in YAML and every skipped optimizer step accounted for."""

from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities import rank_zero_warn
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor
from torch.nn import Module
from torch.optim import LBFGS, Optimizer
from torch.utils.hooks import RemovableHandle


class ScaledMixedPrecision(MixedPrecision):
    """Mixed precision that says which optimizer steps were applied and lets fused optimizers clip.

    With its defaults it trains like Lightning's own ``16-mixed`` or ``bf16-mixed``. float16 gradients underflow, so
    the loss is scaled up and the gradients down again; a step whose gradients overflow is skipped and the scale
    lowered. The scaler waits for that verdict at every step anyway, so knowing it costs nothing more.

    On a resume the settings given here win over the checkpoint's; the current scale comes from the checkpoint.

    Args:
        precision: Whether autocast computes in float16, with a loss scaler, or in bfloat16, without one.
        device: Type of the device autocast works on; ``auto`` is the one the model is on.
        init_scale: Loss scale at the first step.
        growth_factor: What the scale is multiplied by after ``growth_interval`` applied steps in a row.
        backoff_factor: What the scale is multiplied by after a skipped step.
        growth_interval: Applied steps in a row after which the scale grows.
        warn_after_skipped_steps: Skipped steps in a row after which there is a warning; None for never.
        raise_after_skipped_steps: Skipped steps in a row after which the run ends with an error; None for never.

    Attributes:
        unscaled_loss: The loss of a backward pass that is under way, before it was scaled.
        step_skipped: Whether the latest optimizer step was skipped.
        num_skipped_steps: Skipped steps of the whole run.
        num_skipped_in_a_row: Skipped steps since the last applied one.

    Raises:
        ValueError: If a setting is out of its range.
    """

    def __init__(
        self,
        precision: Literal["16-mixed", "bf16-mixed"] = "16-mixed",
        device: str = "auto",
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        warn_after_skipped_steps: int | None = 10,
        raise_after_skipped_steps: int | None = 50,
    ) -> None:
        _refuse(init_scale > 0, "init_scale", init_scale, "above 0")
        _refuse(growth_factor > 1, "growth_factor", growth_factor, "above 1")
        _refuse(0 < backoff_factor < 1, "backoff_factor", backoff_factor, "between 0 and 1")
        _refuse(growth_interval >= 1, "growth_interval", growth_interval, "at least 1")
        for name, limit in (
            ("warn_after_skipped_steps", warn_after_skipped_steps),
            ("raise_after_skipped_steps", raise_after_skipped_steps),
        ):
            _refuse(limit is None or limit >= 1, name, limit, "at least 1, or null for never")
        self._device_is_auto = device == "auto"
        if self._device_is_auto:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        scaler = None
        if precision == "16-mixed":
            scaler = torch.amp.GradScaler(
                device,
                init_scale=init_scale,
                growth_factor=growth_factor,
                backoff_factor=backoff_factor,
                growth_interval=growth_interval,
            )
        super().__init__(precision, device, scaler)
        self.warn_after_skipped_steps = warn_after_skipped_steps
        self.raise_after_skipped_steps = raise_after_skipped_steps
        self.unscaled_loss: Tensor | None = None
        self.step_skipped = False
        self.num_skipped_steps = 0
        self.num_skipped_in_a_row = 0
        self._optimizer_stepped = False
        self._hooks: list[RemovableHandle] = []

    def connect(
        self, model: Module, optimizers: list[Optimizer], lr_schedulers: list[Any]
    ) -> tuple[Module, list[Optimizer], list[Any]]:
        """Takes the device from the model and prepares the optimizers.

        Raises:
            ValueError: If an optimizer cannot work with a loss scaler.
        """
        if self._device_is_auto:
            self.device = next((p.device.type for p in model.parameters()), self.device)
        for hook in self._hooks:
            hook.remove()
        for optimizer in optimizers:
            if self.scaler is not None and isinstance(optimizer, LBFGS):
                raise ValueError(
                    "LBFGS evaluates the loss several times in one step, which the loss scaler of precision 16-mixed"
                    " cannot follow; take precision bf16-mixed or another optimizer"
                )
            # A fused optimizer offers to unscale and to skip inside its kernel. Declining has the gradients unscaled
            # before anybody looks at or clips them, and a skipped step is one on which `step` is not called.
            optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
        self._hooks = [optimizer.register_step_post_hook(self._on_step) for optimizer in optimizers]
        return super().connect(model, optimizers, lr_schedulers)

    def pre_backward(self, tensor: Tensor, module: pl.LightningModule) -> Tensor:  # type: ignore[override]
        """Scales the loss, and keeps the unscaled one at hand for a pass that fails and has to be let go of."""
        self.unscaled_loss = tensor
        return super().pre_backward(tensor, module)

    def post_backward(self, tensor: Tensor, module: pl.LightningModule) -> Tensor:  # type: ignore[override]
        """Lets go of the loss."""
        self.unscaled_loss = None
        return super().post_backward(tensor, module)

    def _on_step(self, *_: Any) -> None:
        self._optimizer_stepped = True

    def optimizer_step(  # type: ignore[override]  # the signature that Lightning calls
        self, optimizer: Optimizer, model: pl.LightningModule, closure: Any, **kwargs: Any
    ) -> Any:
        """Steps the optimizer unless the gradients overflowed, and keeps count.

        Raises:
            FloatingPointError: If as many steps in a row were skipped as ``raise_after_skipped_steps`` says.
        """
        self._optimizer_stepped = False
        result = super().optimizer_step(optimizer, model=model, closure=closure, **kwargs)
        if self.scaler is not None:
            self._count(skipped=not self._optimizer_stepped)
        return result

    def _count(self, skipped: bool) -> None:
        self.step_skipped = skipped
        if not skipped:
            self.num_skipped_in_a_row = 0
            return
        self.num_skipped_steps += 1
        self.num_skipped_in_a_row += 1
        if self.num_skipped_in_a_row not in (self.warn_after_skipped_steps, self.raise_after_skipped_steps):
            return
        assert self.scaler is not None
        trouble = (
            f"the last {self.num_skipped_in_a_row} optimizer steps were all skipped because their gradients held NaN or"
            f" inf; the loss scale is down to {self.scaler.get_scale():g}. The cause is rarely the scale by now: look"
            " at the learning rate and the data, or take precision bf16-mixed"
        )
        if self.num_skipped_in_a_row == self.raise_after_skipped_steps:
            raise FloatingPointError(trouble)
        rank_zero_warn(trouble)

    def state_dict(self) -> dict[str, Any]:
        """Returns the scaler's state and the counts; nothing without a scaler."""
        state = super().state_dict()
        if state:
            state["num_skipped_steps"] = self.num_skipped_steps
            state["num_skipped_in_a_row"] = self.num_skipped_in_a_row
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the scale and the counts from a checkpoint and keeps the settings of this run.

        Args:
            state_dict: What `state_dict` returned.
        """
        if self.scaler is None:
            return
        settings = {
            "growth_factor": self.scaler.get_growth_factor(),
            "backoff_factor": self.scaler.get_backoff_factor(),
            "growth_interval": self.scaler.get_growth_interval(),
            # The scale grows when the tracker equals the interval: one already past a shorter interval never would.
            "_growth_tracker": min(state_dict["_growth_tracker"], self.scaler.get_growth_interval() - 1),
        }
        super().load_state_dict({**state_dict, **settings})
        self.num_skipped_steps = state_dict.get("num_skipped_steps", 0)
        self.num_skipped_in_a_row = state_dict.get("num_skipped_in_a_row", 0)


def _refuse(allowed: bool, name: str, value: object, what: str) -> None:
    if not allowed:
        raise ValueError(f"{name} is {value} but must be {what} (ScaledMixedPrecision)")
