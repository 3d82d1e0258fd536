"""The model card: what an exported model is, in the form the Hugging Face Hub reads."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml  # type: ignore[import-untyped]

from lit_trainer import __version__

_PIPELINES = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
    "ForImageClassification": "image-classification",
}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True)
class ModelCard:
    """What a model card says.

    Args:
        model_class: The class of Transformers that loads the model.
        started_from: The pretrained model, in words.
        base_model: The pretrained model's name on the Hub, where it has one.
        labels: Names of the classes in the order of their numbers.
        data: What the data are, one paragraph or list item a line.
        chosen_by: Which weights these are and why, a sentence.
        decisions: How labels are decided, where that is not by what is most probable.
        validation: Metrics of these weights on the validation split, by name.
        test: Metrics of these weights on the test split, by name.
        baseline: What always giving the most frequent answer scores on the test split, by name.
        configuration: The settings of the run, as YAML.
        license: The licence of the weights, as the Hub abbreviates it.
        language: The language of the texts, as the Hub abbreviates it.
    """

    model_class: str
    started_from: str
    base_model: str | None = None
    labels: Sequence[str] = ()
    data: Sequence[str] = ()
    chosen_by: str = ""
    decisions: str = ""
    validation: Mapping[str, float] = field(default_factory=dict)
    test: Mapping[str, float] = field(default_factory=dict)
    baseline: Mapping[str, float] = field(default_factory=dict)
    configuration: str = ""
    license: str | None = None
    language: str | None = None

    def __str__(self) -> str:
        parts = [
            f"# {self.model_class} fine-tuned from {self.started_from}",
            self._what_it_is(),
            "## Data",
            "\n".join(self.data) or "Not described by the run.",
            *(["## Labels", self._label_table()] if self.labels else []),
            "## Metrics",
            self._metric_table(),
            *(["## Decisions", self.decisions] if self.decisions else []),
            "## Configuration",
            self._settings(),
            "## How to load it",
            self._how_to_load(),
        ]
        return f"---\n{self._front_matter()}---\n\n" + "\n\n".join(part for part in parts if part) + "\n"

    @property
    def pipeline(self) -> str | None:
        """The pipeline of Transformers that the model is for."""
        return next((task for suffix, task in _PIPELINES.items() if self.model_class.endswith(suffix)), None)

    def _front_matter(self) -> str:
        base = self.base_model or (self.started_from if _HUB_NAME.fullmatch(self.started_from) else None)
        known: dict[str, Any] = {
            "library_name": "transformers",
            "pipeline_tag": self.pipeline,
            "base_model": base,
            "license": self.license,
            "language": self.language,
            "metrics": [name for name in _names(self.validation, self.test) if name != "loss"],
            "tags": ["lit_trainer", "lightning"],
        }
        text: str = yaml.safe_dump({key: value for key, value in known.items() if value}, sort_keys=False)
        return text

    def _what_it_is(self) -> str:
        classes = f" It tells {_listing(self.labels)} apart." if 1 < len(self.labels) <= 10 else ""
        chosen_by = f" {self.chosen_by}" if self.chosen_by else ""
        return (
            f"A `{self.model_class}`, fine-tuned from {self.started_from} with lit_trainer {__version__}."
            f"{classes}{chosen_by}"
        )

    def _label_table(self) -> str:
        return _table(["number", "label"], [[str(number), name] for number, name in enumerate(self.labels)])

    def _metric_table(self) -> str:
        columns = {"validation": self.validation, "test": self.test, "majority on test": self.baseline}
        columns = {title: metrics for title, metrics in columns.items() if metrics}
        if not columns:
            return "None were computed."
        rows = [
            [name, *(f"{metrics[name]:.4f}" if name in metrics else "" for metrics in columns.values())]
            for name in _names(*columns.values())
        ]
        return _table(["metric", *columns], rows)

    def _settings(self) -> str:
        if not self.configuration:
            return "Not saved by the run."
        settings = f"```yaml\n{self.configuration.strip()}\n```"
        return f"<details>\n<summary>All settings of the run</summary>\n\n{settings}\n\n</details>"

    def _how_to_load(self) -> str:
        lines = [
            f"from transformers import AutoTokenizer, {self.model_class}",
            "",
            'folder = "."  # this folder',
            f"model = {self.model_class}.from_pretrained(folder)",
            "tokenizer = AutoTokenizer.from_pretrained(folder)",
        ]
        if self.pipeline == "text-classification":
            lines = [
                "from transformers import pipeline",
                "",
                'classify = pipeline("text-classification", model=".")  # this folder',
                'classify("A text to classify")',
            ]
        return "```python\n" + "\n".join(lines) + "\n```"


def _names(*metrics: Mapping[str, float]) -> list[str]:
    """Returns all names, that of the loss last."""
    names = dict.fromkeys(name for each in metrics for name in each)
    return sorted(names, key=lambda name: name == "loss")


def _listing(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
