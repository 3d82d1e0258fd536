import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, BertModel, CLIPConfig, CLIPModel, T5Config, T5Model

from lit_trainer.optim.param_groups import parameter_groups

SMALL_BERT = BertConfig(
    vocab_size=20, hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=8, num_labels=2
)


def bert():
    return BertForSequenceClassification(SMALL_BERT)


class Task(nn.Module):
    """A model and a loss with something to learn."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.loss = nn.Module()
        self.loss.log_variance = nn.Parameter(torch.zeros(2))


class Plain(nn.Module):
    """A model of the user's own."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(2)])
        self.out = nn.Linear(4, 2)


def by_name(groups):
    return {group["name"]: group for group in groups}


SETTINGS = [
    {},
    {"weight_decay": 0.1},
    {"head_lr": 0.5, "weight_decay": 0.1},
    {"layer_decay": 0.9},
    {"layer_decay": 0.9, "head_lr": 0.5, "weight_decay": 0.1, "no_decay": ["query"]},
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("module", [bert(), Task(bert()), Task(BertModel(SMALL_BERT)), Plain()], ids=type)
def test_every_parameter_is_in_exactly_one_group_and_names_are_unique(module, settings):
    if isinstance(module, Plain):
        settings = settings | ({"head": "^out"} if "head_lr" in settings else {})
        settings.pop("no_decay", None)
    elif isinstance(getattr(module, "model", None), BertModel) and "head_lr" in settings:
        settings = settings | {"head": "pooler"}
    groups = parameter_groups(module, 1.0, **settings)
    grouped = [parameter for group in groups for parameter in group["params"]]
    assert sorted(map(id, grouped)) == sorted(map(id, module.parameters()))
    names = dict(module.named_parameters())
    assert all(
        [names[name] for name in group["param_names"]] == group["params"] and group["params"] for group in groups
    )
    assert len(by_name(groups)) == len(groups)
    torch.optim.AdamW(groups)  # accepts them


def test_defaults_make_one_group_for_a_model_without_a_head():
    assert [group["name"] for group in parameter_groups(Plain(), 1.0)] == ["model"]


def test_neither_biases_nor_norms_nor_single_axes_decay():
    groups = by_name(parameter_groups(Task(bert()), 1.0, weight_decay=0.1))
    assert set(groups) == {"backbone", "backbone.no_decay", "head", "head.no_decay", "loss.no_decay"}
    for name, group in groups.items():
        assert group["weight_decay"] == (0.0 if name.endswith("no_decay") else 0.1)
    assert all(p.ndim == 2 for p in groups["backbone"]["params"])
    assert all("bias" in n or "LayerNorm" in n for n in groups["backbone.no_decay"]["param_names"])


def test_norms_do_not_decay_by_their_class_whatever_their_shape_or_name():
    class WideRMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2, 2))

    module = nn.Sequential(nn.Linear(2, 2, bias=False), WideRMSNorm(), nn.BatchNorm1d(2), nn.GroupNorm(1, 2))
    groups = by_name(parameter_groups(module, 1.0, weight_decay=0.1))
    assert groups["model"]["param_names"] == ["0.weight"]


def test_patterns_spare_further_weights_from_decay():
    groups = by_name(parameter_groups(Plain(), 1.0, weight_decay=0.1, no_decay=["table"]))
    assert "table.weight" in groups["model.no_decay"]["param_names"]
    assert "blocks.0.0.weight" in groups["model"]["param_names"]


def test_layers_learn_slower_the_further_they_are_from_the_head():
    groups = by_name(parameter_groups(Task(bert()), 1.0, layer_decay=0.5, head_lr=8.0))
    rates = {name: group["lr"] for name, group in groups.items()}
    assert rates == {
        "embeddings": 0.5**4,
        "layer.0": 0.5**3,
        "layer.1": 0.5**2,
        "layer.2": 0.5,
        "top": 1.0,
        "head": 8.0,
        "loss": 8.0,
    }
    assert groups["top"]["param_names"] == ["model.bert.pooler.dense.weight", "model.bert.pooler.dense.bias"]
    assert all("embeddings" in name for name in groups["embeddings"]["param_names"])


