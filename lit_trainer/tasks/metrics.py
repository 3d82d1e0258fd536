"""The metrics of a task: sensible ones by the kind of its labels, and any of torchmetrics on top."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics import classification as tm_classification
from torchmetrics import regression as tm_regression

Kind = Literal["classes", "multi_label", "regression"]

_NO_LABEL = -1


def default_metrics(kind: Kind, num_labels: int) -> dict[str, Metric]:
    """Returns the metrics of a kind of labels, by the name they are logged under.

    Args:
        kind: What the labels are.
        num_labels: Classes, or columns of a multi-label table, C.
    """
    if kind == "regression":
        with warnings.catch_warnings():
            # That it keeps all values is what is wanted: they are there at once, and gone after.
            warnings.filterwarnings("ignore", "Metric `SpearmanCorrcoef` will save all", UserWarning)
            spearman = tm_regression.SpearmanCorrCoef()
        return {
            "mse": tm_regression.MeanSquaredError(),
            "mae": tm_regression.MeanAbsoluteError(),
            "r2": tm_regression.R2Score(),
            "pearson": tm_regression.PearsonCorrCoef(),
            "spearman": spearman,
        }
    if kind == "multi_label":
        common: dict[str, Any] = {"num_labels": num_labels, "ignore_index": _NO_LABEL}
        return {
            "f1_micro": tm_classification.MultilabelF1Score(average="micro", **common),
            "f1_macro": tm_classification.MultilabelF1Score(average="macro", **common),
            "precision_micro": tm_classification.MultilabelPrecision(average="micro", **common),
            "recall_micro": tm_classification.MultilabelRecall(average="micro", **common),
            "average_precision": tm_classification.MultilabelAveragePrecision(average="macro", **common),
            "exact_match": tm_classification.MultilabelExactMatch(**common),
        }
    if num_labels == 2:
        return {
            "accuracy": tm_classification.BinaryAccuracy(),
            "precision": tm_classification.BinaryPrecision(),
            "recall": tm_classification.BinaryRecall(),
            "f1": tm_classification.BinaryF1Score(),
            "auroc": tm_classification.BinaryAUROC(),
            "average_precision": tm_classification.BinaryAveragePrecision(),
        }
    return {
        "accuracy": tm_classification.MulticlassAccuracy(num_labels, average="micro"),
        "precision_macro": tm_classification.MulticlassPrecision(num_labels, average="macro"),
        "recall_macro": tm_classification.MulticlassRecall(num_labels, average="macro"),
        "f1_macro": tm_classification.MulticlassF1Score(num_labels, average="macro"),
        "f1": tm_classification.MulticlassF1Score(num_labels, average="none"),
        "auroc": tm_classification.MulticlassAUROC(num_labels, average="macro"),
    }


def predictions(kind: Kind, logits: Tensor) -> Tensor:
    """Turns logits into what people read: probabilities ``[N, C]``, or values ``[N]`` for regression.

    Args:
        kind: What the labels are.
        logits: float ``[N, C]``; one column is a value, or the log-odds of class 1 of two.
    """
    if kind == "regression":
        return logits.squeeze(-1)
    if kind == "multi_label":
        return logits.sigmoid()
    if logits.shape[-1] == 1:
        positive = logits.sigmoid()
        return torch.cat([1 - positive, positive], dim=-1)
    return logits.softmax(-1)


def evaluate(
    metrics: Mapping[str, Metric], kind: Kind, predicted: Tensor, labels: Tensor, names: Sequence[str]
) -> dict[str, Tensor]:
    """Computes metrics over all rows at once, on this rank alone.

    Args:
        metrics: By name. One that gives a value for each class is named ``name/class``.
        kind: What the labels are.
        predicted: What `predictions` returned.
        labels: int64 ``[N]``, or float ``[N]`` or ``[N, C]``; what is ignored is left out.
        names: Of the classes, C.

    Returns:
        0-d values by name; nothing where no label counts.
    """
    if kind == "multi_label":
        targets = torch.where(labels.isnan(), torch.full_like(labels, _NO_LABEL), labels).long()
    else:
        counted = ~labels.isnan() if labels.is_floating_point() else labels >= 0
        predicted, targets = predicted[counted], labels[counted]
        if kind == "classes" and len(names) == 2:
            predicted = predicted[:, 1]
    values: dict[str, Tensor] = {}
    if not len(targets):
        return values
    with warnings.catch_warnings():
        # A metric that is undefined on these rows (one class only) says so by its value.
        warnings.filterwarnings("ignore", category=UserWarning, module="torchmetrics")
        for name, metric in metrics.items():
            value = metric(predicted, targets)  # the value of these rows: unlike compute(), it does not ask other ranks
            metric.reset()
            if value.ndim:
                values.update({f"{name}/{label}": v for label, v in zip(names, value, strict=True)})
            else:
                values[name] = value
    return values
