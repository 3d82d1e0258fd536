"""The logits of some tokens are those that all tokens' would hold, on each architecture with a masked-language head."""

import pytest
import torch

from lit_trainer.models import padding_free
from lit_trainer.models.chosen_logits import ChosenLogits
from tests.models.small_models import batch, small_model

ARCHITECTURES = ["albert", "bert", "deberta", "distilbert", "electra", "modernbert", "mpnet", "roberta", "xlm_roberta"]


def settings(model):
    return batch(range(6), model.config.pad_token_id)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_chosen_logits_and_their_gradients_are_those_of_all(architecture):
    model = small_model(architecture, "ForMaskedLM").double().eval()
    inputs = settings(model)
    chosen = (torch.rand(inputs["input_ids"].shape, generator=torch.Generator().manual_seed(3)) < 0.3) & (
        inputs["attention_mask"] == 1
    )
    expected = model(**inputs).logits[chosen]
    expected.square().sum().backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    chosen_logits = ChosenLogits(model)
    found = chosen_logits(chosen, **inputs)
    found.square().sum().backward()
    assert torch.allclose(found, expected, atol=1e-12)
    assert chosen_logits._was_asked, "all logits were computed"
    for name, weight in model.named_parameters():
        if name in gradients:
            assert torch.allclose(weight.grad, gradients[name], atol=1e-10), name
    assert model(**inputs).logits.shape[:2] == chosen.shape, "an ordinary call has changed"


def test_no_token_is_a_choice_too():
    model = small_model("bert", "ForMaskedLM")
    inputs = settings(model)
    found = ChosenLogits(model)(torch.zeros(inputs["input_ids"].shape, dtype=torch.bool), **inputs)
    assert found.shape == (0, model.config.vocab_size)
    found.sum().backward()


def test_it_goes_with_a_model_without_padding():
    model = small_model("bert", "ForMaskedLM").eval()
    inputs = settings(model)
    chosen = inputs["attention_mask"].bool() & (inputs["input_ids"] > 20)
    expected = ChosenLogits(model)(chosen, **inputs)
    padding_free.install(model)
    assert torch.allclose(ChosenLogits(model)(chosen, **inputs), expected, atol=1e-5)


def test_a_failed_call_leaves_no_choice_behind():
    model = small_model("bert", "ForMaskedLM")
    inputs = settings(model)
    with pytest.raises(IndexError):
        ChosenLogits(model)(inputs["attention_mask"].bool(), **{**inputs, "input_ids": inputs["input_ids"] + 100})
    assert model(**inputs).logits.shape[:2] == inputs["input_ids"].shape
