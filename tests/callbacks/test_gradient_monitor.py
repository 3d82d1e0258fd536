import json
import math

import pytest
import torch
from jsonargparse import ArgumentParser
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.distributed.fsdp import fully_shard

from lit_trainer.callbacks.gradient_monitor import GradientMonitor, group_names
from lit_trainer.optim.optimizer import OptimizerSpec
from tests.callbacks.toy_task import Batches, ToyTask, quiet_trainer, rows, toy_task
from tests.callbacks.two_ranks import run_on_two_ranks

# Raised inside Lightning 2.6.6 with torch 2.13.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")

GROUPS = {"layers": r"layers\.", "head": r"\.head\."}


class Seen(Callback):
    """Keeps what a monitor measured at each step, and the gradients that it should have measured."""

    def __init__(self, monitor):
        self.monitor = monitor
        self.measured = []
        self.gradients = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.gradients.append({name: p.grad.clone() for name, p in pl_module.named_parameters() if p.grad is not None})

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if not trainer.fit_loop._should_accumulate():
            self.measured.append(self.monitor.latest)


def fit(tmp_path, monitor, num_batches=2, spec=None, task=None, callbacks=(), batches=None, **kwargs):
    seen = Seen(monitor)
    task = task or toy_task(spec or OptimizerSpec(name="torch.optim.SGD", lr=0.1))
    settings = {"max_epochs": 1, "log_every_n_steps": 1, "callbacks": [*callbacks, monitor, seen]}
    trainer = quiet_trainer(tmp_path, **settings | kwargs)
    trainer.fit(task, batches or rows(num_batches))
    return seen, trainer, task


def norm_of(gradients, part):
    return float(torch.cat([g.flatten() for name, g in gradients.items() if part in name]).norm())


def test_each_group_has_the_norm_maximum_and_zeros_of_its_gradients(tmp_path):
    seen, _, _ = fit(tmp_path, GradientMonitor(GROUPS))
    for measured, gradients in zip(seen.measured, seen.gradients, strict=True):
        for group, part in (("layers", "layers."), ("head", ".head.")):
            flat = torch.cat([g.flatten() for name, g in gradients.items() if part in name])
            assert measured[f"grad_norm/{group}"] == pytest.approx(float(flat.norm()), rel=1e-5)
            assert measured[f"grad_max/{group}"] == pytest.approx(float(flat.abs().max()))
            assert measured[f"grad_zeros/{group}"] == float((flat == 0).sum()) / flat.numel()
            assert measured[f"grad_non_finite/{group}"] == 0.0


def test_rows_of_an_embedding_that_were_not_looked_up_are_zeros(tmp_path):
    batch = torch.tensor([[0, 1], [2, 0]])
    seen, _, _ = fit(tmp_path, GradientMonitor({"embed": "embed"}), batches=Batches([batch]))
    assert seen.measured[0]["grad_zeros/embed"] == pytest.approx(4 / 6)


def test_without_groups_all_parameters_are_one(tmp_path):
    seen, _, _ = fit(tmp_path, GradientMonitor())
    assert seen.measured[0]["grad_norm/all"] == pytest.approx(norm_of(seen.gradients[0], ""), rel=1e-5)


@pytest.mark.parametrize(("norm_type", "order"), [(1.0, 1), (math.inf, math.inf)])
def test_the_order_of_the_norm_is_a_setting(tmp_path, norm_type, order):
    seen, _, _ = fit(tmp_path, GradientMonitor(norm_type=norm_type))
    flat = torch.cat([g.flatten() for g in seen.gradients[0].values()])
    assert seen.measured[0]["grad_norm/all"] == pytest.approx(float(flat.norm(order)), rel=1e-5)


