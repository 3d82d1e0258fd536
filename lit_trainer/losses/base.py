"""The contract of a loss: a sum over what counts, and the weight that sum is divided by.

Nobody averages but the optimizer step. It divides the sum by the weight of all its rows, over every micro-batch and
rank, so that any split of the step has the gradient of the whole.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from lit_trainer.batch import Labels


class Loss(nn.Module, ABC):
    """A loss as ``(total, weight)``; a subclass gives `total` and `weight`.

    The mean over a set of rows is the sum of the totals of its parts divided by the sum of their weights, however it
    is parted. Totals and weights are 0-d, or ``[T]`` for a loss of T terms that each have their own denominator; such
    terms are divided one by one and then added.

    A loss computes in float32 (float64 for float64 logits), whatever the precision of the run, keeps its constants in
    buffers, and gives total 0 and weight 0, never NaN, when every label is ignored (-100, or NaN for float labels).

    The arguments of ``total`` say what the loss looks at. The task offers, by name: ``logits`` (``[B, C]``,
    ``[B, L, C]`` or one tensor by head's name), ``labels``, ``features`` (``[B, D]``, what the head is applied to),
    ``progress`` (0-d, the share of the training that is done, in [0, 1]) and ``batch`` (the whole batch).

    Attributes:
        passes: How often the model runs on each micro-batch, with other dropout each time. Where it is above one,
            every model output has a leading axis of that size.
        deferred: Whether the weight is known only after the forward pass. The step then divides its gradients rather
            than its loss.
    """

    passes: int = 1
    deferred: bool = False

    @abstractmethod
    def total(self, *args: Any, **kwargs: Any) -> Tensor:
        """Returns the weighted sum over what counts: 0-d or ``[T]``."""

    @abstractmethod
    def weight(self, labels: Labels) -> Tensor:
        """Returns what `total` is to be divided by, from the labels alone: 0-d or ``[T]``."""

    def forward(self, **offered: Any) -> tuple[Tensor, Tensor]:
        """Calls `total` with the arguments it declares and returns it with its weight.

        Args:
            offered: All that a task has to offer, by name; ``labels`` at least.

        Raises:
            ValueError: If `total` declares an argument that is not offered.
        """
        return self.total(**declared(self.total, offered, type(self).__name__)), self.weight(offered["labels"])


def declared(function: Any, offered: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Picks from what is offered the arguments that a function declares.

    Args:
        function: Any callable with named parameters; ``**kwargs`` takes everything.
        offered: The values there are, by name.
        name: What to call the function in an error.

    Raises:
        ValueError: If a parameter without a default is not offered.
    """
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return dict(offered)
    missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in offered]
    if missing:
        raise ValueError(
            f"the loss {name} asks for {', '.join(missing)}; a loss can ask for {', '.join(sorted(offered))}"
        )
    return {key: offered[key] for key in parameters if key in offered}
