"""One weight per class: given in order, by name, or balanced against the training labels."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from lit_trainer.batch import is_counted

Given: TypeAlias = Literal["balanced"] | Mapping[str, float] | Sequence[float] | None
"""The weights in the order of the classes, by class name, ``balanced``, or none at all."""


def inverse_frequency(counts: Tensor, num_rows: int) -> Tensor:
    """Returns ``num_rows / (C * counts)``, ``[C]``, what scikit-learn calls balanced: every class weighs the same."""
    return num_rows / (len(counts) * counts)


class ClassWeights(nn.Module):
    """The weights of the classes of a loss, as a buffer.

    It is not part of the state: it follows from the configuration and the training labels, so a checkpoint loads the
    same before and after `fit`.

    Args:
        given: The weights as the user gave them.
        parameter: The name under which the user gave them, for errors.
        balance: What ``balanced`` means: from the counts (float64 ``[C]``) and the number of rows to the weights.

    Attributes:
        values: float32 ``[C]``; of size 0 as long as they are not known, None where there are none.

    Raises:
        ValueError: If a weight is no finite number of at least 0, if all are 0, or if ``given`` is another word.
    """

    values: Tensor | None

    def __init__(
        self, given: Given, parameter: str, balance: Callable[[Tensor, int], Tensor] = inverse_frequency
    ) -> None:
        super().__init__()
        self.parameter = parameter
        self.balance = balance
        self.by_name: dict[str, float] | None = None
        self.balanced = isinstance(given, str)
        values = torch.empty(0, dtype=torch.float32)
        if isinstance(given, str):
            if given != "balanced":
                raise ValueError(f"{parameter} is {given!r}; it takes balanced, a list, or a mapping by label name")
        elif isinstance(given, Mapping):
            weights = self._checked(given.values())
            self.by_name = {str(name): weight for name, weight in zip(given, weights, strict=True)}
        elif given is not None:
            values = torch.tensor(self._checked(given), dtype=torch.float32)
        self.register_buffer("values", None if given is None else values, persistent=False)

    def fit(self, names: Sequence[str], counts: Sequence[int], num_rows: int | None = None) -> None:
        """Works out the weights from the training labels; see `Loss.fit_to_labels`.

        Raises:
            ValueError: If the weights given do not fit the names, or if there is nothing to balance a class with.
        """
        if len(names) != len(counts):
            raise ValueError(f"{self.parameter}: {len(names)} label names and {len(counts)} counts")
        if self.values is None:
            return
        if self.balanced:
            weights = self._balanced(names, counts, sum(counts) if num_rows is None else num_rows)
        elif self.by_name is not None:
            unknown, missing = [n for n in self.by_name if n not in names], [n for n in names if n not in self.by_name]
            if unknown or missing:
                wrong = f"unknown: {', '.join(unknown)}" if unknown else f"missing: {', '.join(missing)}"
                raise ValueError(f"{self.parameter} needs one weight for each of {', '.join(names)}; {wrong}")
            weights = [self.by_name[name] for name in names]
        else:
            self.for_classes(len(names))
            return
        self.values = torch.tensor(weights, dtype=torch.float64).to(self.values)

    def for_classes(self, num_classes: int) -> Tensor | None:
        """Returns the weights of a model with that many classes, ``[C]``, or None where there are none.

        Raises:
            ValueError: If they are for another number of classes, or not known yet.
        """
        if self.values is None or len(self.values) == num_classes:
            return self.values
        if self.values.numel() == 0:
            raise ValueError(self._unknown())
        raise ValueError(f"{self.parameter} has {len(self.values)} weights, and there are {num_classes} classes")

    def of(self, labels: Tensor) -> Tensor:
        """Returns the weight of each label's class, and 0 where it is ignored.

        Args:
            labels: Class numbers, int64 of any shape.
        """
        counted = is_counted(labels)
        if self.values is None:
            return counted.float()
        if self.values.numel() == 0:
            raise ValueError(self._unknown())
        return self.values[labels.where(counted, 0)].where(counted, 0)

    def _unknown(self) -> str:
        return f"{self.parameter}: weights that are balanced or by name are known once fit_to_labels was called"

    def _balanced(self, names: Sequence[str], counts: Sequence[int], num_rows: int) -> list[float]:
        empty = [name for name, count in zip(names, counts, strict=True) if count == 0]
        if empty:
            raise ValueError(
                f"{self.parameter}: balanced needs training rows of every label; none of {', '.join(empty)}"
            )
        weights = self.balance(torch.tensor(list(counts), dtype=torch.float64), num_rows).tolist()
        always = [name for name, weight in zip(names, weights, strict=True) if weight <= 0]
        if always:
            raise ValueError(f"{self.parameter}: balanced needs training rows without the label {', '.join(always)}")
        return weights

    def _checked(self, given: object) -> list[float]:
        try:
            weights = [float(weight) for weight in given]  # type: ignore[attr-defined]  # also arrays and tensors
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.parameter} takes one number per class: {error}") from None
        wrong = [weight for weight in weights if not (math.isfinite(weight) and weight >= 0)]
        if wrong:
            raise ValueError(f"{self.parameter} takes finite numbers of at least 0, not {wrong[0]}")
        if not any(weights):
            raise ValueError(f"{self.parameter} needs a weight above 0, or nothing is learnt; got {weights}")
        return weights
