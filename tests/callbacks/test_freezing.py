import json

import pytest
import torch
from jsonargparse import ArgumentParser
from lightning.pytorch import Callback
from torch import nn

from lit_trainer.callbacks.freezing import Freezing
from lit_trainer.optim.optimizer import OptimizerSpec
from tests.callbacks.toy_task import Batches, ToyTask, quiet_trainer, rows, toy_task, weights
from tests.callbacks.two_ranks import run_on_two_ranks

# Raised inside Lightning 2.6.6 with torch 2.13.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")

SPEC = OptimizerSpec(name="torch.optim.AdamW", lr=0.05, weight_decay=0.1)
PARTS = ("embed", "layers.0", "layers.1", "head")


class Changes(Callback):
    """Writes down for each optimizer step which parts it changed, and which had a gradient computed."""

    def __init__(self):
        self.parts = []
        self.computed = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.before = weights(pl_module)

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.computed.append({n for n, p in pl_module.named_parameters() if p.grad is not None})

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.fit_loop._should_accumulate():
            return
        after = weights(pl_module)
        changed = [name for name, before in self.before.items() if not torch.equal(before, after[name])]
        self.parts.append([part for part in PARTS if any(part in name for name in changed)])


def fit(tmp_path, freezing, num_batches=4, ckpt_path=None, task=None, **kwargs):
    changes = Changes()
    # The model is there only after configure_model, as in the package's own tasks.
    task = task or ToyTask(SPEC, num_steps_total=8)
    trainer = quiet_trainer(tmp_path, **{"max_epochs": 2, "callbacks": [freezing, changes]} | kwargs)
    trainer.fit(task, rows(num_batches), ckpt_path=ckpt_path)
    return changes, trainer, task


def test_without_patterns_everything_learns(tmp_path):
    changes, _, _ = fit(tmp_path, Freezing())
    assert changes.parts == [list(PARTS)] * 8


def test_what_matches_is_frozen_for_the_whole_run_and_has_no_gradient(tmp_path):
    changes, _, _ = fit(tmp_path, Freezing(patterns=["embed", r"layers\.0"]))
    assert changes.parts == [["layers.1", "head"]] * 8
    assert not any("embed" in name for names in changes.computed for name in names)


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize(
    ("until", "first_step"),
    [
        ({"until_step": {"embed": 3}}, 3),
        ({"until_epoch": {"embed": 1}}, 4),
        ({"until_fraction": {"embed": 0.25}}, 2),
        ({"until_fraction": {"embed": 0.3}}, 3),
        ({"until_step": {"embed": 100}}, 8),
    ],
)
def test_a_schedule_releases_by_step_epoch_or_share_of_the_run(tmp_path, until, first_step, late):
    task = ToyTask(SPEC, 8) if late else toy_task(SPEC, 8)
    changes, _, _ = fit(tmp_path, Freezing(**until), task=task)
    others = list(PARTS[1:])
    assert changes.parts == [others] * first_step + [list(PARTS)] * (8 - first_step)


def test_layers_are_released_from_the_top_one_after_the_other(tmp_path):
    freezing = Freezing(until_step={r"layers\.1": 1, r"layers\.0": 2, "embed": 3})
    changes, _, _ = fit(tmp_path, freezing)
    assert [len(parts) for parts in changes.parts] == [1, 2, 3, 4, 4, 4, 4, 4]


def test_steps_are_optimizer_steps_under_accumulation(tmp_path):
    freezing = Freezing(until_step={"embed": 2})
    changes, _, _ = fit(tmp_path, freezing, num_batches=8, accumulate_grad_batches=2, max_epochs=1)
    assert ["embed" in parts for parts in changes.parts] == [False, False, True, True]


def test_what_several_patterns_match_waits_for_the_last(tmp_path):
    freezing = Freezing(patterns=["embed"], until_step={"embed|head": 1, "head": 3})
    changes, _, _ = fit(tmp_path, freezing)
    assert ["head" in parts for parts in changes.parts] == [False] * 3 + [True] * 5
    assert not any("embed" in parts for parts in changes.parts)


