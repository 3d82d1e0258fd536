"""Parameter groups: which weights decay, layer-wise learning rates, and a rate of its own for the head.

A group's rates are base rates: a schedule multiplies them all, so groups keep their ratio.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from lit_trainer.optim.parameter_names import matching, sample

LAYER = re.compile(r"(?:(?P<stack>.*?)\.)?(?P<index>\d+)\.")
"""The first number in a parameter's name is its place in a stack of layers."""

NO_DECAY = ".no_decay"


@dataclass(frozen=True)
class _Place:
    """Where a parameter sits: the group it belongs to, and how many layers lie between it and the head."""

    label: str
    below_head: int = 0


def parameter_groups(
    module: nn.Module,
    lr: float,
    weight_decay: float = 0.0,
    layer_decay: float | None = None,
    head_lr: float | None = None,
    head: str | None = None,
    no_decay: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Sorts every parameter of a module into groups with a name, a rate and a weight decay.

    Biases, weights of norms and all that has at most one axis do not decay. Parameters that are frozen now are sorted
    in, too, since they may be released later; optimizers pass over what has no gradient. At its defaults there is one
    group; with weight decay there are two.

    The head is what a Transformers model has outside its base model (or what `head` matches), and whatever else the
    module learns. The parameters of a submodule named ``loss`` make a group of their own and have the head's rate.

    Args:
        module: The module whose parameters are to be trained, such as a model, or a model and a loss.
        lr: The base rate.
        weight_decay: The weight decay of what decays.
        layer_decay: What the rate is multiplied by for each layer further from the head, in (0, 1]. Each stack of
            numbered layers (``.0.``, ``.1.``, ...) is counted from its own top; embeddings and what else comes before
            the layers lie one below the deepest. Without it, or at 1, all layers learn at the base rate.
        head_lr: The base rate of the head, where it differs.
        head: A regular expression for the names of the head's parameters, where the module is not a Transformers model.
        no_decay: Regular expressions for the names of further parameters that do not decay.

    Returns:
        Groups for an optimizer: ``name``, ``params``, ``param_names``, ``lr`` and ``weight_decay``, from the input to
        the head. Each parameter is in exactly one of them, and none is empty.

    Raises:
        ValueError: If a value is out of range, a pattern matches nothing, or a rate is given for a head that there is
            not.

    Source: Howard and Ruder, ULMFiT, 2018, section 3.2, and Clark et al., ELECTRA, 2020, appendix A (layer-wise decay).
    """
    _check_rates(lr, weight_decay, layer_decay, head_lr)
    parameters = dict(module.named_parameters())
    if not parameters:
        raise ValueError(f"{type(module).__name__} has no parameters to train")
    places = _places(module, list(parameters), head, split_layers=layer_decay is not None)
    if head_lr is not None and not any(place.label == "head" for place in places.values()):
        raise ValueError(f"head_lr: no head is found; give head, a pattern for its names out of {sample(parameters)}")
    spared = _without_decay(module, no_decay)
    if not weight_decay:
        spared.clear()

    groups: dict[str, dict[str, Any]] = {}
    for name in sorted(parameters, key=lambda name: -places[name].below_head):
        place = places[name]
        rate = lr * (layer_decay or 1.0) ** place.below_head
        if head_lr is not None and place.label in {"head", "loss"}:
            rate = head_lr
        key = place.label + NO_DECAY if name in spared else place.label
        decay = 0.0 if name in spared else weight_decay
        group = groups.setdefault(
            key, {"name": key, "params": [], "param_names": [], "lr": rate, "weight_decay": decay}
        )
        group["params"].append(parameters[name])
        group["param_names"].append(name)
    return list(groups.values())


def _places(module: nn.Module, names: list[str], head: str | None, split_layers: bool) -> dict[str, _Place]:
    """Finds for every parameter whether it is in the backbone, and how far from the head."""
    backbone = _backbone(module, names, head)
    places = {name: _Place("loss" if name.startswith("loss.") else "head") for name in names if name not in backbone}
    if not split_layers:
        label = "backbone" if "head" in {place.label for place in places.values()} else "model"
        return places | {name: _Place(label) for name in names if name in backbone}

    found = {name: match for name in names if name in backbone and (match := LAYER.match(name))}
    heights: dict[str, int] = {}
    for match in found.values():
        heights[_stack(match)] = max(heights.get(_stack(match), 0), int(match["index"]) + 1)
    if not heights:
        raise ValueError(f"layer_decay: no numbered layers such as `layer.0.` are found in {sample(names)}")
    first_layer = min(names.index(name) for name in found)
    for position, name in enumerate(names):
        if match := found.get(name):
            label = (_stack(match) if len(heights) > 1 else "layer") + f".{match['index']}"
            places[name] = _Place(label, below_head=heights[_stack(match)] - int(match["index"]))
        elif name in backbone and (position < first_layer or "embed" in name):
            places[name] = _Place("embeddings", below_head=max(heights.values()) + 1)
        elif name in backbone:  # a last norm or a pooler: next to the head
            places[name] = _Place("top")
    return places


def _stack(match: re.Match[str]) -> str:
    return match["stack"] or "layer"


def _backbone(module: nn.Module, names: list[str], head: str | None) -> set[str]:
    """Returns the names of the parameters that belong neither to the head nor to the loss."""
    inside = {name for name in names if not name.startswith("loss.")}
    if head is not None:
        return inside - set(matching(head, names, "head"))
    members: set[int] = set()
    seen: set[int] = set()
    for candidate in module.modules():
        # A Transformers model says under which attribute its backbone is; one that is a backbone itself has no such
        # attribute. The outermost decides: a head may be made of such models, too.
        prefix = getattr(candidate, "base_model_prefix", None)
        if prefix and id(candidate) not in seen:
            seen.update(map(id, candidate.modules()))
            members.update(map(id, getattr(candidate, prefix, candidate).parameters()))
    if not members:
        return inside
    return {name for name, parameter in module.named_parameters() if name in inside and id(parameter) in members}


def _without_decay(module: nn.Module, patterns: Sequence[str]) -> set[str]:
    """Returns the names of the parameters that do not decay."""
    names = [name for name, _ in module.named_parameters()]
    spared = {name for pattern in patterns for name in matching(pattern, names, "no_decay")}
    for prefix, owner in module.named_modules():
        # By the class's name, since every model family has a norm of its own.
        is_norm = "norm" in type(owner).__name__.lower()
        for name, parameter in owner.named_parameters(prefix, recurse=False):
            if is_norm or parameter.ndim <= 1 or "bias" in name.rpartition(".")[2]:
                spared.add(name)
    return spared


def _check_rates(lr: float, weight_decay: float, layer_decay: float | None, head_lr: float | None) -> None:
    for key, value in (("lr", lr), ("weight_decay", weight_decay), ("head_lr", head_lr)):
        if value is not None and not (value >= 0.0 and math.isfinite(value)):
            raise ValueError(f"{key} must be a finite number of 0 or more, not {value}")
    if layer_decay is not None and not 0.0 < layer_decay <= 1.0:
        raise ValueError(f"layer_decay must be in (0, 1], not {layer_decay}")
