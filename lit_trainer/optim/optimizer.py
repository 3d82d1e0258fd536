"""An optimizer as plain data: a class by its path, its settings, and how parameters are grouped.

Every key belongs to one class only as far as it is stated: changing the class never carries over another's defaults.
"""

import difflib
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from lit_trainer.optim.param_groups import parameter_groups

FUSED_DEVICES = {"cpu", "cuda"}
"""Where the fused steps of Adam, AdamW and SGD exist and are faster."""


@dataclass
class OptimizerSpec:
    """Describes an optimizer and builds it for a module.

    Args:
        name: Import path of a `torch.optim.Optimizer`, torch's own or any other.
        lr: The base rate, which a schedule multiplies.
        weight_decay: The weight decay of all but biases and norms; where it is not given, the class's own default.
        layer_decay: What the rate is multiplied by for each layer further from the head, in (0, 1].
        head_lr: The base rate of the head, where it differs.
        head: A regular expression for the names of the head's parameters, where the module is not a Transformers model.
        no_decay: Regular expressions for the names of further parameters that do not decay.
        fused: Whether all parameters are updated by one fused kernel. By itself, where the class and the device can.
        kwargs: Further arguments of the class, such as ``betas``.
    """

    name: str = "torch.optim.AdamW"
    lr: float = 5e-5
    weight_decay: float | None = None
    layer_decay: float | None = None
    head_lr: float | None = None
    head: str | None = None
    no_decay: list[str] = field(default_factory=list)
    fused: Literal["auto"] | bool = "auto"
    kwargs: dict[str, Any] = field(default_factory=dict)

    def build(self, module: nn.Module) -> Optimizer:
        """Builds the optimizer for all parameters of a module, in named groups.

        Loading a saved state into it restores what was accumulated for each parameter, found by its name, so that the
        grouping may have changed in between. Settings stay as they are here and are not taken from the saved state.

        Args:
            module: What is to be trained, on the device where it will be trained.

        Raises:
            ValueError: If there is no such class, it does not accept an argument, or a value is out of range.
        """
        cls = _optimizer_class(self.name)
        accepted = inspect.signature(cls).parameters
        self._check_arguments(accepted)
        groups = parameter_groups(
            module,
            lr=self.lr,
            weight_decay=self._weight_decay(accepted),
            layer_decay=self.layer_decay,
            head_lr=self.head_lr,
            head=self.head,
            no_decay=self.no_decay,
        )
        kwargs = dict(self.kwargs)
        if self.fused is True or (self.fused == "auto" and self._can_fuse(cls, groups)):
            kwargs["fused"] = True
        if not _accepts(accepted, "weight_decay"):
            for group in groups:
                del group["weight_decay"]
        optimizer: Optimizer = cls(groups, lr=self.lr, **kwargs)
        optimizer.register_load_state_dict_pre_hook(_by_name_with_own_settings)
        return optimizer

    def _check_arguments(self, accepted: Mapping[str, inspect.Parameter]) -> None:
        if own := sorted({"lr", "weight_decay", "fused", "params"} & set(self.kwargs)):
            raise ValueError(f"optimizer.kwargs: {', '.join(own)} is set by the key beside kwargs, not inside it")
        if not _accepts(accepted, "lr"):
            raise ValueError(f"optimizer.name: {self.name} takes no lr")
        if self.fused is True and not _accepts(accepted, "fused"):
            raise ValueError(f"optimizer.fused: {self.name} has no fused step")
        for key in self.kwargs:
            if not _accepts(accepted, key):
                allowed = sorted(set(accepted) - {"params", "lr", "weight_decay", "fused"})
                close = difflib.get_close_matches(key, allowed, n=1)
                hint = f" Did you mean {close[0]}?" if close else ""
                raise ValueError(
                    f"optimizer.kwargs: {self.name} does not accept {key}; it accepts {', '.join(allowed)}.{hint}"
                )

    def _weight_decay(self, accepted: Mapping[str, inspect.Parameter]) -> float:
        if self.weight_decay is None:
            default = accepted["weight_decay"].default if "weight_decay" in accepted else 0.0
            return float(default) if isinstance(default, int | float) else 0.0
        if self.weight_decay and not _accepts(accepted, "weight_decay"):
            raise ValueError(f"optimizer.weight_decay: {self.name} has no weight decay, {self.weight_decay} was given")
        return self.weight_decay

    def _can_fuse(self, cls: type[Optimizer], groups: list[dict[str, Any]]) -> bool:
        parameters = [parameter for group in groups for parameter in group["params"]]
        is_sharded = any(isinstance(parameter, DTensor) for parameter in parameters)
        return (
            issubclass(cls, Adam | AdamW if is_sharded else Adam | AdamW | SGD)
            and "fused" in inspect.signature(cls).parameters
            and not (self.kwargs.get("foreach") or self.kwargs.get("differentiable"))
            and {parameter.device.type for parameter in parameters} <= FUSED_DEVICES
            and all(parameter.is_floating_point() for parameter in parameters)
        )


def _accepts(accepted: Mapping[str, inspect.Parameter], key: str) -> bool:
    return key in accepted or any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())


def _optimizer_class(path: str) -> type[Any]:
    module_name, _, class_name = path.rpartition(".")
    if not module_name:
        raise ValueError(f"optimizer.name must be an import path such as torch.optim.AdamW, not {path}")
    try:
        cls = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"optimizer.name: there is no {path} ({error})") from None
    if not (isinstance(cls, type) and issubclass(cls, Optimizer)):
        raise ValueError(f"optimizer.name: {path} is not a torch.optim.Optimizer")
    return cls


def _by_name_with_own_settings(optimizer: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """Rewrites a saved state, before it is loaded, for the groups and the settings of this optimizer.

    What an optimizer accumulates belongs to a parameter, not to a place in a group. And what the user sets now beats
    what was saved: only what the class itself keeps in a group, and does not take as an argument, is restored.
    """
    if not all("param_names" in group for group in saved["param_groups"]):
        return saved
    if any(len(group["param_names"]) != len(group["params"]) for group in saved["param_groups"]):
        # A sharded state is sorted into the new groups before it gets here, and is no longer whole.
        raise ValueError(
            "a sharded strategy restores an optimizer only with the groups it was saved with: optimizer.layer_decay, "
            "head_lr, head, no_decay and whether there is weight_decay cannot change for a resume"
        )
    settings = {"name", "initial_lr", *inspect.signature(type(optimizer)).parameters}
    place_of = {
        name: (place, group)
        for group in saved["param_groups"]
        for name, place in zip(group["param_names"], group["params"], strict=True)
    }
    state: dict[int, Any] = {}
    groups: list[dict[str, Any]] = []
    count = 0
    for group in optimizer.param_groups:
        places = list(range(count, count + len(group["params"])))
        count += len(places)
        kept: dict[str, Any] = {}
        for place, name in zip(places, group["param_names"], strict=True):
            saved_place, saved_group = place_of.get(name, (None, {}))
            kept |= {key: value for key, value in saved_group.items() if key not in settings}
            if saved_place in saved["state"]:
                state[place] = saved["state"][saved_place]
        groups.append({**group, **kept, "params": places, "param_names": list(group["param_names"])})
    return {"state": state, "param_groups": groups}
