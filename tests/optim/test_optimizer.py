import io
import subprocess
import sys

import pytest
import torch
from jsonargparse import ArgumentParser
from torch import nn

from lit_trainer.optim.optimizer import OptimizerSpec


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.head = nn.Linear(4, 2)

    def forward(self, ids):
        x = self.table(ids)
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)


class StateInGroup(torch.optim.Optimizer):
    """Keeps what it accumulates in its groups, as schedule-free optimizers do, and takes other arguments, too."""

    def __init__(self, params, lr=1.0, warmth=0.5):
        super().__init__(params, {"lr": lr, "warmth": warmth, "num_steps": 0})

    def step(self, closure=None):
        for group in self.param_groups:
            group["num_steps"] += 1


class TakesAnything(torch.optim.SGD):
    def __init__(self, params, **kwargs):
        super().__init__(params, lr=kwargs["lr"], momentum=kwargs["inertia"])


def train(model, optimizer, num_steps):
    torch.manual_seed(0)
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(torch.randint(5, (8,))).square().mean().backward()
        optimizer.step()


def saved(optimizer):
    """The state as it comes back from a file, by the strict way of loading."""
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def state_by_name(optimizer):
    return {
        name: optimizer.state[parameter]
        for group in optimizer.param_groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
        if parameter in optimizer.state
    }


def test_defaults_are_the_classs_own_adamw():
    ours = OptimizerSpec(lr=0.1, fused=False).build(Model())
    theirs = torch.optim.AdamW(Model().parameters(), lr=0.1)
    assert type(ours) is torch.optim.AdamW
    assert ours.defaults == theirs.defaults
    assert {group["weight_decay"] for group in ours.param_groups} == {0.01, 0.0}


def test_changing_the_class_does_not_keep_the_weight_decay_of_another():
    optimizer = OptimizerSpec(name="torch.optim.SGD").build(Model())
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0]


def test_arguments_reach_the_class():
    optimizer = OptimizerSpec(kwargs={"betas": [0.8, 0.9], "eps": 1e-6}).build(Model())
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    assert optimizer.param_groups[-1]["eps"] == 1e-6
    train(Model(), optimizer, 1)


def test_a_class_that_takes_anything_gets_it():
    optimizer = OptimizerSpec(name=f"{__name__}.TakesAnything", kwargs={"inertia": 0.5}).build(Model())
    assert optimizer.param_groups[0]["momentum"] == 0.5
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0}


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"name": "AdamW"}, "optimizer.name must be an import path such as torch.optim.AdamW, not AdamW"),
        ({"name": "torch.optim.Adamw"}, "optimizer.name: there is no torch.optim.Adamw .*no attribute 'Adamw'"),
        ({"name": "nowhere.Adam"}, "optimizer.name: there is no nowhere.Adam .*No module named 'nowhere'"),
        ({"name": "torch.nn.Linear"}, "optimizer.name: torch.nn.Linear is not a torch.optim.Optimizer"),
        ({"name": "torch.optim.Optimizer"}, "optimizer.name: torch.optim.Optimizer takes no lr"),
        (
            {"kwargs": {"beta": 1}},
            "optimizer.kwargs: torch.optim.AdamW does not accept beta; it accepts amsgrad, .* Did you mean betas?",
        ),
        ({"kwargs": {"lr": 1}}, "optimizer.kwargs: lr is set by the key beside kwargs, not inside it"),
        (
            {"name": "torch.optim.LBFGS", "weight_decay": 0.1},
            "optimizer.weight_decay: torch.optim.LBFGS has no weight decay, 0.1 was given",
        ),
        ({"name": "torch.optim.RMSprop", "fused": True}, "optimizer.fused: torch.optim.RMSprop has no fused step"),
        ({"layer_decay": 2.0}, r"layer_decay must be in \(0, 1\], not 2.0"),
    ],
)
def test_a_mistake_gives_one_clear_line(spec, text):
    with pytest.raises(ValueError, match=text) as error:
        OptimizerSpec(**spec).build(Model())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("spec", "fused"),
    [
        ({}, True),
        ({"fused": False}, None),
        ({"kwargs": {"foreach": True}}, None),
        ({"name": "torch.optim.SGD"}, True),
        ({"name": "torch.optim.NAdam"}, None),
    ],
)
def test_the_step_is_fused_where_it_can_be(spec, fused):
    assert OptimizerSpec(**spec).build(Model()).param_groups[0].get("fused") is fused


