"""The label contract: whatever the data calls its labels, a model sees 0 to C-1, by one map for all splits."""

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias, get_args

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict
from numpy.typing import NDArray

from lit_trainer.batch import IGNORED_LABEL

Kind: TypeAlias = Literal["classes", "multi_label", "regression"]
"""What a label is: one class, any number of classes at once, or a value."""

_WHOLE = re.compile(r"([+-]?\d+)\.0+")
_DECIMAL = re.compile(r"[+-]?\d+(\.\d+)?")


@dataclass(frozen=True)
class LabelMap:
    """Which label has which class number.

    A label is known by its name. Text is its own name, and 1, 1.0, "1" and "1.0" are all named "1"; booleans are named
    "False" and "True".

    Args:
        names: The names in the order of their class numbers, C; for a value one name, that of the value.
        kind: What a label is.
    """

    names: tuple[str, ...]
    kind: Kind = "classes"

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind is {self.kind!r}, not one of {', '.join(get_args(Kind))}")
        if not self.names:
            raise ValueError("there are no labels to learn: every label of the training split is missing")
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise ValueError(f"classes has {', '.join(twice)} more than once")

    @classmethod
    def from_columns(
        cls,
        columns: Mapping[str, Sequence[Any]],
        kind: Kind = "classes",
        classes: Sequence[str | int | float | bool] | None = None,
    ) -> Self:
        """Learns the map from the training split; the others have no say in it.

        Args:
            columns: The labels of each split, ``train`` at least.
            kind: What a label is.
            classes: The labels in the order of their class numbers, also such as the training split does not have. If
                not given, numbers are in numerical and names in alphabetical order.

        Raises:
            ValueError: If a label cannot be one of the kind, or there is none.
        """
        if kind == "regression":
            return cls(("value",), kind)
        if classes is not None:
            return cls(tuple(label_name(name) for name in classes), kind)
        present = [(row, value) for row, value in enumerate(columns["train"]) if not is_missing(value)]
        if kind == "multi_label":
            width = _vector_width([value for _, value in present])
            if width:
                return cls(tuple(map(str, range(width))), kind)
        names: set[str] = set()
        for row, value in present:
            try:
                names.update(_names(value) if kind == "multi_label" else [label_name(value)])
            except ValueError as error:
                raise ValueError(f"train, row {row}: {error}") from error
        return cls(tuple(_ordered(names)), kind)

    @classmethod
    def from_dataset(
        cls, dataset: DatasetDict, column: str, kind: Kind = "classes", classes: Sequence[str] | None = None
    ) -> Self:
        """Learns the map from the training split's column; the names of a ``ClassLabel`` feature keep their order.

        Args:
            dataset: The splits, ``train`` at least.
            column: The column with the labels.
            kind: What a label is.
            classes: See `from_columns`.

        Raises:
            ValueError: If a label cannot be one of the kind, or there is none.
        """
        feature = _class_label(dataset["train"], column)
        if classes is None and feature is not None and kind != "regression":
            classes = feature.names
        return cls.from_columns({"train": label_values(dataset["train"], column)}, kind, classes)

    @property
    def id2label(self) -> dict[int, str]:
        """The name by class number, as a model's configuration has it."""
        return dict(enumerate(self.names))

    @property
    def label2id(self) -> dict[str, int]:
        """The class number by name, as a model's configuration has it."""
        return {name: number for number, name in enumerate(self.names)}

    def encode(self, value: Any) -> Any:
        """Returns what the model is to learn for one label.

        Args:
            value: As the data has it; for several classes at once a list of labels, or of C numbers 0 and 1.

        Returns:
            The class number; for several classes float32 ``[C]`` of 0 and 1, NaN where unknown; for a value the float.
            A missing label is -100 or NaN.

        Raises:
            ValueError: If the label is not in the map.
        """
        encoded = self.encode_column([value])[0]
        return encoded.item() if encoded.ndim == 0 else encoded

    def encode_column(self, values: Sequence[Any], unknown: Literal["error", "ignore"] = "error") -> NDArray[Any]:
        """Returns what the model is to learn for each row, see `encode`.

        Args:
            values: R labels.
            unknown: Whether a label that is not in the map is an error, or treated as if it was missing.

        Returns:
            int64 ``[R]`` for classes, float32 ``[R, C]`` for several classes at once, float32 ``[R]`` for values.

        Raises:
            ValueError: If labels are not in the map; it names them with their rows.
        """
        if unknown == "error" and (strange := self.unknown(values)):
            raise ValueError("; ".join(self._complaint(name, rows) for name, rows in list(strange.items())[:3]))
        if self.kind == "regression":
            return np.array([_number(value) for value in values], dtype=np.float32)
        number = self.label2id
        if self.kind == "classes":
            names = (None if is_missing(value) else _name_or_repr(value) for value in values)
            return np.array([number.get(name, IGNORED_LABEL) if name else IGNORED_LABEL for name in names], np.int64)
        encoded = np.zeros((len(values), len(self.names)), np.float32)
        for row, value in enumerate(values):
            if is_missing(value):
                encoded[row] = np.nan
            elif self._is_vector(value):
                encoded[row] = [_number(flag) for flag in value]
            else:
                encoded[row, [number[name] for name in _names(value, strict=False) if name in number]] = 1
        return encoded

    def unknown(self, values: Sequence[Any]) -> dict[str, list[int]]:
        """Returns the labels that are not in the map, each with the rows that have it; missing ones do not count."""
        found: dict[str, list[int]] = {}
        known = set(self.names)
        for row, value in enumerate(values):
            if is_missing(value):
                continue
            if self.kind == "regression":
                names = [] if math.isfinite(_number(value)) else [str(value)]
            elif self.kind == "classes":
                names = [_name_or_repr(value)]
            else:
                names = [] if self._is_vector(value) else _names(value, strict=False)
            for name in names:
                if self.kind == "regression" or name not in known:
                    found.setdefault(name, []).append(row)
        return found

    def _is_vector(self, value: Any) -> bool:
        return _is_list(value) and len(value) == len(self.names) and all(map(_is_flag, value))

    def _complaint(self, name: str, rows: Sequence[int]) -> str:
        """Says which rows have a label that is not in the map."""
        where = f"row {rows[0]}" if len(rows) == 1 else f"rows {', '.join(map(str, rows[:5]))}"
        more = f" and {len(rows) - 5:,} more" if len(rows) > 5 else ""
        if self.kind == "regression":
            return f"the label {name!r} ({where}{more}) is not a finite number, which kind: regression needs"
        close = difflib.get_close_matches(name, self.names, n=1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        there = ", ".join(self.names[:20]) + (", ..." if len(self.names) > 20 else "")
        return f"the label {name!r} ({where}{more}) is none of the classes {there}{meant}"


def label_values(rows: Dataset, column: str) -> list[Any]:
    """Returns a column's labels; the numbers of a ``ClassLabel`` feature become its names, -1 becomes None."""
    values: list[Any] = rows.with_format(None)[column][:]
    feature = _class_label(rows, column)
    if feature is None:
        return values

    def name(number: Any) -> Any:
        if isinstance(number, list):
            return [name(each) for each in number]
        return None if number is None or number < 0 else feature.names[number]

    return [name(value) for value in values]


def label_name(value: Any) -> str:
    """Returns the name of a label: of text, a whole number or a boolean.

    Raises:
        ValueError: If the value is none of these.
    """
    if isinstance(value, str):
        whole = _WHOLE.fullmatch(value)
        return whole[1] if whole else str(value)
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, int | float | np.integer | np.floating) and float(value).is_integer():
        return str(int(value))
    raise ValueError(
        f"the label {value!r} is not text, a whole number or a boolean; a value to predict needs kind: regression, "
        "a list of labels kind: multi_label"
    )


