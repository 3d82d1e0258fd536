"""The denominator of an optimizer step: the weight of all its rows, over every micro-batch and rank."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from lit_trainer.batch import Labels, is_counted
from lit_trainer.losses.base import Loss


class StepNormaliser:
    """Turns the totals of micro-batches into the true mean of their optimizer step.

    Before a step's first forward pass the weights of all its rows are added up, over the micro-batches of this rank and
    then over the ranks. Each micro-batch's total is divided by that sum, so that gradients that are added over
    micro-batches and ranks are those of the mean over the whole step. A loss whose weight is known only after the
    forward pass (`Loss.deferred`) is divided by the number of its labels first, and its gradients are corrected after
    the step's last backward pass.

    Args:
        loss: Says what a label weighs.
        add_over_ranks: Adds a tensor up over all ranks.
    """

    def __init__(self, loss: Loss, add_over_ranks: Callable[[Tensor], Tensor]) -> None:
        self._loss, self._add_over_ranks = loss, add_over_ranks
        self._denominator = self._seen_weight = self._seen_loss = torch.zeros(())

    def begin(self, step_labels: Sequence[Labels]) -> None:
        """Begins an optimizer step.

        Args:
            step_labels: The labels of each of its micro-batches on this rank.
        """
        with torch.no_grad():
            weigh = _count if self._loss.deferred else self._loss.weight
            self._denominator = self._add_over_ranks(
                torch.stack([weigh(labels) for labels in step_labels]).double().sum(0)
            )
        self._seen_weight = self._seen_loss = torch.zeros_like(self._denominator)

    @property
    def factor(self) -> Tensor:
        """What a total is multiplied by to become its share of the mean, float64, 0-d or ``[T]``."""
        return _inverse(self._denominator)

    def share(self, total: Tensor, weight: Tensor) -> Tensor:
        """Returns a micro-batch's share of the step's mean loss, 0-d; the shares of a step add up to the mean.

        Args:
            total: The sum of its losses, 0-d or ``[T]``.
            weight: The weight of its rows, of the same shape.
        """
        shares = total * self.factor.to(total.dtype)
        self._seen_weight = self._seen_weight + weight.detach()
        self._seen_loss = self._seen_loss + shares.detach()
        return shares.sum()

    def mean_loss(self) -> Tensor:
        """Returns the mean loss over what counted in the step, 0-d. All ranks must ask."""
        loss = self._add_over_ranks(self._seen_loss.clone())
        if self._loss.deferred:
            loss = loss * self._denominator * _inverse(self._add_over_ranks(self._seen_weight.clone()))
        return loss.sum()

    def correct_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divides the gradients of a finished step by its true weight, where that was not known before.

        Args:
            parameters: Those whose gradients the step added up.
        """
        if not self._loss.deferred:
            return
        factor = self._denominator * _inverse(self._add_over_ranks(self._seen_weight.clone()))
        gradients = [p.grad for p in parameters if p.grad is not None]
        for dtype in {gradient.dtype for gradient in gradients}:
            torch._foreach_mul_([g for g in gradients if g.dtype == dtype], factor.to(dtype))


def _count(labels: Labels) -> Tensor:
    """Counts the labels; those of all heads together."""
    heads = labels.values() if isinstance(labels, dict) else [labels]
    return torch.stack([is_counted(head).sum() for head in heads]).sum()


def _inverse(weight: Tensor) -> Tensor:
    """Returns 1 / weight, and 0 where nothing counts."""
    return torch.where(weight > 0, 1 / weight.clamp_min(torch.finfo(weight.dtype).tiny), 0.0)