def test_it_looks_once_at_each_optimizer_step_and_at_the_whole_gradient(tmp_path):
    """Not at every micro-batch, whose gradients are a part of the step's."""
    whole, _, _ = fit(tmp_path, GradientMonitor(), batches=Batches([torch.cat(list(rows(4)))]))
    parts, _, _ = fit(tmp_path, GradientMonitor(), num_batches=4, accumulate_grad_batches=4)
    assert len(parts.measured) == 1
    assert parts.measured[0]["grad_norm/all"] == pytest.approx(whole.measured[0]["grad_norm/all"], rel=1e-5)


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_norms_are_given_before_and_after_clipping(tmp_path, algorithm):
    clip = {"gradient_clip_val": 0.02, "gradient_clip_algorithm": algorithm}
    seen, _, _ = fit(tmp_path, GradientMonitor(GROUPS), **clip)
    for measured, gradients in zip(seen.measured, seen.gradients, strict=True):
        raw = list(gradients.values())
        total = torch.cat([g.flatten() for g in raw]).norm()
        shrunk = {
            name: g * 0.02 / (total + 1e-6) if algorithm == "norm" else g.clamp(-0.02, 0.02)
            for name, g in gradients.items()
        }
        for group, part in (("layers", "layers."), ("head", ".head.")):
            assert measured[f"grad_norm/{group}"] == pytest.approx(norm_of(gradients, part), rel=1e-5)
            assert measured[f"grad_norm_clipped/{group}"] == pytest.approx(norm_of(shrunk, part), rel=1e-5)


def test_without_clipping_there_is_no_norm_after_it(tmp_path):
    seen, _, _ = fit(tmp_path, GradientMonitor())
    assert not any("clipped" in key for key in seen.measured[0])


