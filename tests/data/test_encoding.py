"""Texts are encoded once, whatever they come from, and what is cut off is counted."""

import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from lit_trainer.data.encoding import encode


@pytest.fixture
def tokenizer(tiny_bert):
    return AutoTokenizer.from_pretrained(tiny_bert)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LIT_TRAINER_CACHE", str(tmp_path / "cache"))


ROWS = Dataset.from_dict({"text": ["w1 w2 w3", "good film", "w1"], "other": ["bad", "w3 w4", "fine"], "n": [1, 2, 3]})


def test_a_text_gets_its_special_tokens(tokenizer):
    encoded = encode(ROWS, ["text"], tokenizer, None)
    assert tokenizer.decode(encoded.tokens[1]["input_ids"]) == "[CLS] good film [SEP]"
    assert encoded.lengths.tolist() == [5, 4, 3]
    assert encoded.truncation() is None
    assert set(encoded.tokens.column_names) == {"input_ids", "token_type_ids", "attention_mask"}


def test_two_columns_are_a_pair(tokenizer):
    encoded = encode(ROWS, ["text", "other"], tokenizer, None)
    assert tokenizer.decode(encoded.tokens[1]["input_ids"]) == "[CLS] good film [SEP] w3 w4 [SEP]"
    assert encoded.tokens[1]["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]


def test_what_is_cut_is_counted(tokenizer):
    encoded = encode(ROWS, ["text"], tokenizer, 4)
    assert encoded.lengths.tolist() == [4, 4, 3]
    assert encoded.lost.tolist() == [1, 0, 0]
    assert encoded.truncation() == "1 of 3 rows were cut, losing 1 tokens (8.3%)"


def test_the_same_texts_are_encoded_once_whatever_they_come_from(tokenizer, tiny_bert, monkeypatch):
    first = encode(ROWS, ["text"], tokenizer, None)
    monkeypatch.setattr(type(tokenizer), "__call__", None)  # any further encoding would fail
    again = encode(Dataset.from_list(ROWS.to_list()), ["text"], AutoTokenizer.from_pretrained(tiny_bert), None)
    assert again.tokens[:] == first.tokens[:]
    assert again.lengths.tolist() == first.lengths.tolist()


def test_another_text_length_or_tokenizer_is_encoded_anew(tokenizer):
    first = encode(ROWS, ["text"], tokenizer, None)
    assert encode(ROWS, ["text"], tokenizer, 4).lengths.tolist() != first.lengths.tolist()
    changed = ROWS.map(lambda row: {"text": f"{row['text']} w9"})
    assert encode(changed, ["text"], tokenizer, None).lengths.tolist() == [6, 5, 4]
    tokenizer.add_tokens(["w1 w2"])
    assert encode(ROWS, ["text"], tokenizer, None).lengths.tolist() == [4, 4, 3]


def test_two_texts_are_not_taken_for_one(tokenizer):
    one = Dataset.from_dict({"a": ["w1 w2", "w3"], "b": ["w4", "w5"]})
    other = Dataset.from_dict({"a": ["w1", "w2 w3"], "b": ["w4", "w5"]})
    ids = [encode(rows, ["a", "b"], tokenizer, None).tokens["input_ids"][:] for rows in (one, other)]
    assert ids[0] != ids[1]
