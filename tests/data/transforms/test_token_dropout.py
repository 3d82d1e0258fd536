"""Words left out in training, by the draw."""

import pytest
import torch
from transformers import AutoTokenizer

from lit_trainer.data.transforms.base import Transforms
from lit_trainer.data.transforms.token_dropout import TokenDropout
from tests.data.transforms.test_mask_tokens import batch_of


@pytest.fixture
def tokenizer(tiny_bert):
    return AutoTokenizer.from_pretrained(tiny_bert)


def test_a_share_of_the_words_is_replaced_and_special_tokens_stay(tokenizer):
    batch = batch_of([52] * 1000)
    found = Transforms([TokenDropout(0.2)], tokenizer, 0).train(batch, 0)
    dropped = found["input_ids"] == tokenizer.mask_token_id
    assert float(dropped[:, 1:-1].float().mean()) == pytest.approx(0.2, abs=0.008)  # 4 standard deviations
    assert not dropped[:, [0, -1]].any()
    assert torch.equal(found["input_ids"][~dropped], batch["input_ids"][~dropped])


def test_zero_changes_nothing_and_evaluation_never_does(tokenizer):
    batch = batch_of([20] * 50)
    assert torch.equal(Transforms([TokenDropout(0)], tokenizer, 0).train(batch, 0)["input_ids"], batch["input_ids"])
    assert Transforms([TokenDropout(0.5)], tokenizer, 0).evaluate(batch) is batch


def test_the_unknown_token_stands_in_and_one_of_the_two_is_needed(tokenizer):
    tokenizer.mask_token = None
    found = Transforms([TokenDropout(0.9)], tokenizer, 0).train(batch_of([30]), 0)
    assert (found["input_ids"] == tokenizer.unk_token_id).any()
    tokenizer.unk_token = None
    with pytest.raises(ValueError, match="neither a mask token nor an unknown one"):
        Transforms([TokenDropout()], tokenizer, 0).train(batch_of([30]), 0)


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ValueError, match="from 0 to below 1"):
        TokenDropout(share)
