"""How likely each row is to be drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class WeightedSampling:
    """Draws rows by weight instead of each once an epoch.

    Args:
        weights: ``balanced`` draws every class equally often; a mapping gives each class, by its name, the weight of
            one row of it.
        column: Instead: the column of the data that holds each row's weight.
        temperature: Instead: draws a class of n rows in proportion to n to the power of 1 / temperature. At 1 rows are
            equally likely; a high temperature nears ``balanced``.
        replacement: Whether a row can be drawn more than once in an epoch.
        num_draws: Rows drawn in an epoch; as many as there are rows if not given.

    Raises:
        ValueError: If not exactly one of weights, column and temperature is given.

    Source: temperature as in Devlin's multilingual BERT, where it is called exponential smoothing.
    """

    weights: Literal["balanced"] | dict[str, float] | None = None
    column: str | None = None
    temperature: float | None = None
    replacement: bool = True
    num_draws: int | None = field(default=None)

    def __post_init__(self) -> None:
        given = [name for name in ("weights", "column", "temperature") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"sampling: give exactly one of weights, column and temperature, not {' and '.join(given) or 'none'}"
            )
        if self.temperature is not None and not self.temperature > 0:
            raise ValueError(f"sampling.temperature must be above 0, not {self.temperature}")

    def row_weights(
        self, labels: NDArray[Any] | None, names: Sequence[str], columns: Mapping[str, Sequence[Any]]
    ) -> NDArray[np.float64]:
        """Returns the weight of each row, float64 ``[R]``; 0 where a weight by class meets a row without a label.

        Args:
            labels: int64 ``[R]``, the class of each row, -100 for none.
            names: Of the classes, C.
            columns: The columns of the data by name.

        Raises:
            ValueError: If a name or column is unknown, a class is missing, or rows have no single class.
        """
        if self.column is not None:
            if self.column not in columns:
                raise ValueError(f"sampling.column: no column {self.column!r}; there are {', '.join(columns)}")
            return np.asarray(columns[self.column], dtype=np.float64)
        if labels is None or labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            raise ValueError("sampling: rows without a single class each can only be weighted by a column")
        labelled = labels >= 0
        counts = np.bincount(labels[labelled], minlength=len(names)).astype(np.float64)
        if isinstance(self.weights, dict):
            by_class = self._by_name(self.weights, names)
        else:
            power = 0.0 if self.temperature is None else 1 / self.temperature
            with np.errstate(divide="ignore"):
                by_class = np.where(counts > 0, counts ** (power - 1), 0.0)
        return np.where(labelled, by_class[labels.clip(min=0)], 0.0)  # a row without a label has nothing to teach

    @staticmethod
    def _by_name(weights: Mapping[str, float], names: Sequence[str]) -> NDArray[np.float64]:
        given = {str(name): weight for name, weight in weights.items()}
        unknown, missing = sorted(set(given) - set(names)), sorted(set(names) - set(given))
        if unknown or missing:
            wrong = f"no class {', '.join(unknown)}" if unknown else f"no weight for {', '.join(missing)}"
            raise ValueError(f"sampling.weights: {wrong}; the classes are {', '.join(names)}")
        return np.asarray([given[name] for name in names], dtype=np.float64)
