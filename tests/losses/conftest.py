"""One or more examples of every loss: how it is configured in YAML, and what a task offers to it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from jsonargparse import ArgumentParser
from torch import Tensor

from lit_trainer.losses.base import Loss, one_pass

Offered = dict[str, Any]


@dataclass(frozen=True)
class Example:
    path: str
    offered: Callable[[torch.Generator, int], Offered]
    init_args: dict[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ("a", "b", "c")
    across_rows: bool = False

    @property
    def config(self) -> dict[str, Any]:
        return {"class_path": f"lit_trainer.losses.{self.path}", "init_args": self.init_args}

    def unfitted(self) -> Loss:
        parser = ArgumentParser(exit_on_error=False)
        parser.add_argument("--loss", type=Loss)
        return parser.instantiate(parser.parse_object({"loss": self.config})).loss

    def loss(self) -> Loss:
        return self.fit(self.unfitted()).double()

    def fit(self, loss: Loss) -> Loss:
        for head in self.heads():
            loss.fit_to_labels(self.names, (5, 3, 2)[: len(self.names)], num_rows=12, head=head)
        return loss

    def heads(self) -> list[str | None]:
        labels = self.rows(1)["labels"]
        return list(labels) if isinstance(labels, dict) else [None]

    def rows(self, num_rows: int, seed: int = 0) -> Offered:
        """Rows in float64, about a quarter of them ignored."""
        generator = torch.Generator().manual_seed(seed)
        return {"progress": 0.25, "batch": {}, **self.offered(generator, num_rows)}

    def __str__(self) -> str:
        return f"{self.path.rsplit('.', 1)[1]}-{'-'.join(map(str, self.init_args)) or 'plain'}"


def class_labels(generator: torch.Generator, *shape: int) -> Tensor:
    labels = torch.randint(3, shape, generator=generator)
    return labels.masked_fill(torch.rand(shape, generator=generator) < 0.25, -100)


def float_labels(generator: torch.Generator, *shape: int) -> Tensor:
    labels = torch.randn(shape, generator=generator, dtype=torch.float64)
    return labels.masked_fill(torch.rand(shape, generator=generator) < 0.25, float("nan"))


def numbers(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def classes(g: torch.Generator, rows: int) -> Offered:
    return {"logits": numbers(g, rows, 3), "labels": class_labels(g, rows)}


def tokens(g: torch.Generator, rows: int) -> Offered:
    return {"logits": numbers(g, rows, 4, 3), "labels": class_labels(g, rows, 4)}


def classes_twice(g: torch.Generator, rows: int) -> Offered:
    return {"logits": numbers(g, 2, rows, 3), "labels": class_labels(g, rows)}


def several_labels(g: torch.Generator, rows: int) -> Offered:
    return {"logits": numbers(g, rows, 3), "labels": float_labels(g, rows, 3).sign().relu()}


def several_labels_twice(g: torch.Generator, rows: int) -> Offered:
    return {"logits": numbers(g, 2, rows, 3), "labels": float_labels(g, rows, 3).sign().relu()}


def yes_or_no(g: torch.Generator, rows: int) -> Offered:
    return {"logits": numbers(g, rows, 1), "labels": class_labels(g, rows).clamp_max(1)}


def one_value(g: torch.Generator, rows: int) -> Offered:
    return {"logits": numbers(g, rows, 1), "labels": float_labels(g, rows)}


def values(g: torch.Generator, rows: int) -> Offered:
    return {"logits": numbers(g, rows, 2), "labels": float_labels(g, rows, 2)}


def features(g: torch.Generator, rows: int) -> Offered:
    return {"features": numbers(g, rows, 5), "labels": class_labels(g, rows)}


def feature_pair(g: torch.Generator, rows: int) -> Offered:
    pair = {"query": numbers(g, rows, 5), "document": numbers(g, rows, 5)}
    return {"features": pair, "labels": class_labels(g, rows)}


def features_twice(g: torch.Generator, rows: int) -> Offered:
    return {"features": numbers(g, 2, rows, 5), "labels": class_labels(g, rows)}


def two_heads(g: torch.Generator, rows: int) -> Offered:
    return {
        "logits": {"topic": numbers(g, rows, 3), "score": numbers(g, rows, 1)},
        "labels": {"topic": class_labels(g, rows), "score": float_labels(g, rows)},
    }


def two_heads_twice(g: torch.Generator, rows: int) -> Offered:
    once = two_heads(g, rows)
    return {**once, "logits": {name: torch.stack([x, 1 - x.flip(-1)]) for name, x in once["logits"].items()}}


def one_head_and_features(g: torch.Generator, rows: int) -> Offered:
    return {**classes(g, rows), "features": numbers(g, rows, 5)}


def term(path: str, **init_args: Any) -> dict[str, Any]:
    return {"class_path": f"lit_trainer.losses.{path}", "init_args": init_args}


BY_NAME = {"a": 1.0, "b": 2.5, "c": 0.0}
CE, FOCAL, BCE = "cross_entropy.CrossEntropy", "focal.FocalLoss", "binary_cross_entropy.BinaryCrossEntropy"
MSE, HUBER = "mean_squared_error.MeanSquaredError", "huber.Huber"
CONTRASTIVE, PAIRS = "contrastive.SupervisedContrastive", "in_batch_negatives.InBatchNegatives"
R_DROP, MULTI_TASK, FUNCTION = "r_drop.RDrop", "multi_task.MultiTask", "function.FunctionLoss"
HERE, PAIR = f"{__package__}.functions", "total_and_weight"
TWO_TERMS = {"topic": term(CE, class_weights="balanced"), "score": term(MSE)}

EXAMPLES = [
    Example(CE, classes),
    Example(CE, tokens, {"class_weights": "balanced"}),
    Example(CE, classes, {"class_weights": BY_NAME, "label_smoothing": 0.1}),
    Example(FOCAL, classes),
    Example(FOCAL, tokens, {"gamma": 0.5, "class_weights": [1.0, 0.0, 3.0], "label_smoothing": 0.2}),
    Example(BCE, several_labels),
    Example(BCE, yes_or_no, {"positive_weights": "balanced"}, names=("yes",)),
    Example(BCE, several_labels, {"positive_weights": BY_NAME, "label_smoothing": 0.1, "gamma": 0.5}),
    Example(MSE, one_value),
    Example(MSE, values),
    Example(HUBER, one_value, {"delta": 0.5}),
    Example(CONTRASTIVE, features, {"temperature": 0.5}, across_rows=True),
    Example(PAIRS, feature_pair, {"temperature": 0.5, "symmetric": True}, across_rows=True),
    Example(PAIRS, features_twice, {"temperature": 0.5, "dropout_pairs": True}, across_rows=True),
    Example(R_DROP, classes_twice, {"loss": term(CE, class_weights=BY_NAME, label_smoothing=0.1), "alpha": 0.5}),
    Example(R_DROP, several_labels_twice, {"loss": term(BCE)}),
    Example(MULTI_TASK, two_heads, {"losses": TWO_TERMS, "weights": {"topic": 1.0, "score": "math.sqrt"}}),
    Example(MULTI_TASK, two_heads, {"losses": TWO_TERMS, "weights": "uncertainty"}),
    Example(
        MULTI_TASK,
        two_heads_twice,
        {"losses": {**TWO_TERMS, "topic": term(R_DROP, loss=term(CE))}, "weights": {"topic": 1.0, "score": 0.3}},
    ),
    Example(
        MULTI_TASK,
        one_head_and_features,
        {"losses": {"main": term(CE), "contrast": term(CONTRASTIVE)}, "weights": {"main": 1.0, "contrast": 0.3}},
        across_rows=True,
    ),
    Example(FUNCTION, classes, {"function": f"{HERE}.negative_log_likelihood"}),
    Example(FUNCTION, one_value, {"function": f"{HERE}.squared_error"}),
    Example(
        FUNCTION,
        classes,
        {"function": f"{HERE}.weighted_negative_log_likelihood", "returns": PAIR},
    ),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "example" in metafunc.fixturenames:
        metafunc.parametrize("example", EXAMPLES, ids=str)
    if "row_wise_example" in metafunc.fixturenames:
        row_wise = [example for example in EXAMPLES if not example.across_rows]
        metafunc.parametrize("row_wise_example", row_wise, ids=str)


@pytest.fixture
def examples() -> list[Example]:
    return EXAMPLES


def mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Mapping):
        return {key: mapped(entry, function) for key, entry in value.items()}
    return function(value) if isinstance(value, Tensor) else value


def changed(offered: Offered, outputs: Callable[[Tensor], Tensor], labels: Callable[[Tensor], Tensor]) -> Offered:
    """What is offered with a function applied to each model output and another to each tensor of labels."""
    functions = {"logits": outputs, "features": outputs, "labels": labels}
    return {key: mapped(value, functions[key]) if key in functions else value for key, value in offered.items()}


def outputs_of(offered: Offered) -> list[Tensor]:
    values = [offered[key] for key in ("logits", "features") if key in offered]
    return [tensor for value in values for tensor in (value.values() if isinstance(value, dict) else [value])]


def some_rows(loss: Loss, offered: Offered, index: Tensor) -> Offered:
    axis = 1 if loss.passes > 1 else 0
    return changed(offered, lambda x: x.index_select(axis, index), lambda y: y.index_select(0, index))


def once(offered: Offered) -> Offered:
    return one_pass(offered, 0)
