"""What all systems are measured on: one tiny model, the same rows, the same losses, the same splits."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
)

CLASS_WEIGHTS = [1.0, 5.0, 0.25]
STEP_ROWS = 32
SEED = 7


@dataclass(frozen=True)
class Split:
    """How the rows of an optimizer step are spread.

    Args:
        name: What the tables call it.
        ranks: Processes.
        accumulate: Micro-batches of each step on each of them.
        num_rows: Rows of the epoch, whose last step is looked at.
    """

    name: str
    ranks: int = 1
    accumulate: int = 1
    num_rows: int = STEP_ROWS

    @property
    def micro_batch(self) -> int:
        """Rows of one micro-batch."""
        return STEP_ROWS // self.ranks // self.accumulate


SHORT = "1 x 32, last step of 8 rows"

SPLITS = (
    Split("1 x 32"),
    Split("4 x 8", accumulate=4),
    Split("2 ranks x 16", ranks=2),
    Split("2 ranks x 4 x 4", ranks=2, accumulate=4),
    Split(SHORT, num_rows=STEP_ROWS + 8),
    Split("4 x 8, last step of 8 rows", accumulate=4, num_rows=STEP_ROWS + 8),
)


@dataclass(frozen=True)
class Case:
    """A loss, as anybody would write it: the mean over a batch.

    Args:
        name: What the tables call it.
        mean: From logits and labels to the mean loss.
        total_and_weight: The same as a sum and what it is divided by; None where no such pair makes the mean.
        ignored: Whether labels are ignored, more of them in some rows' neighbourhood than in others.
        dropout: Of the model.
        passes: How often the model runs on each batch; ``mean`` then gets logits ``[2, B, C]``.
    """

    name: str
    mean: Callable[[Tensor, Tensor], Tensor]
    total_and_weight: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    ignored: bool = False
    dropout: float = 0.0
    passes: int = 1


def _weights(logits: Tensor) -> Tensor:
    return torch.tensor(CLASS_WEIGHTS, dtype=logits.dtype)


def _weighted(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, weight=_weights(logits))


def _weighted_pair(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return F.cross_entropy(logits, labels, weight=_weights(logits), reduction="sum"), _weights(logits)[labels].sum()


def _plain_pair(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return F.cross_entropy(logits, labels, reduction="sum"), (labels != -100).sum()


def _smoothed(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, label_smoothing=0.1)


def _smoothed_pair(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return F.cross_entropy(logits, labels, label_smoothing=0.1, reduction="sum"), torch.tensor(len(labels))


def _focal_pair(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    log_p = logits.log_softmax(-1).gather(-1, labels[:, None])[:, 0]
    weights = _weights(logits)[labels]
    return -(weights * (1 - log_p.exp()) ** 2 * log_p).sum(), weights.sum()


def _focal(logits: Tensor, labels: Tensor) -> Tensor:
    total, weight = _focal_pair(logits, labels)
    return total / weight


def _two_tasks(logits: Tensor, labels: Tensor) -> Tensor:
    return _weighted(logits, labels) + 0.5 * F.cross_entropy(logits, labels)


def _r_drop(logits: Tensor, labels: Tensor) -> Tensor:
    log_p, log_q = logits.log_softmax(-1)
    divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1) / 2
    weights = _weights(logits)[labels]
    both = (_weighted(logits[0], labels) + _weighted(logits[1], labels)) / 2
    return both + (weights * divergence).sum() / weights.sum()


def hard_rows(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """A loss of a user: a row weighs what the model still has to learn of it, known only after the forward pass."""
    losses = F.cross_entropy(logits, labels, reduction="none")
    weights = 1 - (-losses.detach()).exp()
    return (weights * losses).sum(), weights.sum()


def _hard_rows_mean(logits: Tensor, labels: Tensor) -> Tensor:
    total, weight = hard_rows(logits, labels)
    return total / weight


CASES = (
    Case("cross-entropy", F.cross_entropy, _plain_pair),
    Case("class-weighted", _weighted, _weighted_pair),
    Case("ignored labels", F.cross_entropy, _plain_pair, ignored=True),
    Case("smoothed", _smoothed, _smoothed_pair),
    Case("focal, class-weighted", _focal, _focal_pair),
    Case("two tasks", _two_tasks),
    Case("R-Drop, dropout 0.1", _r_drop, dropout=0.1, passes=2),
    Case("a user's, weight known late", _hard_rows_mean, hard_rows),
)


def make_model(folder: Path) -> None:
    """Writes a random BERT of two layers with a head for three classes."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
        num_labels=len(CLASS_WEIGHTS),
        problem_type="single_label_classification",
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    vocabulary = {"[PAD]": 0, "[UNK]": 1, **{f"w{index}": index for index in range(2, 50)}}
    words = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)


