"""A batch of tensors: padded, numbered, and with fillers that count for nothing."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer

from lit_trainer.batch import DRAW, LABELS, ROW
from lit_trainer.data.collation import EncodedRows, PaddingCollator

TOKENS = Dataset.from_dict({"input_ids": [[7], [7, 8, 9], [7, 8]], "attention_mask": [[1], [1, 1, 1], [1, 1]]})
LENGTHS = np.array([1, 3, 2])


@pytest.fixture
def tokenizer(tiny_bert):
    return AutoTokenizer.from_pretrained(tiny_bert)


def batch(tokenizer, labels, draws, **settings):
    return PaddingCollator(tokenizer, **settings)(EncodedRows(TOKENS, LENGTHS, labels).__getitems__(draws))


def test_rows_are_padded_to_the_longest_of_the_micro_batch(tokenizer):
    made = batch(tokenizer, np.array([0, 1, 2]), [(2, 10), (0, 11)])
    assert made["input_ids"].tolist() == [[7, 8], [7, 0]]
    assert made["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert made[ROW].tolist() == [2, 0]
    assert made[DRAW].tolist() == [10, 11]
    assert made[LABELS].tolist() == [2, 0]


def test_rows_can_be_padded_to_one_length(tokenizer):
    assert batch(tokenizer, None, [(0, 0)], max_length=5)["input_ids"].shape == (1, 5)
    assert batch(tokenizer, None, [(1, 0)], multiple_of=4)["input_ids"].shape == (1, 4)


@pytest.mark.parametrize(
    "labels", [np.array([0, 1, 2]), np.array([0.5, 1, 2], np.float32), np.eye(3, dtype=np.float32)], ids=str
)
def test_a_filler_has_no_number_and_no_label(tokenizer, labels):
    made = batch(tokenizer, labels, [(1, 4), (0, -1)])
    assert made[ROW].tolist() == [1, -1]
    ignored = made[LABELS][1]
    assert torch.isnan(ignored).all() if ignored.is_floating_point() else int(ignored) == -100
    assert torch.equal(made[LABELS][0], torch.as_tensor(labels)[1])


def test_there_may_be_no_labels(tokenizer):
    assert LABELS not in batch(tokenizer, None, [(0, 0)])
