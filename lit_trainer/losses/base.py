"""The contract of a loss: a sum over what counts, and the weight that sum is divided by.

Nobody averages but the optimizer step. It divides the sum by the weight of all its rows, over every micro-batch and
rank, so that any split of the step has the gradient of the whole.

A loss of your own is a class with a `total`, in any module that can be imported::

    class AbsoluteError(Loss):
        def total(self, logits: Tensor, labels: Tensor) -> Tensor:
            counted = is_counted(labels)
            return (logits.squeeze(-1) - labels.where(counted, 0)).abs().where(counted, 0).sum()

Its weight is the number of labels that count; override `label_weights` where some count more than others. In YAML it
is ``loss: {class_path: my_losses.AbsoluteError}``. Or it is a plain function with one value per label, which
`lit_trainer.losses.function.FunctionLoss` adapts and which need not care for ignored labels::

    def absolute_error(logits, labels):
        return (logits.squeeze(-1) - labels).abs()
"""

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn

from lit_trainer.batch import Labels, is_counted

MODEL_OUTPUTS = ("logits", "features")
"""What comes from the model among that which a task offers to a loss."""


class Loss(nn.Module, ABC):
    """A loss as ``(total, weight)``; a subclass gives `total`, and `label_weights` where not every label weighs 1.

    The mean over a set of rows is the sum of the totals of its parts divided by the sum of their weights, however it
    is parted. Totals and weights are 0-d, or ``[T]`` for a loss of T terms that each have their own denominator; such
    terms are divided one by one and then added. Weights are float64, so that they add up exactly.

    A loss computes in float32 (float64 for float64 logits), whatever the precision of the run, keeps its constants in
    buffers, and gives total 0 and weight 0, never NaN, when every label is ignored (-100, or NaN for float labels).
    `forward` sees to the precision: what it hands to `total` is at least float32 and autocast is off. Casting the
    module to half precision leaves a loss in float32.

    The arguments of ``total`` say what the loss looks at. The task offers, by name: ``logits`` (``[B, C]``,
    ``[B, L, C]`` or one tensor by head's name), ``labels``, ``features`` (``[B, D]``, what the head is applied to, or
    one such tensor by name), ``progress`` (0-d, the share of the training that is done, in [0, 1]) and ``batch`` (the
    whole batch).
    """

    @property
    def passes(self) -> int:
        """How often the model runs on each micro-batch, with other dropout each time.

        Where it is above one, logits and features have a leading axis of that size. It may differ between training
        and evaluation, so it is asked for at every step.
        """
        return 1

    @property
    def deferred(self) -> bool:
        """Whether the weight is known only after the forward pass; the step then divides gradients, not its loss."""
        return False

    @property
    def across_rows(self) -> bool:
        """Whether a row's loss depends on the other rows of its micro-batch, so that accumulation changes it."""
        return False

    @abstractmethod
    def total(self, *args: Any, **kwargs: Any) -> Tensor:
        """Returns the weighted sum over what counts: 0-d or ``[T]``."""

    def label_weights(self, labels: Tensor) -> Tensor:
        """Returns what each label weighs, of the shape of ``labels``: 1 where it counts and 0 where it is ignored."""
        return is_counted(labels).float()

    def weight(self, labels: Labels) -> Tensor:
        """Returns what `total` is to be divided by, from the labels alone: float64, 0-d or ``[T]``.

        Raises:
            ValueError: If the labels are those of several heads and the loss is for one.
        """
        return self.label_weights(of_one_head(labels, "labels", type(self).__name__)).sum(dtype=torch.float64)

    def total_and_weight(self, **offered: Any) -> tuple[Tensor, Tensor]:
        """Calls `total` with the arguments it declares and returns it with its weight.

        A `deferred` loss, whose weight does not follow from the labels, overrides this.
        """
        weight = self.weight(offered["labels"])
        return self.total(**declared(self.total, offered, type(self).__name__)), weight

    def forward(self, **offered: Any) -> tuple[Tensor, Tensor]:
        """Returns total and weight, computed in float32 or better.

        Args:
            offered: All that a task has to offer, by name; ``labels`` at least.

        Raises:
            ValueError: If `total` declares an argument that is not offered.
        """
        precise = {key: at_least_float32(offered[key]) for key in (*MODEL_OUTPUTS, "labels") if key in offered}
        with _without_autocast(precise):
            return self.total_and_weight(**offered | precise)

    def fit_to_labels(
        self,
        names: Sequence[str],
        counts: Sequence[int],
        *,
        num_rows: int | None = None,
        head: str | None = None,
    ) -> None:
        """Works out what depends on the training labels; does nothing in a loss that has no such thing.

        The task calls this before the first step, once for each head. A second call replaces the first.

        Args:
            names: The class of each logit, in order. A model with one logit for a yes or no has one: that of the yes.
            counts: The number of training rows of each class.
            num_rows: The number of labelled training rows; the sum of the counts where each row has one class.
            head: The head these labels belong to, where a model has several.

        Raises:
            ValueError: If the loss was given something that does not fit these labels.
        """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves and casts like any module, but not to less than float32: half precision is for the model."""

        def moved(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            return result if _is_precise(result) else tensor.to(result.device)

        same: Self = super()._apply(moved, recurse)
        return same


def declared(function: Callable[..., Any], offered: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Picks from what is offered the arguments that a function declares.

    Args:
        function: Any callable with named parameters; ``**kwargs`` takes everything.
        offered: The values there are, by name.
        name: What to call the function in an error.

    Raises:
        ValueError: If a parameter without a default is not offered, or cannot be given by name.
    """
    parameters = _parameters(function) if isinstance(function, Hashable) else _parameters.__wrapped__(function)
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    missing = [p.name for p in named if p.default is p.empty and (p.kind is p.POSITIONAL_ONLY or p.name not in offered)]
    if missing:
        raise ValueError(
            f"the loss {name} asks for {', '.join(missing)}; a loss can ask, by name, for {', '.join(sorted(offered))}"
        )
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(offered)
    return {p.name: offered[p.name] for p in named if p.name in offered}


@functools.lru_cache(maxsize=64)  # to look at a signature takes as long as a small loss
def _parameters(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    return tuple(inspect.signature(function).parameters.values())


def of_one_head(value: Tensor | dict[str, Tensor], name: str, loss: str) -> Tensor:
    """Returns the value, which has to be one tensor.

    Raises:
        ValueError: If it is one tensor for each of several heads.
    """
    if isinstance(value, Tensor):
        return value
    raise ValueError(
        f"{loss} takes the {name} of one head and got those of {', '.join(value)}; give each head its own loss with "
        "lit_trainer.losses.multi_task.MultiTask"
    )


def one_pass(offered: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Returns what is offered with the model's outputs of one pass only, where each has a leading axis of passes."""
    return {key: _mapped(lambda t: t[index], v) if key in MODEL_OUTPUTS else v for key, v in offered.items()}


def at_least_float32(value: Any) -> Any:
    """Returns a tensor, or each tensor of a dict, in float32 where it is of a lower precision."""
    return _mapped(lambda tensor: tensor if _is_precise(tensor) else tensor.float(), value)


def _is_precise(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or tensor.itemsize >= 4


def _mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _mapped(function, entry) for key, entry in value.items()}
    return function(value) if isinstance(value, Tensor) else value


def _without_autocast(values: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """Turns autocast off where it is on; it would run the products of a loss in half precision."""
    flat = (entry for v in values.values() for entry in (v.values() if isinstance(v, Mapping) else (v,)))
    device = next((entry.device.type for entry in flat if isinstance(entry, Tensor)), "cpu")
    if device == "meta" or not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)