def load_model(folder: str, dropout: float) -> nn.Module:
    """Returns that model in float64, in train mode, with the same weights each time."""
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, dtype=torch.float32
    )
    return model.double().train()


def make_rows(num_rows: int, ignored: bool = False) -> tuple[Dataset, Any, Any]:
    """Returns tokens, lengths and labels of rows of 3 to 19 tokens, of three classes of different frequency.

    Args:
        num_rows: How many.
        ignored: Whether about half of the labels are ignored, few at the beginning and most at the end.
    """
    rng = np.random.default_rng(3)
    lengths = rng.integers(3, 20, num_rows)
    ids = [rng.integers(5, 45, length).tolist() for length in lengths]
    labels = rng.choice(3, num_rows, p=[0.5, 0.15, 0.35])
    if ignored:
        labels[rng.random(num_rows) < np.linspace(0.1, 0.9, num_rows)] = -100
    return Dataset.from_dict({"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids]}), lengths, labels


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """The same rows for the loaders that people use: each a dict, with its number."""

    def __init__(self, num_rows: int, ignored: bool = False) -> None:
        self.tokens, _, self.labels = make_rows(num_rows, ignored)

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self.tokens)

    def __getitem__(self, row: int) -> dict[str, Any]:
        """Returns a row."""
        return {**self.tokens[int(row)], "labels": int(self.labels[row]), "row": int(row)}


def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Pads rows to the longest of them."""
    longest = max(len(row["input_ids"]) for row in rows)

    def padded(key: str) -> Tensor:
        return torch.tensor([row[key] + [0] * (longest - len(row[key])) for row in rows])

    batch = {key: padded(key) for key in ("input_ids", "attention_mask")}
    return {**batch, **{key: torch.tensor([row[key] for row in rows]) for key in ("labels", "row")}}


def run_model(model: Any, batch: dict[str, Tensor], passes: int) -> Tensor:
    """Returns logits ``[B, C]``, or ``[P, B, C]`` of several passes."""
    outputs = [model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]) for _ in range(passes)]
    logits = torch.stack([output.logits for output in outputs])
    return logits[0] if passes == 1 else logits


def direct_gradient(folder: str, case: Case, split: Split) -> Tensor:
    """Returns the gradient of the mean over the rows of the last step by its definition: one batch, one backward."""
    rows = Rows(split.num_rows, case.ignored)
    first = (split.num_rows - 1) // STEP_ROWS * STEP_ROWS
    batch = collate([rows[row] for row in range(first, split.num_rows)])
    model = load_model(folder, case.dropout)
    case.mean(run_model(model, batch, case.passes), batch["labels"]).backward()
    return gradient_of(model)


def gradient_of(model: nn.Module) -> Tensor:
    """Returns the gradient of all parameters in one vector; zeros where one has none."""
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([part.flatten() for part in parts]).double().clone()


class LastGradient:
    """An SGD of rate 0 that keeps the gradient it was last asked to apply, so that each step is at the same weights."""

    def __init__(self) -> None:
        self.gradient: Tensor | None = None

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Returns the optimizer for a model."""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        optimizer.register_step_post_hook(lambda *_: self._keep(model))
        return optimizer

    def _keep(self, model: nn.Module) -> None:
        self.gradient = gradient_of(model)


def this_rank() -> int:
    """Returns the number of this process among the ranks."""
    return int(os.environ.get("LOCAL_RANK", 0))
