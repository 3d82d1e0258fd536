"""A model is loaded the way training needs it, and what does not fit is said."""

import logging
import shutil

import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification

from lit_trainer.models.loading import load_pretrained


def load(folder, **settings):
    settings = {"seed": 0, **settings}
    return load_pretrained(AutoModelForSequenceClassification, folder, **settings)


def test_the_model_is_float32_and_in_train_mode_whatever_the_file_holds(tiny_bert, tmp_path):
    BertForSequenceClassification.from_pretrained(tiny_bert, dtype=torch.bfloat16).save_pretrained(tmp_path)
    model = load(tmp_path)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(module.training for module in model.modules())


def test_a_new_head_is_said_and_is_the_same_everywhere(tiny_bert, caplog):
    caplog.set_level(logging.INFO, logger="lit_trainer")
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, other = load(tiny_bert, seed=5), load(tiny_bert, seed=5)
    assert torch.equal(one.classifier.weight, other.classifier.weight)
    assert not torch.equal(one.classifier.weight, load(tiny_bert, seed=6).classifier.weight)
    assert torch.equal(torch.get_rng_state(), before), "nothing is drawn from the run's own generator"
    assert "New weights, to be learnt: classifier.bias, classifier.weight" in caplog.text


def test_another_number_of_labels_makes_only_the_head_anew(tiny_bert, tmp_path, caplog):
    three = load(tiny_bert, config={"num_labels": 3})
    three.save_pretrained(tmp_path)
    caplog.set_level(logging.INFO, logger="lit_trainer")
    two = load(tmp_path, config={"num_labels": 2, "id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}})
    assert two.config.id2label == {0: "no", 1: "yes"}
    assert two.classifier.out_features == 2
    assert torch.equal(two.bert.embeddings.word_embeddings.weight, three.bert.embeddings.word_embeddings.weight)
    assert "classifier.weight (3, 32) -> (2, 32)" in caplog.text


def test_settings_of_the_model_can_be_replaced(tiny_bert):
    model = load(tiny_bert, config={"hidden_dropout_prob": 0.37})
    assert model.bert.encoder.layer[0].output.dropout.p == 0.37
    with pytest.raises(ValueError, match="bert has no hiden_dropout_prob; it has "):
        load(tiny_bert, config={"hiden_dropout_prob": 0.1})


def test_gradient_checkpointing_really_recomputes(tiny_bert):
    model = load(tiny_bert, gradient_checkpointing=True)
    calls = []
    model.bert.encoder.layer[0].attention.register_forward_hook(lambda *_: calls.append(1))
    model(torch.tensor([[2, 7, 3]])).logits.sum().backward()
    assert len(calls) == 2


def test_a_body_of_another_shape_is_an_error(tiny_bert):
    with pytest.raises(ValueError, match=r"does not fit its configuration: bert\.\S+ is \(.*\) in the file and"):
        load(tiny_bert, config={"intermediate_size": 64})


def test_a_folder_without_the_models_weights_is_an_error(tiny_bert, tmp_path):
    folder = shutil.copytree(tiny_bert, tmp_path / "copy")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="pretrained: no weights can be loaded from"):
        load(folder)


def test_nothing_to_load_is_one_line(tmp_path):
    with pytest.raises(ValueError, match="pretrained: no model can be loaded from") as error:
        load(tmp_path / "missing")
    assert "\n" not in str(error.value)
