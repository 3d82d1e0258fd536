"""What a run is going to do is said before its first step, in a few lines."""

import warnings

import lightning.pytorch as pl
import pytest
import torch

from lit_trainer.callbacks.freezing import Freezing
from lit_trainer.callbacks.lr_schedule import LRSchedule
from lit_trainer.callbacks.memory_estimate import saved_bytes
from lit_trainer.callbacks.run_plan import RunPlan, count, size
from lit_trainer.data.sources.memory import Table
from lit_trainer.data.text import TextData
from lit_trainer.optim.optimizer import OptimizerSpec
from lit_trainer.optim.schedules import Linear
from lit_trainer.tasks.sequence_classification import SequenceClassification


@pytest.fixture
def plan_of(tiny_bert, films, capsys):
    """Fits for a few steps and returns the plan, and what was printed by its names."""

    def fit(callbacks=(), optimizer=None, trainer=None, task=None, **data):
        plan = RunPlan()
        settings = {"max_epochs": 2, "limit_val_batches": 0, **(trainer or {})}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pl.Trainer(
                accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                enable_model_summary=False, callbacks=[plan, *callbacks], num_sanity_val_steps=0, **settings,
            ).fit(
                SequenceClassification(str(tiny_bert), optimizer=optimizer, **(task or {})),
                datamodule=TextData(Table(films), **data),
            )  # fmt: skip
        printed = capsys.readouterr().out.splitlines()
        return plan, {line[:15].strip(): line[15:] for line in printed if line.strip()}

    return fit


def test_it_says_steps_rows_tokens_and_parameters(plan_of):
    _, said = plan_of([LRSchedule(Linear(), warmup_fraction=0.1)], batch_size=16)
    assert list(said) == ["steps", "each step", "parameters", "memory"]
    assert said["steps"] == "10, 5 an epoch; the first 1 warm up"
    assert said["each step"].startswith("16 rows, on average ")
    assert said["each step"].endswith(" tokens; 1 rank x 1 micro-batch")
    assert said["parameters"] == "19.9 k, all trained"


def test_micro_batches_token_budgets_and_frozen_parameters_are_said(plan_of):
    _, said = plan_of(trainer={"accumulate_grad_batches": 3}, batch_size=16)
    assert said["each step"].endswith("1 rank x 3 micro-batches of 5 or 6 rows")
    _, said = plan_of([Freezing(["embeddings"])], max_tokens=120, trainer={"max_steps": 3, "max_epochs": -1})
    assert said["steps"].startswith("3, ")
    assert said["each step"].startswith("up to 120 tokens, on average ")
    assert " trained of 19.9 k" in said["parameters"]


def test_the_estimate_is_what_training_takes(plan_of):
    plan, said = plan_of(batch_size=16)
    memory = plan.memory
    assert memory.gradients == memory.optimizer / 2
    assert memory.weights == pytest.approx(memory.gradients, rel=0.1)
    assert memory.activations > 0
    assert memory.total == memory.weights + memory.gradients + memory.optimizer + memory.activations
    assert said["memory"].startswith("about ")
    assert "(an estimate): weights " in said["memory"]


@pytest.mark.parametrize(
    ("name", "kwargs", "factor"),
    [
        ("torch.optim.SGD", {}, 0),
        ("torch.optim.SGD", {"momentum": 0.9}, 1),
        ("torch.optim.AdamW", {"amsgrad": True}, 3),
        ("torch.optim.RMSprop", {}, 1),
    ],
)
def test_the_state_of_any_optimizer_is_measured(plan_of, name, kwargs, factor):
    plan, _ = plan_of(optimizer=OptimizerSpec(name, kwargs=kwargs), trainer={"max_steps": 1, "max_epochs": -1})
    assert plan.memory.optimizer == factor * plan.memory.gradients


def test_it_changes_nothing_of_the_training(tiny_bert, films):
    ends = []
    for callbacks in ([], [RunPlan()]):
        pl.seed_everything(0, verbose=False)
        task = SequenceClassification(str(tiny_bert), keyed_dropout=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pl.Trainer(
                accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                enable_model_summary=False, callbacks=callbacks, max_steps=2, limit_val_batches=0,
            ).fit(task, datamodule=TextData(Table(films)))  # fmt: skip
        ends.append(task.model.state_dict())
    for name, value in ends[0].items():
        assert torch.equal(value, ends[1][name])


def test_activations_that_are_computed_again_are_left_out(plan_of):
    _, said = plan_of(task={"gradient_checkpointing": True}, trainer={"max_steps": 1, "max_epochs": -1})
    assert said["memory"].endswith("; without activations")


def test_saved_bytes_counts_each_storage_once_and_no_weights():
    weight, x = torch.ones(8, 8, requires_grad=True), torch.ones(8, 8)
    assert saved_bytes(lambda: (x @ weight) * (x @ weight), [weight]) == 4 * 64 * 3  # x, and either product
    assert saved_bytes(lambda: x + weight) == 0


def test_numbers_have_three_digits_and_a_unit():
    assert [count(each) for each in (12, 1_234, 22_713_216, 7_000_000_000)] == ["12", "1.23 k", "22.7 M", "7 B"]
    assert [size(each) for each in (12, 1_234, 91_234_567, 2e9)] == ["12 B", "1.23 kB", "91.2 MB", "2 GB"]