def is_missing(value: Any) -> bool:
    """Tells whether there is no label: None, NaN or blank text."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, float | np.floating) and bool(np.isnan(value)))


def _class_label(rows: Dataset, column: str) -> ClassLabel | None:
    """Returns the column's ``ClassLabel`` feature, or that of its lists, if it has one."""
    feature = rows.features[column]
    feature = getattr(feature, "feature", feature)
    return feature if isinstance(feature, ClassLabel) else None


def _ordered(names: Iterable[str]) -> list[str]:
    """Sorts by value if all are numbers, else by spelling."""
    alphabetical = sorted(names)
    return sorted(alphabetical, key=float) if all(map(_DECIMAL.fullmatch, alphabetical)) else alphabetical


def _name_or_repr(value: Any) -> str:
    try:
        return label_name(value)
    except ValueError:
        return repr(value)


def _names(value: Any, strict: bool = True) -> list[str]:
    """Returns the names in a list of labels."""
    if not _is_list(value):
        if strict:
            raise ValueError(f"kind: multi_label needs a list of labels, not {value!r} (see lists of a CSV source)")
        return [repr(value)]
    return [label_name(each) if strict else _name_or_repr(each) for each in value]


def _vector_width(values: Sequence[Any]) -> int:
    """Returns the length that all lists share if they are of 0 and 1 only, else 0."""
    width = len(values[0]) if values and _is_list(values[0]) else 0
    alike = all(_is_list(value) and len(value) == width and all(map(_is_flag, value)) for value in values)
    return width if width > 1 and alike else 0


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes)


def _is_flag(value: Any) -> bool:
    """Tells whether an entry of a vector says yes, no or unknown."""
    return not isinstance(value, str) and (is_missing(value) or value in (0, 1))


def _number(value: Any) -> float:
    """Returns a value as a float; NaN if it is missing or not a number."""
    try:
        return math.nan if is_missing(value) else float(value)
    except (TypeError, ValueError):
        return math.nan
