"""Several losses at once, with fixed, scheduled or learned weights."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lit_trainer.batch import Labels
from lit_trainer.losses.base import Loss, one_pass


class MultiTask(Loss):
    """The weighted sum of several losses, each with its own denominator.

    A term gets the logits, labels and features of its own name where these are by name, and else all of them. With
    ``uncertainty``, each term's mean ``m`` enters as ``exp(-s) m + s`` with a parameter ``s`` learned beside the
    model's: the logarithm of a variance, and up to a factor of two the likelihood of a Gaussian or a softmax with it.
    All ``s`` start at 0, where the sum is that of the plain losses. They should be exempt from weight decay.

    Where one term has the model run twice, the others take the mean of both passes.

    Args:
        losses: The terms by name.
        weights: One weight for each name, a number or a function from the progress in [0, 1] to one, such as
            ``math.sqrt``; or ``uncertainty``.

    Shapes: those of the terms; total and weight are ``[T]``.

    Raises:
        ValueError: If the names of weights and losses differ, a weight is negative or not finite, or a term is a
            `MultiTask` itself, is `deferred`, or has the model run another number of times than others do.

    Source:
        Kendall et al. 2018, "Multi-Task Learning Using Uncertainty to Weigh Losses", equations 7 to 10.
    """

    def __init__(
        self,
        losses: dict[str, Loss],
        weights: Literal["uncertainty"] | dict[str, float | Callable[[float], float]],
    ) -> None:
        super().__init__()
        self._check(losses, weights)
        self.losses = nn.ModuleDict(losses)
        self.weights = weights
        self.log_variances = nn.Parameter(torch.zeros(len(losses))) if weights == "uncertainty" else None

    @property
    def passes(self) -> int:
        """As many as the term that asks for most."""
        return max(loss.passes for _, loss in self._terms())

    @property
    def across_rows(self) -> bool:
        """Whether any term compares rows."""
        return any(loss.across_rows for _, loss in self._terms())

    def total(self, **offered: Any) -> Tensor:
        """Returns the weighted totals of the terms, ``[T]``."""
        return self.total_and_weight(**offered)[0]

    def weight(self, labels: Labels) -> Tensor:
        """Returns the weights of the terms, ``[T]``."""
        return torch.stack([loss.weight(_entry(labels, name, "labels")) for name, loss in self._terms()])

    def total_and_weight(self, **offered: Any) -> tuple[Tensor, Tensor]:
        """Returns totals and weights of the terms, each ``[T]``."""
        pairs = [self._term(name, loss, offered) for name, loss in self._terms()]
        totals, weights = (torch.stack(each) for each in zip(*pairs, strict=True))
        if self.log_variances is not None:
            s = self.log_variances.to(totals.dtype)
            # The regulariser is counted once for each unit of weight, so that after the division it is s on any split.
            return torch.exp(-s) * totals + s * weights.to(totals.dtype), weights
        factors = [self._factor(name, offered.get("progress")) for name, _ in self._terms()]
        return torch.stack([total * factor for total, factor in zip(totals, factors, strict=True)]), weights

    def fit_to_labels(
        self, names: Sequence[str], counts: Sequence[int], *, num_rows: int | None = None, head: str | None = None
    ) -> None:
        """Passes it on to the term of the head's name, or to all terms where the model has one head."""
        if head is not None and head not in self.losses:
            raise ValueError(f"MultiTask has no loss for the head {head}; it has {', '.join(self.losses)}")
        for name, loss in self._terms():
            if head in (None, name):
                loss.fit_to_labels(names, counts, num_rows=num_rows, head=head)

    def _terms(self) -> list[tuple[str, Loss]]:
        return [(name, loss) for name, loss in self.losses.items() if isinstance(loss, Loss)]

    def _term(self, name: str, loss: Loss, offered: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        own = {**offered, **{key: _entry(offered[key], name, key) for key in ("logits", "labels") if key in offered}}
        if isinstance(own.get("features"), Mapping):
            own["features"] = own["features"].get(name, own["features"])
        if loss.passes == self.passes:
            return loss(**own)  # type: ignore[no-any-return]  # a module's call is untyped
        each = [loss(**one_pass(own, index)) for index in range(self.passes)]
        return torch.stack([total for total, _ in each]).mean(0), each[0][1]

    def _factor(self, name: str, progress: Any) -> float:
        factor = self.weights[name] if isinstance(self.weights, dict) else 1.0
        if not callable(factor):
            return factor
        if progress is None:
            raise ValueError(f"the weight of {name} is a function of the progress, and no progress is offered")
        return float(factor(float(progress)))

    @staticmethod
    def _check(losses: Mapping[str, Loss], weights: str | Mapping[str, Any]) -> None:
        if not losses:
            raise ValueError("MultiTask needs at least one loss")
        for name, loss in losses.items():
            if isinstance(loss, MultiTask):
                raise ValueError(f"MultiTask cannot have the MultiTask {name} as a term; put all terms in one")
            if loss.deferred:
                raise ValueError(
                    f"MultiTask divides each term by a weight that it has to know before: the term {name} cannot "
                    "return its own; let it return values"
                )
            if not name.isidentifier() or hasattr(nn.ModuleDict, name):
                raise ValueError(f"MultiTask cannot have a term called {name!r}; use another name, of letters and _")
        passes = {name: loss.passes for name, loss in losses.items() if loss.passes != 1}
        if len(set(passes.values())) > 1:
            raise ValueError(f"the terms of MultiTask want different numbers of passes of the model: {passes}")
        if isinstance(weights, str):
            if weights != "uncertainty":
                raise ValueError(f"weights is {weights!r}; it takes uncertainty, or one weight for each loss")
            return
        if set(weights) != set(losses):
            raise ValueError(f"weights are given for {', '.join(weights)}, and the losses are {', '.join(losses)}")
        for name, weight in weights.items():
            if not callable(weight) and not (math.isfinite(weight) and weight >= 0):
                raise ValueError(f"the weight of {name} is {weight}; it has to be a finite number of at least 0")


def _entry(value: Any, name: str, key: str) -> Any:
    """Returns the part of the head of that name, or the whole where it is not by head."""
    if not isinstance(value, Mapping):
        return value
    if name not in value:
        raise ValueError(f"MultiTask has a loss {name}, and there are {key} only of {', '.join(value)}")
    return value[name]