@pytest.mark.parametrize("until", [{"until_epoch": {"embed": 1}}, {"until_step": {"embed": 3}}])
@pytest.mark.parametrize("interrupted", [1, 2])
def test_a_resumed_run_has_released_what_an_uninterrupted_one_has(tmp_path, until, interrupted):
    """Lightning #21901: the backbone stayed frozen after a resume, without a word."""
    whole, _, expected = fit(tmp_path, Freezing(**until), max_epochs=3)
    _, trainer, _ = fit(tmp_path, Freezing(**until), max_epochs=interrupted)
    path = tmp_path / "part.ckpt"
    trainer.save_checkpoint(path)
    rest, _, task = fit(tmp_path, Freezing(**until), max_epochs=3, ckpt_path=path)
    assert rest.parts == whole.parts[4 * interrupted :]
    assert "embed" in rest.parts[-1]
    for name, weight in weights(expected).items():
        assert torch.equal(weight, weights(task)[name]), name


def test_the_model_comes_back_as_it_was(tmp_path):
    _, _, task = fit(tmp_path, Freezing(patterns=["embed"]), max_epochs=1)
    assert all(parameter.requires_grad for parameter in task.parameters())
    assert "configure_model" not in vars(task)
    again, _, _ = fit(tmp_path, Freezing(), task=task, max_epochs=1)
    assert again.parts == [list(PARTS)] * 4


def test_a_fit_that_broke_off_leaves_nothing_frozen_behind(tmp_path):
    class Break(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            raise RuntimeError("broken off")

    task, freezing = toy_task(SPEC, 8), Freezing(until_step={"embed": 1})
    with pytest.raises(RuntimeError, match="broken off"):
        fit(tmp_path, freezing, task=task, callbacks=[freezing, Break()])
    changes, _, _ = fit(tmp_path, freezing, task=task)
    assert ["embed" in parts for parts in changes.parts] == [False] + [True] * 7


def test_what_others_froze_is_never_released(tmp_path):
    task = toy_task(SPEC, 8)
    task.model.embed.requires_grad_(False)
    changes, _, _ = fit(tmp_path, Freezing(until_step={"embed|head": 1}), task=task)
    assert not any("embed" in parts for parts in changes.parts)
    assert "head" in changes.parts[-1]
    assert not task.model.embed.weight.requires_grad


def test_two_of_it_go_together(tmp_path):
    one, other = Freezing(patterns=["embed"]), Freezing(until_step={"head": 2})
    changes = Changes()
    fit(tmp_path, one, callbacks=[one, other, changes])
    assert ["head" in parts for parts in changes.parts] == [False] * 2 + [True] * 6
    assert not any("embed" in parts for parts in changes.parts)


def test_frozen_layers_keep_their_dropout_and_norms(tmp_path):
    task = toy_task(SPEC, 8)
    task.model.layers[0] = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    fit(tmp_path, Freezing(patterns=[r"layers\.0"]), task=task)
    assert task.model.layers[0].training
    assert task.model.layers[0][2].num_batches_tracked == 8


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"patterns": ["emb", "encoder"]}, "patterns: 'encoder' matches no parameter; there are model.embed.weight"),
        ({"until_epoch": {"encoder": 1}}, "until_epoch: 'encoder' matches no parameter; there are model.embed.weight"),
        ({"patterns": ["("]}, r"patterns: '\(' is not a regular expression"),
        ({"patterns": [""]}, "Freezing leaves nothing to train at the start of the run: all parameters are frozen"),
        ({"until_step": {"": 2}}, "Freezing leaves nothing to train at the start of the run"),
    ],
)
def test_a_mistake_is_refused_before_the_first_step(tmp_path, settings, text):
    with pytest.raises(ValueError, match=text):
        fit(tmp_path, Freezing(**settings))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"until_step": {"a": 0}}, "until_step: 'a' has 0, which must be 1 or more"),
        ({"until_epoch": {"a": -1}}, "until_epoch: 'a' has -1, which must be 1 or more"),
        ({"until_fraction": {"a": 1.0}}, "until_fraction: 'a' has 1.0, which must be between 0 and 1"),
        ({"until_fraction": {"a": float("nan")}}, "until_fraction: 'a' has nan, which must be between 0 and 1"),
    ],
)
def test_numbers_out_of_range_are_refused(settings, text):
    with pytest.raises(ValueError, match=text):
        Freezing(**settings)


