"""The vocabulary of a batch: its keys, its shapes and what an ignored label is.

A batch is a plain ``dict``. What the model takes keeps the name Transformers gives it (``input_ids``,
``attention_mask``, ...). What only the training needs is named here and never reaches the model.

Shapes: B rows, L tokens, C classes, D width, A micro-batches.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:  # what a report of a run takes from here and from `decision` is not to wait for torch
    from torch import Tensor

Batch: TypeAlias = dict[str, Any]
Labels: TypeAlias = "Tensor | dict[str, Tensor]"

LABELS: Final = "labels"
"""Targets: int64 ``[B]`` or ``[B, L]`` for classes, float ``[B]`` or ``[B, C]`` for values; one such tensor by
name where a model has several heads."""

ROW: Final = "row"
"""int64 ``[B]``: the row's number in its split, in data-set order; -1 for a row that only fills up a batch."""

DRAW: Final = "draw"
"""int64 ``[B]``: the draw's number in the epoch's plan. A row that is drawn twice has two of them."""

EPOCH: Final = "epoch"
"""int: the epoch of the plan that the batch comes from."""

MICRO_BATCH: Final = "micro_batch"
"""int: the micro-batch's position in its optimizer step, from 0."""

STEP_LABELS: Final = "step_labels"
"""list of A labels: those of every micro-batch of this optimizer step on this rank; on micro-batch 0 only."""

LENGTHS: Final = "lengths"
"""list of B int: the real tokens of each row, as the host knows them. The model gets it where it runs without padding,
so that an accelerator need not be waited for."""

BOOKKEEPING: Final = frozenset({ROW, DRAW, EPOCH, MICRO_BATCH, STEP_LABELS})

IGNORED_LABEL: Final = -100
"""What an integer label says when nothing is to be learnt from it. A float label says so by being NaN."""


def is_counted(labels: "Tensor") -> "Tensor":
    """Tells which labels count: not -100 for integers, not NaN for floats.

    Args:
        labels: Of any shape.

    Returns:
        bool, of the shape of ``labels``.
    """
    return ~labels.isnan() if labels.is_floating_point() else labels != IGNORED_LABEL


def ignored_like(labels: "Tensor") -> "Tensor":
    """Returns labels of the same shape and dtype that are all ignored."""
    return labels.new_full(labels.shape, float("nan") if labels.is_floating_point() else IGNORED_LABEL)


def model_inputs(batch: Mapping[str, Any]) -> Batch:
    """Returns what the model's ``forward`` takes: the batch without labels and bookkeeping."""
    return {key: value for key, value in batch.items() if key != LABELS and key not in BOOKKEEPING}