def test_clipping_of_the_tasks_own_is_measured(tmp_path):
    task = toy_task()

    def halve(optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        for parameter in task.parameters():
            parameter.grad.mul_(0.5)

    task.configure_gradient_clipping = halve
    seen, _, _ = fit(tmp_path, GradientMonitor(), task=task)
    assert seen.measured[0]["grad_norm_clipped/all"] == pytest.approx(seen.measured[0]["grad_norm/all"] / 2, rel=1e-6)


def test_the_update_ratio_is_the_change_over_the_weights(tmp_path):
    spec = OptimizerSpec(name="torch.optim.SGD", lr=0.25)
    seen, _, task = fit(tmp_path, GradientMonitor(GROUPS, update_ratio=True), num_batches=1, spec=spec)
    for group, part in (("layers", "layers."), ("head", ".head.")):
        weights = torch.cat([p.detach().flatten() for name, p in task.named_parameters() if part in name]).norm()
        expected = 0.25 * norm_of(seen.gradients[0], part) / float(weights)
        assert seen.measured[0][f"update_ratio/{group}"] == pytest.approx(expected, rel=1e-4)


class ScalerOnCpu(MixedPrecision):
    def __init__(self, init_scale=1024.0):
        super().__init__("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=init_scale))

    def autocast_context_manager(self):
        return torch.autocast("cpu", enabled=False)  # only the scaling is of interest, not the rounding


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_are_measured_without_the_scalers_factor(tmp_path, fused):
    """A fused step unscales in its own kernel, after every hook."""
    spec = OptimizerSpec(name="torch.optim.AdamW", lr=0.1, fused=fused)
    plain, _, _ = fit(tmp_path, GradientMonitor(), spec=spec)
    scaled, _, _ = fit(tmp_path, GradientMonitor(), spec=spec, plugins=[ScalerOnCpu()])
    for one, other in zip(plain.measured, scaled.measured, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


class Spoil(Callback):
    """Multiplies the loss by a factor at each batch."""

    def __init__(self, factors):
        self.factors = factors

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        pl_module.loss_factor = self.factors[batch_idx]


def test_what_is_not_finite_is_counted_before_clipping_spreads_it(tmp_path):
    """Clipping by norm turns every value into NaN where one is."""
    task = toy_task()

    def spoil(trainer, pl_module):
        pl_module.model.head.bias.grad[0] = math.inf

    spoiler = Callback()
    spoiler.on_after_backward = spoil
    with pytest.warns(UserWarning, match="step 0 the gradient of all is not finite: 1 values are NaN or infinite"):
        seen, _, _ = fit(
            tmp_path, GradientMonitor(), num_batches=1, task=task, callbacks=[spoiler], gradient_clip_val=1.0
        )
    assert seen.measured[0]["grad_non_finite/all"] == 1.0


def test_overflow_under_a_scaler_is_counted_but_no_alarm(tmp_path):
    seen, _, _ = fit(
        tmp_path,
        GradientMonitor(exploding_above=1e3),
        plugins=[ScalerOnCpu()],
        spec=OptimizerSpec(name="torch.optim.SGD", lr=0.1, fused=False),
        callbacks=[Spoil([1.0, math.inf])],
    )
    assert [measured["grad_non_finite/all"] > 0 for measured in seen.measured] == [False, True]


@pytest.mark.parametrize(
    ("factor", "settings", "text"),
    [
        (
            1e6,
            {"exploding_above": 1e3},
            "the gradient of head explodes: its norm of .* is above exploding_above=1000.0",
        ),
        (
            1e-9,
            {"vanishing_below": 1e-6},
            "the gradient of head vanishes: its norm of .* is below vanishing_below=1e-06",
        ),
        (math.nan, {}, "the gradient of head is not finite: 10 values are NaN or infinite"),
    ],
)
def test_an_alarm_is_raised_once_until_it_is_over(tmp_path, recwarn, factor, settings, text):
    task = toy_task()
    # Takes the gradients away once they are measured, so that the weights stay sound.
    task.configure_gradient_clipping = lambda *args, **kwargs: task.zero_grad()
    spoil = Spoil([1.0, factor, factor, 1.0, factor])
    fit(tmp_path, GradientMonitor({"head": r"\.head\."}, **settings), num_batches=5, task=task, callbacks=[spoil])
    alarms = [str(warning.message) for warning in recwarn if "GradientMonitor" in str(warning.message)]
    assert len(alarms) == 2
    for step, alarm in zip((1, 4), alarms, strict=True):
        with pytest.raises(ValueError, match=f"^GradientMonitor: at optimizer step {step} {text}"):
            raise ValueError(alarm)


def test_only_logging_steps_are_measured(tmp_path):
    monitor = GradientMonitor()
    fit(tmp_path, monitor, num_batches=7, log_every_n_steps=3, logger=CSVLogger(tmp_path, "", version=""))
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines[0] == "grad_max/all,grad_non_finite/all,grad_norm/all,grad_zeros/all,step"
    assert [line.split(",")[-1] for line in lines[1:]] == ["2", "5"]


def test_its_own_interval_counts_optimizer_steps(tmp_path):
    logger = CSVLogger(tmp_path, "", version="")
    monitor = GradientMonitor(every_n_steps=2)
    fit(tmp_path, monitor, num_batches=10, accumulate_grad_batches=2, log_every_n_steps=5, logger=logger)
    logger.save()
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert [line.split(",")[-1] for line in lines[1:]] == ["1", "3"]


def test_all_loggers_get_it(tmp_path):
    loggers = [CSVLogger(tmp_path, "csv", version=""), TensorBoardLogger(tmp_path, "tb", version="")]
    fit(tmp_path, GradientMonitor(GROUPS), logger=loggers)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert {"grad_norm/layers", "grad_max/head"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("grad_norm/head")] == [0, 1]
    assert "grad_norm/layers" in (tmp_path / "csv" / "metrics.csv").read_text()


def test_parameters_without_a_gradient_are_left_out(tmp_path):
    task = toy_task()
    task.model.embed.requires_grad_(False)
    task.model.unused = nn.Linear(2, 2)
    groups = {"embed": "embed", "mixed": "embed|head", "unused": "unused"}
    seen, _, _ = fit(tmp_path, GradientMonitor(groups, update_ratio=True), task=task, gradient_clip_val=1.0)
    assert {key.partition("/")[2] for key in seen.measured[0]} == {"mixed"}
    assert seen.measured[0]["grad_norm/mixed"] == pytest.approx(norm_of(seen.gradients[0], "head"), rel=1e-5)


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
def test_a_task_without_any_gradient_is_measured_as_nothing(tmp_path):
    task = toy_task()
    task.training_step = lambda batch, batch_idx: None
    seen, _, _ = fit(tmp_path, GradientMonitor(update_ratio=True), task=task)
    assert all(measured == {} for measured in seen.measured)


NAMES = ["m.layer.0.attention.q", "m.layer.0.output.w", "m.layer.1.attention.q", "m.head.w"]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (None, {"all": NAMES}),
        ({"a": "attention", "all": ""}, {"a": [NAMES[0], NAMES[2]], "all": NAMES}),
        (r"layer\.\d+", {"layer.0": NAMES[:2], "layer.1": [NAMES[2]]}),
        (r"layer\.(\d+)", {"0": NAMES[:2], "1": [NAMES[2]]}),
        (r"(layer\.\d+)\.(attention)", {"layer.0.attention": [NAMES[0]], "layer.1.attention": [NAMES[2]]}),
        (r"(attention)|(head)", {"attention": [NAMES[0], NAMES[2]], "head": [NAMES[3]]}),
        (".*", {name: [name] for name in NAMES}),
        ("", {name: [name] for name in NAMES}),
    ],
)
def test_groups_by_pattern(groups, expected):
    assert group_names(groups, NAMES) == expected


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ({"a": "attn"}, r"groups.a: 'attn' matches no parameter; there are m.layer.0.attention.q, m.layer.0.output.w"),
        ("attn", r"groups: 'attn' matches no parameter; there are m.layer.0.attention.q"),
        ("(", r"groups: '\(' is not a regular expression"),
        ({}, "groups: there is none; leave it out to watch all parameters as one"),
    ],
)
def test_a_group_that_matches_nothing_is_refused(groups, text):
    with pytest.raises(ValueError, match=text):
        group_names(groups, NAMES)


