"""Operations are counted as the formula says, and the peak is that of the device."""

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

from lit_trainer.models.flops import flops_of_training, peak_flops, peak_of

BERT = BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48)


def test_embeddings_are_free_and_all_else_is_six_operations() -> None:
    model = BertForSequenceClassification(BERT)
    embeddings = sum(p.numel() for name, p in model.named_parameters() if "_embeddings" in name)
    a_token, a_pair = flops_of_training(model)
    assert a_token == 6 * (sum(p.numel() for p in model.parameters()) - embeddings)
    assert a_pair == 12 * 2 * 32


def test_frozen_parameters_need_no_gradient_of_their_own() -> None:
    model = BertForSequenceClassification(BERT)
    whole = flops_of_training(model)[0]
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert flops_of_training(model)[0] == pytest.approx(whole * 4 / 6)


def test_an_output_layer_that_is_the_embedding_counts_once() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=16))
    assert flops_of_training(model)[0] == 6 * (sum(p.numel() for p in model.parameters()) - 16 * 32)
    assert flops_of_training(model)[1] == 12 * 2 * 32


def test_any_module_can_be_asked() -> None:
    assert flops_of_training(torch.nn.Linear(3, 4)) == (6 * 16, 0)


def test_the_peak_is_that_of_device_and_precision() -> None:
    assert peak_of("NVIDIA H100 80GB HBM3", "bf16-mixed", allow_tf32=False) == 989e12
    assert peak_of("NVIDIA H200", "16-mixed", allow_tf32=False) == 989e12
    assert peak_of("NVIDIA A100-SXM4-40GB", "32-true", allow_tf32=True) == 156e12
    assert peak_of("Tesla T4", "32-true", allow_tf32=False) == 8.1e12
    assert peak_of("NVIDIA L40S", "bf16-mixed", allow_tf32=False) == 362e12
    assert peak_of("NVIDIA A100-SXM4-40GB", "64-true", allow_tf32=False) is None
    assert peak_of("A card of tomorrow", "bf16-mixed", allow_tf32=False) is None
    assert peak_flops(torch.device("cpu"), "bf16-mixed") is None
