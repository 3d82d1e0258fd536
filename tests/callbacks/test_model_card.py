"""A model card says what there is to say, in a form that the Hub can read."""

import pytest
from huggingface_hub import ModelCard as HubCard

from lit_trainer.callbacks.model_card import ModelCard

FULL = ModelCard(
    model_class="BertForSequenceClassification",
    started_from="model of some-wheel==1.0",
    base_model="owner/base",
    labels=("ham", "spam | offers"),
    data=["- train: 100 rows"],
    chosen_by="The weights are those of step 40 of 60, the best by val/f1.",
    validation={"f1": 0.91234, "loss": 0.1},
    test={"f1": 0.9},
    baseline={"f1": 0.0},
    configuration="model:\n  lr: 1e-4\n",
    license="mit",
    language="en",
)


def test_the_hub_reads_the_front_matter():
    data = HubCard(str(FULL)).data
    assert data.library_name == "transformers"
    assert data.base_model == "owner/base"
    assert data.pipeline_tag == "text-classification"
    assert data.metrics == ["f1"]
    assert data.license == "mit"
    assert data.language == "en"


def test_it_says_all_that_is_known():
    text = str(FULL)
    for part in (
        "# BertForSequenceClassification fine-tuned from model of some-wheel==1.0",
        "It tells ham and spam | offers apart.",
        "best by val/f1",
        "- train: 100 rows",
        "| 1 | spam \\| offers |",
        "| metric | validation | test | majority on test |",
        "| f1 | 0.9123 | 0.9000 | 0.0000 |",
        "| loss | 0.1000 |  |  |",
        "```yaml\nmodel:\n  lr: 1e-4\n```",
        'pipeline("text-classification", model=".")',
    ):
        assert part in text, part


def test_what_is_not_known_is_left_out():
    text = str(ModelCard("BertModel", "nothing at all"))
    data = HubCard(text).data
    assert data.base_model is None
    assert data.pipeline_tag is None
    assert "## Labels" not in text
    assert "None were computed." in text
    assert "BertModel.from_pretrained(folder)" in text


@pytest.mark.parametrize(
    ("started_from", "base"),
    [("bert-base-uncased", "bert-base-uncased"), ("owner/name", "owner/name"), ("/a/folder", None), ("a/b/c", None)],
)
def test_only_a_name_on_the_hub_is_a_base_model(started_from, base):
    assert HubCard(str(ModelCard("BertModel", started_from))).data.base_model == base


def test_yaml_in_a_name_stays_text():
    text = str(ModelCard("BertModel", "x", license="a: b # c", validation={"f1: [": 1.0}))
    assert HubCard(text).data.license == "a: b # c"
    assert HubCard(text).data.metrics == ["f1: ["]