def test_an_optimizer_without_what_is_released_later_is_refused(tmp_path):
    task = toy_task(num_steps_total=8)
    task.configure_optimizers = lambda: torch.optim.SGD([p for p in task.parameters() if p.requires_grad], lr=0.1)
    with pytest.raises(
        ValueError, match=r"the optimizer does not hold model.embed.weight, which Freezing releases later"
    ):
        fit(tmp_path, Freezing(until_step={"embed": 1}), task=task)


def test_a_share_of_the_run_needs_its_length(tmp_path):
    with pytest.raises(ValueError, match=r"Freezing.until_fraction needs the number of optimizer steps of the run"):
        fit(tmp_path, Freezing(until_fraction={"embed": 0.5}), task=toy_task(SPEC))


def test_it_is_set_from_yaml():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--callback", type=Callback)
    text = r"""
class_path: lit_trainer.callbacks.freezing.Freezing
init_args:
  patterns: [embed]
  until_fraction: {'layers\.0': 0.5}
  until_epoch: {'layers\.1': 1}"""
    args = parser.parse_args([f"--callback={text}"])
    callback = parser.instantiate(args).callback
    assert [(rule.key, rule.pattern, rule.limit) for rule in callback._rules] == [
        ("patterns", "embed", None),
        ("until_epoch", r"layers\.1", 1),
        ("until_fraction", r"layers\.0", 0.5),
    ]


STRATEGIES = [
    ({}, 1),
    ({"gradient_as_bucket_view": True}, 2),
    ({"static_graph": True}, 1),
    ({"find_unused_parameters": True}, 1),
]
ON_TWO_RANKS = f"""
import json
from lightning.pytorch.strategies import DDPStrategy
from tests.callbacks.test_freezing import fit_on_a_part
from tests.callbacks.toy_task import weights

results = []
for settings, accumulate in {STRATEGIES}:
    strategy = DDPStrategy(process_group_backend="gloo", **settings)
    changes, task = fit_on_a_part(accumulate, devices=2, strategy=strategy)
    computed = [sorted(names) for names in changes.computed]
    results.append([changes.parts, computed, {{n: w.tolist() for n, w in weights(task).items()}}])
print("RESULT" + json.dumps(results))
"""


def fit_on_a_part(accumulate, **kwargs):
    """Trains on this rank's part of 4 steps of 8 rows, with the embedding frozen, and the layers for two steps."""
    changes, task = Changes(), ToyTask(SPEC, num_steps_total=4)
    callbacks = [Freezing(patterns=["embed"], until_step={"layers": 2}), changes]
    settings = {"accumulate_grad_batches": accumulate, "gradient_clip_val": 0.5, "use_distributed_sampler": False}
    trainer = quiet_trainer(".", max_epochs=1, callbacks=callbacks, **settings, **kwargs)
    part = slice(trainer.global_rank, None, trainer.world_size)
    trainer.fit(task, Batches([batch[part] for batch in rows(4 * accumulate, batch_size=8)]))
    return changes, task


@pytest.mark.slow
def test_two_ranks_freeze_and_release_as_one_does(tmp_path):
    """Lightning #20340: freezing by requires_grad alone breaks under DDP, or leaves ranks to drift apart."""
    ranks = [json.loads(output.partition("RESULT")[2]) for output in run_on_two_ranks(ON_TWO_RANKS, tmp_path)]
    for (_, accumulate), *found_by_rank in zip(STRATEGIES, *ranks, strict=True):
        one, task = fit_on_a_part(accumulate)
        assert one.parts == [["head"]] * 2 + [["layers.0", "layers.1", "head"]] * 2
        for parts, computed, found in found_by_rank:
            assert parts == one.parts
            assert computed == [sorted(names) for names in one.computed]
            assert found == found_by_rank[0][2]
            for name, weight in weights(task).items():
                torch.testing.assert_close(torch.tensor(found[name]), weight, rtol=1e-5, atol=1e-6)