def test_a_pattern_is_checked_before_the_first_step(tmp_path):
    with pytest.raises(ValueError, match=r"groups.a: 'attn' matches no parameter; there are model.embed.weight"):
        fit(tmp_path, GradientMonitor({"a": "attn"}))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"every_n_steps": 0}, "every_n_steps must be 1 or more, not 0"),
        ({"norm_type": 0.0}, "norm_type must be above 0, not 0.0"),
        ({"norm_type": math.nan}, "norm_type must be above 0, not nan"),
        (
            {"vanishing_below": 1.0, "exploding_above": 1.0},
            "vanishing_below=1.0 must be less than exploding_above=1.0",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, text):
    with pytest.raises(ValueError, match=text):
        GradientMonitor(**settings)


@pytest.mark.parametrize("groups", ["{attention: attention, head: head}", r"layer\.(\d+)", "null"])
def test_it_is_set_from_yaml(groups):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--callback", type=Callback)
    text = f"""
class_path: lit_trainer.callbacks.gradient_monitor.GradientMonitor
init_args: {{groups: {groups}, norm_type: .inf, vanishing_below: 1e-8}}"""
    callback = parser.instantiate(parser.parse_args([f"--callback={text}"])).callback
    assert callback.groups == {"{": {"attention": "attention", "head": "head"}, "n": None}.get(
        groups[0], r"layer\.(\d+)"
    )
    assert (callback.norm_type, callback.vanishing_below) == (math.inf, 1e-8)


ON_TWO_RANKS = """
import json
from lightning.pytorch.strategies import ModelParallelStrategy
from tests.callbacks.test_gradient_monitor import fit_on_a_part

sharded = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1, process_group_backend="gloo")
print("RESULT" + json.dumps([fit_on_a_part(devices=2, strategy=strategy).latest for strategy in ("ddp", sharded)]))
"""


class Sharded(ToyTask):
    """Shards its layers where the strategy has a mesh for it."""

    def configure_model(self):
        super().configure_model()
        if self.device_mesh is not None:
            for module in (*self.model.layers, self.model):
                fully_shard(module, mesh=self.device_mesh["data_parallel"])


def fit_on_a_part(**kwargs):
    """Trains on this rank's part of two steps of 8 rows; returns the monitor."""
    monitor = GradientMonitor(GROUPS, update_ratio=True)
    settings = {"max_epochs": 1, "log_every_n_steps": 1, "gradient_clip_val": 0.05, "use_distributed_sampler": False}
    trainer = quiet_trainer(".", callbacks=[monitor], **settings, **kwargs)
    part = slice(trainer.global_rank, None, trainer.world_size)
    trainer.fit(Sharded(), Batches([batch[part] for batch in rows(2, batch_size=8)]))
    return monitor


@pytest.mark.slow
def test_every_rank_measures_the_gradient_of_all_ranks(tmp_path):
    """Under DDP, and where each rank holds only a shard of it."""
    expected = fit_on_a_part().latest
    assert len(expected) == 12
    for output in run_on_two_ranks(ON_TWO_RANKS, tmp_path):
        for latest in json.loads(output.partition("RESULT")[2]):
            assert latest == pytest.approx(expected, rel=1e-4)
