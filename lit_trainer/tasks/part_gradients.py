"""The gradients of a micro-batch that is computed in parts."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class PartGradients:
    """Adds up the gradients of a micro-batch over its parts.

    Args:
        parameters: What the gradients are of.
        factor: What totals are multiplied by before they are added, of their shape.

    Attributes:
        total: The sum of the totals, 0-d or ``[T]``, without a graph.
        weight: The sum of the weights.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], factor: Tensor) -> None:
        self.parameters = list(parameters)
        self.total = self.weight = torch.zeros_like(factor)
        self._factor = factor
        self._gradients: list[Tensor | None] = [None] * len(self.parameters)

    def add(self, total: Tensor, weight: Tensor) -> None:
        """Adds a part, whose graph is no longer needed after that."""
        if total.requires_grad and self.parameters:
            factor = self._factor.to(total.dtype).expand_as(total)
            found = _apart(torch.autograd.grad(total, self.parameters, factor, allow_unused=True))
            # From here on nothing is allocated: a part is added whole or not at all.
            for index, gradient in enumerate(found):
                own = self._gradients[index]
                self._gradients[index] = gradient if own is None or gradient is None else own.add_(gradient)
        self.total = self.total.to(total.dtype) + total.detach()
        self.weight = self.weight.to(weight.dtype) + weight.detach()

    def attach(self, value: Tensor, divisor: Tensor) -> Tensor:
        """Returns a value whose backward pass hands the gradients on, as if it had been computed from the parameters.

        Args:
            value: 0-d.
            divisor: What the gradients are divided by, 0-d.
        """
        pairs = [(p, g) for p, g in zip(self.parameters, self._gradients, strict=True) if g is not None]
        self._gradients = []
        if not pairs:
            return value
        parameters, gradients = zip(*pairs, strict=True)
        attached: Tensor = _HandOver.apply(value, list(gradients), divisor, *parameters)
        return attached


def _apart(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Copies gradients that share memory, within or among themselves, so that each can be added to in place."""
    seen: set[int] = set()
    apart: list[Tensor | None] = []
    for gradient in gradients:
        if gradient is not None:
            if not gradient.is_contiguous() or gradient.untyped_storage().data_ptr() in seen:
                gradient = gradient.clone(memory_format=torch.contiguous_format)
            seen.add(gradient.untyped_storage().data_ptr())
        apart.append(gradient)
    return apart


class _HandOver(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], divisor: Tensor, *parameters: Tensor) -> Tensor:
        ctx.gradients, ctx.divisor = gradients, divisor
        return value.detach().clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None  # not kept here, an optimizer's gradient needs no copy
        factor = upstream / ctx.divisor
        return None, None, None, *(gradient.mul_(factor.to(gradient.dtype)) for gradient in gradients)


class GradientMarks:
    """Tells which parameters a backward pass has reached before it failed; it gives each its gradient in one piece.

    Args:
        parameters: All that are trained, before the pass.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._before = [(p, p.grad, -1 if p.grad is None else p.grad._version) for p in parameters]

    def unreached(self) -> list[nn.Parameter]:
        """Returns the parameters whose gradients are what they were."""
        return [p for p, gradient, version in self._before
                if p.grad is gradient and (gradient is None or gradient._version == version)]  # fmt: skip