def test_the_step_is_not_fused_where_a_parameter_cannot_be():
    model = Model().to("meta")
    assert OptimizerSpec().build(model).param_groups[0]["fused"] is None
    model = Model()
    model.codes = nn.Parameter(torch.zeros(3, dtype=torch.int8), requires_grad=False)  # as in a quantised model
    assert OptimizerSpec().build(model).param_groups[0]["fused"] is None


def test_a_fused_step_equals_one_that_is_not():
    def weights(fused):
        torch.manual_seed(1)
        model = Model()
        train(model, OptimizerSpec(lr=0.1, fused=fused).build(model), 3)
        return nn.utils.parameters_to_vector(model.parameters())

    torch.testing.assert_close(weights(True), weights(False))


def test_state_comes_back_by_name_when_the_grouping_changed():
    model = Model()
    before = OptimizerSpec(lr=0.1).build(model)
    train(model, before, 3)
    after = OptimizerSpec(lr=0.2, weight_decay=0.0, layer_decay=0.5, fused=False).build(model)
    after.load_state_dict(saved(before))
    assert set(state_by_name(after)) == set(dict(model.named_parameters()))
    for name, state in state_by_name(before).items():
        for key, value in state.items():
            assert torch.equal(state_by_name(after)[name][key], value), (name, key)
    train(model, after, 1)


def test_settings_of_this_run_beat_those_that_were_saved():
    model = Model()
    before = OptimizerSpec(lr=0.1, weight_decay=0.3, kwargs={"betas": [0.5, 0.6]}).build(model)
    train(model, before, 1)
    after = OptimizerSpec(lr=0.2, weight_decay=0.4, kwargs={"eps": 1e-3}).build(model)
    groups = [{key: value for key, value in group.items() if key != "params"} for group in after.param_groups]
    after.load_state_dict(saved(before))
    assert [{key: value for key, value in group.items() if key != "params"} for group in after.param_groups] == groups


def test_what_a_class_accumulates_in_its_groups_comes_back():
    spec = OptimizerSpec(name=f"{__name__}.StateInGroup", kwargs={"warmth": 0.5})
    model = Model()
    before = spec.build(model)
    train(model, before, 3)
    after = OptimizerSpec(name=spec.name, kwargs={"warmth": 0.7}).build(model)
    after.load_state_dict(saved(before))
    assert [(g["num_steps"], g["warmth"]) for g in after.param_groups] == [(3, 0.7)]


def test_a_parameter_that_was_frozen_when_saved_starts_afresh():
    model = Model()
    model.table.requires_grad_(False)
    before = OptimizerSpec().build(model)
    train(model, before, 2)
    after = OptimizerSpec().build(model)
    after.load_state_dict(saved(before))
    assert "table.weight" not in state_by_name(after)
    model.table.requires_grad_(True)
    train(model, after, 1)
    assert state_by_name(after)["table.weight"]["step"] == 1
    assert state_by_name(after)["head.weight"]["step"] == 3


def test_a_state_without_names_loads_as_torch_loads_it():
    model = Model()
    plain = torch.optim.AdamW(model.parameters())
    train(model, plain, 1)
    optimizer = OptimizerSpec(name="torch.optim.Adam").build(model)
    optimizer.load_state_dict(plain.state_dict())
    assert optimizer.state[model.head.bias]["step"] == 1


def test_a_state_that_was_torn_apart_is_refused():
    """As a sharded strategy leaves it when the grouping changed."""
    optimizer = OptimizerSpec().build(Model())
    state = optimizer.state_dict()
    state["param_groups"][0]["params"].pop()
    with pytest.raises(ValueError, match="a sharded strategy restores an optimizer only with the groups it was saved"):
        optimizer.load_state_dict(state)


def test_it_is_set_from_the_command_line():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--optimizer", type=OptimizerSpec)
    args = ["--optimizer.name=torch.optim.SGD", "--optimizer.lr=1e-3", "--optimizer.fused=false"]
    args += ["--optimizer.kwargs={momentum: 0.9}", "--optimizer.no_decay=[table]"]
    spec = parser.instantiate(parser.parse_args(args)).optimizer
    assert spec == OptimizerSpec(
        name="torch.optim.SGD", lr=1e-3, fused=False, kwargs={"momentum": 0.9}, no_decay=["table"]
    )
    assert parser.instantiate(parser.parse_args(["--optimizer.lr=1"])).optimizer == OptimizerSpec(lr=1.0)


def test_the_part_imports_neither_lightning_nor_transformers():
    code = (
        "import sys, lit_trainer.optim.optimizer, lit_trainer.optim.warmup;"
        "print({name.partition('.')[0] for name in sys.modules} & {'lightning', 'transformers'})"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.strip() == "set()"
