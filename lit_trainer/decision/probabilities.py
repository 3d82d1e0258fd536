"""What decisions are made of: logits and labels as plain arrays, and the probabilities that logits stand for.

Everything downstream is float64 and computed row by row, so that a row is decided alike alone and in any batch.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from lit_trainer.batch import IGNORED_LABEL

if TYPE_CHECKING:
    from torch import Tensor

Kind: TypeAlias = Literal["binary", "multi_class", "multi_label"]
"""One of two classes, one of C classes, or any number of C classes."""

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Array: TypeAlias = "NDArray[np.generic] | Tensor"


def check_kind(kind: str) -> None:
    """Raises a ValueError unless the kind is known."""
    if kind not in get_args(Kind):
        raise ValueError(f"kind is {kind!r}; it can be {', '.join(get_args(Kind))}")


def read_logits(logits: Array, kind: Kind, num_classes: int) -> Floats:
    """Reads a model's logits.

    Args:
        logits: ``[N, C]`` of any float type on any device. A binary model may give one logit per row, ``[N]`` or
            ``[N, 1]``, that of the second class.
        kind: What the model decides.
        num_classes: C.

    Returns:
        float64 ``[N, C]``; a single logit z stands for the pair (0, z).

    Raises:
        ValueError: If the shape is another one or a logit is not finite.
    """
    read: Floats = _as_numpy(logits).astype(np.float64)
    given = read.shape
    if kind == "binary" and (read.ndim == 1 or given[1:] == (1,)):
        read = np.stack([np.zeros(len(read)), read.reshape(len(read))], axis=1)
    if read.ndim != 2 or read.shape[1] != num_classes:
        raise ValueError(
            f"logits have the shape {list(given)}; {kind} with {num_classes} labels takes [N, {num_classes}]"
        )
    finite: Bools = np.asarray(np.isfinite(read).all(axis=1))
    if not finite.all():
        raise ValueError(f"logits are not finite in {rows(~finite)}")
    return np.ascontiguousarray(read)


def read_labels(labels: Array, kind: Kind, num_classes: int, num_rows: int) -> Integers:
    """Reads the true labels.

    Args:
        labels: ``[N]`` with class numbers, or ``[N, C]`` with 0 and 1 for multi_label. -100, or NaN in floats, is
            ignored.
        kind: What the labels tell.
        num_classes: C.
        num_rows: N.

    Returns:
        int64 of the same shape, -100 where ignored.

    Raises:
        ValueError: If the shape is another one or a label is none of the classes.
    """
    given = _as_numpy(labels)
    expected = (num_rows, num_classes) if kind == "multi_label" else (num_rows,)
    if given.shape != expected:
        raise ValueError(f"labels have the shape {list(given.shape)}; these logits of {kind} need {list(expected)}")
    counted = (given != IGNORED_LABEL) & (given == given)  # NaN equals nothing
    read = np.where(counted, given, IGNORED_LABEL)
    highest = 1 if kind == "multi_label" else num_classes - 1
    wrong = counted & ~np.isin(read, np.arange(highest + 1))
    if wrong.any():
        raise ValueError(f"labels of {kind} are whole numbers from 0 to {highest}; others are in {rows(wrong)}")
    return read.astype(np.int64)


def probabilities_of(logits: Floats, kind: Kind) -> Floats:
    """Turns logits into probabilities: each class's own sigmoid for multi_label, else the softmax.

    Args:
        logits: ``[N, C]``, finite.
        kind: What the logits decide.

    Returns:
        ``[N, C]`` in [0, 1].
    """
    if kind == "multi_label":
        small = np.exp(-np.abs(logits))
        return np.where(logits >= 0, 1.0, small) / (1.0 + small)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def one_hot(labels: Integers, num_classes: int) -> Floats:
    """Returns ``[N, C]`` with a 1 at each row's class; none of the labels ``[N]`` may be ignored."""
    return np.eye(num_classes)[labels]


def rows(wrong: Bools) -> str:
    """Names the rows, the first axis, where anything is wrong: at most ten of them, and how many more."""
    numbers = np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1))
    more = f" and {len(numbers) - 10} more" if len(numbers) > 10 else ""
    return f"row{'s' if len(numbers) > 1 else ''} {listed(numbers[:10])}{more}"


def listed(things: Iterable[object]) -> str:
    """Joins things by commas."""
    return ", ".join(str(thing) for thing in things)


def _as_numpy(array: Array) -> NDArray[Any]:
    if not hasattr(array, "detach"):
        return np.array(array)
    tensor = array.detach().cpu()
    return np.asarray(tensor.double() if tensor.is_floating_point() else tensor)  # numpy has no bfloat16