def test_layer_decay_goes_together_with_no_decay():
    """Automodel #2961: per-group rates together with groups that do not decay."""
    groups = by_name(parameter_groups(bert(), 1.0, layer_decay=0.5, weight_decay=0.1))
    assert groups["layer.1"]["lr"] == groups["layer.1.no_decay"]["lr"] == 0.25
    assert (groups["layer.1"]["weight_decay"], groups["layer.1.no_decay"]["weight_decay"]) == (0.1, 0.0)


def test_two_stacks_are_counted_from_the_top_of_each():
    tower = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    model = CLIPModel(
        CLIPConfig(
            text_config=tower | {"num_hidden_layers": 2, "vocab_size": 20},
            vision_config=tower | {"num_hidden_layers": 3, "image_size": 8, "patch_size": 4},
            projection_dim=4,
        )
    )
    rates = {group["name"]: group["lr"] for group in parameter_groups(model, 1.0, layer_decay=0.5)}
    assert rates["text_model.encoder.layers.1"] == rates["vision_model.encoder.layers.2"] == 0.5
    assert rates["text_model.encoder.layers.0"] == rates["vision_model.encoder.layers.1"] == 0.25
    assert rates["vision_model.encoder.layers.0"] == 0.125
    assert rates["embeddings"] == 0.0625
    assert rates["top"] == 1.0


def test_shared_parameters_are_grouped_once():
    model = T5Model(T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=2, num_heads=2))
    groups = by_name(parameter_groups(model, 1.0, layer_decay=0.5))
    assert groups["embeddings"]["param_names"] == ["shared.weight"]
    assert {"encoder.block.1", "decoder.block.1"} <= set(groups)


def test_layers_of_a_bare_sequence_are_found():
    groups = parameter_groups(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), 1.0, layer_decay=0.5)
    assert [(group["name"], group["lr"]) for group in groups] == [("layer.0", 0.25), ("layer.1", 0.5)]


def test_the_head_of_a_model_of_ones_own_is_found_by_pattern():
    groups = by_name(parameter_groups(Plain(), 1.0, head_lr=3.0, head="^out"))
    assert {name: group["lr"] for name, group in groups.items()} == {"backbone": 1.0, "head": 3.0}


def test_frozen_parameters_stay_in_their_groups():
    """So that they can be released later; Lightning #21901 is about what happens when they are not."""
    module = Plain()
    module.table.requires_grad_(False)
    assert "table.weight" in parameter_groups(module, 1.0)[0]["param_names"]


def test_models_of_two_backbones_have_both_as_backbone():
    module = nn.ModuleDict({"a": BertModel(SMALL_BERT), "b": BertModel(SMALL_BERT), "fuse": nn.Linear(2, 2)})
    groups = by_name(parameter_groups(module, 1.0, head_lr=2.0))
    assert groups["head"]["param_names"] == ["fuse.weight", "fuse.bias"]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"lr": -1.0}, "lr must be a finite number of 0 or more, not -1.0"),
        ({"weight_decay": float("nan")}, "weight_decay must be a finite number of 0 or more, not nan"),
        ({"head_lr": float("inf")}, "head_lr must be a finite number of 0 or more, not inf"),
        ({"layer_decay": 0.0}, r"layer_decay must be in \(0, 1\], not 0.0"),
        ({"layer_decay": 1.1}, r"layer_decay must be in \(0, 1\], not 1.1"),
        ({"head_lr": 1.0}, "head_lr: no head is found; give head, a pattern for its names out of table.weight"),
        ({"head": "nothing"}, "head: 'nothing' matches no parameter; there are table.weight"),
        ({"no_decay": ["nothing"]}, "no_decay: 'nothing' matches no parameter"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, text):
    with pytest.raises(ValueError, match=text):
        parameter_groups(Plain(), **{"lr": 1.0} | settings)


def test_layer_decay_without_layers_is_refused():
    with pytest.raises(ValueError, match=r"layer_decay: no numbered layers such as `layer.0.` are found in weight"):
        parameter_groups(nn.Linear(2, 2), 1.0, layer_decay=0.5)


def test_a_module_without_parameters_is_refused():
    with pytest.raises(ValueError, match="ReLU has no parameters to train"):
        parameter_groups(nn.ReLU(), 1.0)
