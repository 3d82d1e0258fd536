"""Which tokens are hidden belongs to the draw: not to the padding, the batch, the rank or the order."""

import pytest
import torch
from transformers import AutoTokenizer

from lit_trainer.batch import DRAW, IGNORED_LABEL, LABELS, ROW
from lit_trainer.data.transforms.base import Transforms
from lit_trainer.data.transforms.mask_tokens import MaskTokens

CLS, SEP = 2, 3


@pytest.fixture(scope="module")
def tokenizer(tiny_bert):
    return AutoTokenizer.from_pretrained(tiny_bert)


def batch_of(lengths, width=None, first_draw=0):
    """Rows of [CLS], words and [SEP], padded on the right."""
    width = width or max(lengths)
    ids, mask = torch.zeros(len(lengths), width, dtype=torch.long), torch.zeros(len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, :length] = 5 + (torch.arange(length) + 7 * row) % 45
        ids[row, 0], ids[row, length - 1] = CLS, SEP
        mask[row, :length] = 1
    draws = torch.arange(len(lengths)) + first_draw
    return {"input_ids": ids, "attention_mask": mask, ROW: draws.clone(), DRAW: draws}


def mask(batch, tokenizer, epoch=0, seed=0, **settings):
    return Transforms([MaskTokens(**settings)], tokenizer, seed).train(batch, epoch)


def test_shares_are_those_asked_for_and_special_tokens_are_never_hidden(tokenizer):
    batch = batch_of([52] * 2000)
    found = mask(batch, tokenizer)
    chosen = found[LABELS] != IGNORED_LABEL
    num_words = 2000 * 50
    assert float(chosen.sum() / num_words) == pytest.approx(0.15, abs=0.005)  # 4 standard deviations
    assert (found[LABELS][chosen] == batch["input_ids"][chosen]).all()
    assert not chosen[:, [0, 51]].any()
    hidden = found["input_ids"] == tokenizer.mask_token_id
    kept = found["input_ids"] == batch["input_ids"]
    assert float(hidden.sum() / chosen.sum()) == pytest.approx(0.8, abs=0.02)
    assert float((chosen & ~hidden & ~kept).sum() / chosen.sum()) == pytest.approx(0.1, abs=0.02)
    assert kept[~chosen].all()
    assert (batch["input_ids"] != tokenizer.mask_token_id).all(), "the batch that was given has changed"


def test_a_draw_has_the_same_tokens_hidden_whatever_it_is_batched_with(tokenizer):
    lengths = [9, 30, 17, 52]
    whole = mask(batch_of(lengths), tokenizer)
    for row, length in enumerate(lengths):
        alone = batch_of(lengths, width=60)
        alone = {key: value[row : row + 1] for key, value in alone.items()}
        found = mask(alone, tokenizer)
        for key in ("input_ids", LABELS):
            assert (found[key][0, :length] == whole[key][row, :length]).all()
        assert (found[LABELS][0, length:] == IGNORED_LABEL).all()


def test_padding_on_the_left_hides_the_same_tokens(tokenizer):
    batch = batch_of([20, 30])
    left = {**batch, **{key: batch[key].clone() for key in ("input_ids", "attention_mask")}}
    for key in ("input_ids", "attention_mask"):
        left[key][0] = batch[key][0].roll(10)
    assert (mask(left, tokenizer)["input_ids"][0, 10:] == mask(batch, tokenizer)["input_ids"][0, :20]).all()


def test_other_draws_epochs_and_seeds_hide_other_tokens_independently(tokenizer):
    def chosen(**settings):
        first_draw = settings.pop("first_draw", 0)
        batch = batch_of([52] * 500, first_draw=first_draw)
        return (mask(batch, tokenizer, share=0.5, **settings)[LABELS][:, 1:-1] != IGNORED_LABEL).double()

    one = chosen()
    for other in (chosen(epoch=1), chosen(seed=1), chosen(first_draw=500), one.roll(1, 0), one.roll(1, 1)):
        correlation = torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]
        assert abs(float(correlation)) < 4 / (500 * 50) ** 0.5
    assert torch.equal(one, chosen())


def test_evaluation_hides_the_same_each_time_and_other_tokens_than_training(tokenizer):
    transforms, batch = Transforms([MaskTokens()], tokenizer, 0), batch_of([40] * 50)
    assert torch.equal(transforms.evaluate(batch)["input_ids"], transforms.evaluate(batch)["input_ids"])
    for epoch in (0, 1):
        assert not torch.equal(transforms.evaluate(batch)["input_ids"], transforms.train(batch, epoch)["input_ids"])


def test_a_row_that_fills_up_has_nothing_to_find(tokenizer):
    batch = {**batch_of([40, 40]), ROW: torch.tensor([3, -1])}
    labels = mask(batch, tokenizer, share=1.0)[LABELS]
    assert (labels[0, 1:-1] >= 0).all()
    assert (labels[1] == IGNORED_LABEL).all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_hiding_nothing_but_choosing_all_keeps_the_text(tokenizer, dtype):
    batch = batch_of([10])
    batch["attention_mask"] = batch["attention_mask"].to(dtype)
    found = mask(batch, tokenizer, share=1.0, hidden_share=0.0, random_share=0.0)
    assert torch.equal(found["input_ids"], batch["input_ids"])
    assert torch.equal(found[LABELS][0, 1:-1], batch["input_ids"][0, 1:-1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 0.0}, "share is 0.0; it must be above 0 and at most 1"),
        ({"share": float("nan")}, "share is nan"),
        ({"hidden_share": 0.8, "random_share": 0.3}, "at most 1 together"),
        ({"random_share": -0.1}, "must be 0 or above"),
    ],
)
def test_shares_that_are_none_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        MaskTokens(**settings)


def test_a_tokenizer_without_a_mask_token_is_refused(tiny_bert):
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    tokenizer.mask_token = None
    with pytest.raises(ValueError, match="has no mask token"):
        mask(batch_of([5]), tokenizer)
