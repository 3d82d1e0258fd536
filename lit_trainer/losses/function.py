"""A loss from a plain function."""

import inspect
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lit_trainer.batch import Labels, is_counted
from lit_trainer.losses.base import Loss, declared


class FunctionLoss(Loss):
    """Makes a loss of a function, which is called by the names of its parameters.

    It may ask for whatever a task offers (see `Loss`): ``f(logits, labels)``, ``f(logits, labels, batch)``,
    ``f(features, labels, **others)``. Logits and features are at least float32.

    With ``values`` it returns one value for each label. The total is the sum over the labels that count and the weight
    their number, so ignored labels need no care: the function sees 0 in their place and its value there is not used.
    ``torch.nn.functional.mse_loss(logits, labels, reduction="none")`` in such a function is `MeanSquaredError`.

    With ``total_and_weight`` it returns a sum over what it counts and what that sum is to be divided by, both over the
    micro-batch alone, and sees the labels as they are. The weight is a constant to the gradient.

    Args:
        function: The function, or in YAML the dotted path to it.
        returns: Whether it returns one value per label or a total and its weight.

    Shapes: whatever the function takes; its values are of the labels' shape, its total and weight 0-d.

    Raises:
        ValueError: If the parameters of the function cannot be told; when called, if it asks for what is not offered
            or returns something else than it should.
    """

    def __init__(self, function: Callable[..., Any], returns: Literal["values", "total_and_weight"] = "values") -> None:
        super().__init__()
        if returns not in ("values", "total_and_weight"):
            raise ValueError(f"returns is {returns!r}; it is values or total_and_weight")
        self.function = function
        self.returns = returns
        self.name = getattr(function, "__name__", type(function).__name__)
        # The call of a module takes anything, so its forward is asked what it takes.
        self.signature_of = function.forward if isinstance(function, nn.Module) else function
        try:
            inspect.signature(self.signature_of)
        except (TypeError, ValueError):
            raise ValueError(f"the parameters of the loss function {self.name} cannot be told") from None

    @property
    def deferred(self) -> bool:
        """True where the function returns the weight."""
        return self.returns == "total_and_weight"

    def total(self, **offered: Any) -> Tensor:
        """Returns the sum of the values, or the function's own total."""
        return self.total_and_weight(**offered)[0]

    def weight(self, labels: Labels) -> Tensor:
        """Returns the number of labels that count.

        Raises:
            RuntimeError: If the function returns the weight.
        """
        if self.deferred:
            raise RuntimeError(f"the weight of {self.name} is known only with its total")
        return super().weight(labels)

    def total_and_weight(self, **offered: Any) -> tuple[Tensor, Tensor]:
        """Calls the function and checks what it returns."""
        return self._of_pair(**offered) if self.deferred else self._of_values(**offered)

    def _of_values(self, **offered: Any) -> tuple[Tensor, Tensor]:
        weight = self.weight(offered["labels"])
        labels: Tensor = offered["labels"]
        counted = is_counted(labels)
        values = self._call(offered | {"labels": labels.where(counted, 0)})
        wanted = f"one value for each label, of shape {list(labels.shape)}"
        if isinstance(values, tuple | list):
            raise ValueError(
                f"the loss function {self.name} returned a {type(values).__name__}; return {wanted}, or say "
                "`returns: total_and_weight` and return (total, weight)"
            )
        if not isinstance(values, Tensor):
            raise ValueError(f"the loss function {self.name} returned a {type(values).__name__}; return {wanted}")
        if values.dim() == 0 and labels.dim() > 0:
            raise ValueError(
                f'the loss function {self.name} returned a single number; return {wanted} (reduction="none"), or say '
                "`returns: total_and_weight` and return (total, weight). A mean over a micro-batch would weigh rows by "
                "how the step happens to be split"
            )
        if values.shape != labels.shape:
            raise ValueError(f"the loss function {self.name} returned the shape {list(values.shape)}; return {wanted}")
        return values.where(counted, 0).sum(), weight

    def _of_pair(self, **offered: Any) -> tuple[Tensor, Tensor]:
        pair = self._call(offered)
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], Tensor)):
            raise ValueError(
                f"the loss function {self.name} returned a {type(pair).__name__}; with `returns: total_and_weight` "
                "return (total, weight): the sum over what counts and what it is to be divided by"
            )
        total, weight = pair[0], torch.as_tensor(pair[1], device=pair[0].device).detach()
        if total.dim() or weight.dim():
            raise ValueError(
                f"the loss function {self.name} returned shapes {list(total.shape)} and {list(weight.shape)}; total "
                "and weight are single numbers"
            )
        return total, weight.double()

    def _call(self, offered: dict[str, Any]) -> Any:
        return self.function(**declared(self.signature_of, offered, self.name))
