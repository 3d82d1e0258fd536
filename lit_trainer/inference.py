"""Applies an exported model: texts in, labels out, decided by the rule that travels with the model."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from lit_trainer.decision.columns import predicted_columns
from lit_trainer.decision.probabilities import Floats
from lit_trainer.decision.rule import CONFIG_KEY, FILE_NAME, DecisionRule
from lit_trainer.models.quiet import quiet

Text: TypeAlias = str | tuple[str, str]
"""What a model reads: a text, or a pair of texts."""

_NO_LIMIT = 10**6  # a tokenizer without a limit of its own says so by an astronomically large one


@dataclass(frozen=True)
class Prediction:
    """What is predicted for a text.

    Args:
        label: The label's name; several names where a text can have any number of labels; the value where the model
            predicts values.
        probabilities: By the name of each label, calibrated if the rule does so; empty for values.
    """

    label: str | tuple[str, ...] | float
    probabilities: Mapping[str, float]


class Predictor:
    """Predicts labels as the run that exported the model did, in float32 and without Lightning.

    Labels are decided by the folder's ``decision_rule.json``, else by the rule in ``config.json``, else for the most
    probable class, or from 0.5 on where a text can have several. Texts are cut where training cut them.

    Args:
        folder: What `ExportPretrained` wrote, or any model for sequence classification, also by its name on the Hub.
        batch_size: Texts that the model reads at a time; those of similar length together.
        device: Where to compute, such as ``cpu`` or ``cuda:1``; None takes the GPU if there is one.
        trust_remote_code: Whether code that comes with the model may run.

    Attributes:
        rule: How labels are decided; None for values.

    Raises:
        ValueError: If there is no trained model in the folder, or its rule is for other labels or of a newer version.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        batch_size: int = 64,
        device: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size} but must be at least 1")
        self.batch_size = batch_size
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model = _load(folder, trust_remote_code).to(self.device)
        self.tokenizer = AutoTokenizer.from_pretrained(os.fspath(folder), trust_remote_code=trust_remote_code)
        self.rule = _rule(Path(folder), self.model.config)

    def predict(self, texts: Sequence[Text]) -> list[Prediction]:
        """Returns what is predicted for each text.

        Args:
            texts: Texts, or pairs of them.
        """
        columns = self.columns(texts)
        names = self.rule.label_names if self.rule else ()
        probabilities = [columns[f"probability_{name}"] for name in names]
        labels = next(iter(columns.values()))
        return [
            Prediction(
                _plain(label), {name: float(column[row]) for name, column in zip(names, probabilities, strict=True)}
            )
            for row, label in enumerate(labels)
        ]

    def columns(self, texts: Sequence[Text]) -> dict[str, Any]:
        """Returns the columns that ``lit-trainer predict`` writes, a row for each text.

        Args:
            texts: Texts, or pairs of them.
        """
        return predicted_columns(self.logits(texts), self.rule)

    def logits(self, texts: Sequence[Text]) -> Floats:
        """Returns the model's logits, float64 ``[N, C]``.

        Args:
            texts: N texts, or pairs of them.

        Raises:
            ValueError: If something else is among them.
        """
        _check(texts)
        logits = np.zeros((len(texts), self.model.config.num_labels))
        for rows in self._batches(texts):
            logits[rows] = self._logits_of([texts[row] for row in rows])
        return logits

    def _batches(self, texts: Sequence[Text]) -> Iterator[list[int]]:
        """Yields the numbers of texts of similar length, the longest first."""
        order = np.argsort([-_length(text) for text in texts], kind="stable").tolist()
        for start in range(0, len(order), self.batch_size):
            yield order[start : start + self.batch_size]

    @torch.inference_mode()
    def _logits_of(self, texts: list[Text]) -> Floats:
        limit = self.tokenizer.model_max_length
        firsts = [text if isinstance(text, str) else text[0] for text in texts]
        seconds = None if isinstance(texts[0], str) else [text[1] for text in texts]
        inputs = self.tokenizer(
            firsts,
            seconds,
            truncation=limit < _NO_LIMIT,
            padding="longest",
            return_tensors="pt",
        )
        found: Floats = self.model(**inputs.to(self.device)).logits.double().cpu().numpy()
        return found


def _load(folder: str | os.PathLike[str], trust_remote_code: bool) -> PreTrainedModel:
    try:
        with quiet():  # what is missing is told below
            model, report = AutoModelForSequenceClassification.from_pretrained(
                os.fspath(folder), dtype=torch.float32, output_loading_info=True, trust_remote_code=trust_remote_code
            )
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"folder: no model can be loaded from {os.fspath(folder)!r}: {reason[0]}") from error
    if report["missing_keys"]:
        raise ValueError(
            f"folder: the model in {os.fspath(folder)!r} was not trained to classify texts: it lacks"
            f" {', '.join(sorted(report['missing_keys']))}"
        )
    model.eval()
    return model


def _rule(folder: Path, config: Any) -> DecisionRule | None:
    """Returns the rule that came with the model, or the usual one for its kind of labels."""
    names = [config.id2label[number] for number in range(config.num_labels)]
    if (folder / FILE_NAME).is_file():
        return DecisionRule.load(folder / FILE_NAME, names)
    if (saved := getattr(config, CONFIG_KEY, None)) is not None:
        rule = DecisionRule.from_dict(saved)
        rule.check_labels(names)
        return rule
    if config.problem_type == "regression" or (config.problem_type is None and len(names) == 1):
        return None
    if config.problem_type == "multi_label_classification":
        return DecisionRule("multi_label", tuple(names))
    return DecisionRule("binary" if len(names) == 2 else "multi_class", tuple(names))


def _check(texts: Sequence[Text]) -> None:
    if isinstance(texts, str):
        raise ValueError("texts is a text; it takes a list of texts")
    pairs = bool(len(texts)) and not isinstance(texts[0], str)
    for number, text in enumerate(texts):
        is_pair = isinstance(text, tuple | list) and len(text) == 2 and all(isinstance(part, str) for part in text)
        if not (is_pair if pairs else isinstance(text, str)):
            expected = "a pair of texts" if pairs and number else "a text or a pair of texts" if pairs else "a text"
            raise ValueError(f"texts[{number}] is {text!r}; it must be {expected}")


def _length(text: Text) -> int:
    return len(text) if isinstance(text, str) else sum(map(len, text))


def _plain(label: Any) -> str | tuple[str, ...] | float:
    if isinstance(label, list):
        return tuple(label)
    return label if isinstance(label, str) else float(label)
