"""What the labels of the training rows say before any text is read."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lit_trainer.batch import is_counted
from lit_trainer.data.labels import Kind


def label_counts(labels: NDArray[Any], kind: Kind, num_labels: int) -> list[int]:
    """Returns how many rows each class has, or each of several labels.

    Args:
        labels: int64 ``[R]``, float ``[R]`` or float ``[R, C]``.
        kind: What a label is.
        num_labels: C.
    """
    if kind == "classes":
        counts: list[int] = np.bincount(labels[labels >= 0], minlength=num_labels).tolist()
        return counts
    return [int(count) for count in np.nansum(labels.reshape(len(labels), -1), axis=0)]


def num_labelled_rows(labels: NDArray[Any]) -> int:
    """Returns how many rows have a label that counts."""
    return int(is_counted(torch.as_tensor(labels.reshape(len(labels), -1))).any(1).sum())


def baseline_prediction(labels: NDArray[Any], kind: Kind, num_labels: int) -> NDArray[Any]:
    """Returns what to predict without reading a text, ``[C]``: each class's share of the rows; or their mean."""
    if kind == "regression":
        return np.asarray(np.nanmean(labels))
    return np.asarray(label_counts(labels, kind, num_labels)) / num_labelled_rows(labels)
