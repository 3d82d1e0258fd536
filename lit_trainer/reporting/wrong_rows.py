"""The rows that a model is most wrong about: what a person should read first."""

from dataclasses import dataclass

import numpy as np

from lit_trainer.batch import IGNORED_LABEL
from lit_trainer.reporting.decisions import Decisions
from lit_trainer.reporting.scores import SplitScores

NUM_SHOWN = 20
"""How many rows are shown, and kept with their texts."""


@dataclass(frozen=True)
class WrongRow:
    """A row that was decided wrongly, or a value that is far off.

    Args:
        row: Its number in the split.
        true: The label, the labels or the value that it has.
        decided: What was decided or predicted.
        measure: How wrong that is: the probability that was given to the truth; or the distance.
        texts: Its text, two for a pair; empty if they were not kept.
    """

    row: int
    true: str
    decided: str
    measure: float
    texts: tuple[str, ...] = ()


def most_wrong(scores: SplitScores, num_rows: int = NUM_SHOWN) -> list[WrongRow]:
    """Returns the wrong rows to which the truth seemed least probable; of values those that are furthest off.

    Args:
        scores: The rows of a split.
        num_rows: How many, at most.

    Raises:
        ValueError: If the scores do not fit their rule, or are not finite.
    """
    if scores.rule is None:
        return _furthest(scores, num_rows)
    decisions = Decisions.of(scores)
    names, labels, probabilities = decisions.names, decisions.labels, decisions.probabilities
    if decisions.rule.kind == "multi_label":
        of_truth = np.where(labels == 1, probabilities, 1 - probabilities)
        right = (decisions.decided == labels) | (labels == IGNORED_LABEL)
        least = np.where(right, np.inf, of_truth).min(axis=1) if len(labels) else np.zeros(0)
    else:
        least = np.where(decisions.wrong, probabilities[np.arange(len(labels)), labels], np.inf)

    def told(numbers: np.ndarray) -> str:
        if numbers.ndim == 0:
            return names[int(numbers)]
        return ", ".join(name for name, number in zip(names, numbers, strict=True) if number == 1) or "none"

    chosen = [index for index in np.argsort(least, kind="stable")[:num_rows] if np.isfinite(least[index])]
    return [
        WrongRow(
            row := int(decisions.rows[index]),
            told(labels[index]),
            told(decisions.decided[index]),
            float(least[index]),
            scores.texts.get(row, ()),
        )
        for index in chosen
    ]


def _furthest(scores: SplitScores, num_rows: int) -> list[WrongRow]:
    values, labels = scores.logits[:, 0].astype(np.float64), scores.labels.reshape(-1).astype(np.float64)
    distance = np.where(np.isfinite(values - labels), np.abs(values - labels), -1.0)
    chosen = [index for index in np.argsort(-distance, kind="stable")[:num_rows] if distance[index] > 0]
    return [
        WrongRow(
            row := int(scores.rows[index]),
            f"{labels[index]:.4g}",
            f"{values[index]:.4g}",
            float(distance[index]),
            scores.texts.get(row, ()),
        )
        for index in chosen
    ]
