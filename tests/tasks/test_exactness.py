"""The promise, on whole runs: the same training on any split of the hardware and after being killed.

Dropout, class weights, weighted sampling, rows of different lengths, a fifth of the labels ignored and a short last
step; in float64, so that only rounding in its last digits may differ.
"""

import json
import warnings
from pathlib import Path

import pytest
import torch

from tests.tasks import runs

RUNS = Path(runs.__file__)
SPLITS = {
    "1 x 4": {"accumulate": 4},
    "1 x 5": {"accumulate": 5},
    "padding-free": {"padding": "free"},
    "1 x 4, padding-free": {"accumulate": 4, "padding": "free"},
    "2 ranks": {"ranks": 2},
    "2 ranks x 4": {"ranks": 2, "accumulate": 4},
    "2 ranks x 2, sharded": {"ranks": 2, "accumulate": 2, "strategy": "fsdp2"},
}


@pytest.fixture
def train(tmp_path, tiny_bert, run_python):
    """Trains with some settings, on several ranks in processes of their own, and returns what came out."""

    def run(**settings):
        settings = {
            "folder": str(tiny_bert),
            "out": str(tmp_path / "out.pt"),
            "max_steps": 12,
            "dropout": 0.1,
            **settings,
        }
        if settings.get("ranks", 1) == 1:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Lightning's advice, which is not what is tested
                runs.run(settings)
        else:
            run_python(f"import runpy; runpy.run_path({str(RUNS)!r}, run_name='__main__')", json.dumps(settings))
        return torch.load(settings["out"]) if "kill_at" not in settings else None

    return run


def largest_difference(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.fixture(scope="module")
def whole():
    """The runs on one process without accumulation, each made once."""
    return {}


@pytest.mark.exact
@pytest.mark.parametrize("sizes", ["rows", "tokens"])
@pytest.mark.parametrize("split", SPLITS)
def test_any_split_ends_in_the_same_weights(train, whole, split, sizes):
    settings = {"max_tokens": sizes == "tokens", "max_steps": 50}
    if sizes not in whole:
        whole[sizes] = train(**settings)
    found = train(**settings, **SPLITS[split])
    assert found["steps"] == 50
    assert largest_difference(whole[sizes]["weights"], found["weights"]) < 1e-9
    assert found["losses"] == pytest.approx(whole[sizes]["losses"], rel=1e-9)


@pytest.mark.exact
def test_a_strategy_that_divides_by_the_micro_batches_itself_ends_in_the_same_weights(train):
    found = train(accumulate=4, strategy="own accumulation")
    assert largest_difference(train()["weights"], found["weights"]) < 1e-9


@pytest.mark.exact
@pytest.mark.parametrize("split", SPLITS)
def test_any_split_hides_the_same_tokens(train, whole, split):
    settings = {"masked": True, "max_steps": 20, "validate_every": 10}
    if "masked" not in whole:
        whole["masked"] = train(**settings)
    found = train(**settings, **SPLITS[split])
    assert largest_difference(whole["masked"]["weights"], found["weights"]) < 1e-9
    assert found["losses"] == pytest.approx(whole["masked"]["losses"], rel=1e-9)
    assert found["metrics"] == pytest.approx(whole["masked"]["metrics"], rel=1e-6)


@pytest.mark.exact
@pytest.mark.parametrize("num_rows", [75, 5, 2])
def test_any_number_of_ranks_scores_every_row_once_with_the_same_metrics(train, num_rows):
    alone = train(only_test=True, num_eval_rows=num_rows)
    for ranks in (2, 3):
        found = train(only_test=True, num_eval_rows=num_rows, ranks=ranks)
        assert found["rows"].tolist() == list(range(num_rows))
        assert found["metrics"] == pytest.approx(alone["metrics"], rel=1e-6)


KILLS = [
    # 5 steps make an epoch: in its middle, at its end, at the start of the next, and at the end of training
    {"accumulate": 1, "num_workers": 0, "validate_every": None},
    {"accumulate": 3, "num_workers": 2, "validate_every": 1.0},
    {"accumulate": 1, "num_workers": 2, "validate_every": 2, "max_tokens": True},
    {"accumulate": 2, "num_workers": 0, "validate_every": 1.0, "max_steps": -1, "max_epochs": 3},
    {"accumulate": 2, "num_workers": 0, "validate_every": 1.0, "masked": True},
]


@pytest.mark.exact
@pytest.mark.slow
@pytest.mark.parametrize("settings", KILLS, ids=str)
def test_a_run_killed_at_any_step_ends_bit_identical(train, tmp_path, settings):
    settings = {"max_steps": 13, **settings}
    uninterrupted = train(**settings)
    for step in (4, 5, 6, 12):
        checkpoint = str(tmp_path / f"{step}.ckpt")
        train(**settings, kill_at=step, checkpoint=checkpoint)
        resumed = train(**settings, resume=checkpoint)
        assert resumed["steps"] == uninterrupted["steps"]
        assert resumed["losses"] == uninterrupted["losses"][step:], f"killed at step {step}"
        assert largest_difference(uninterrupted["weights"], resumed["weights"]) == 0, f"killed at step {step}"


@pytest.mark.exact
@pytest.mark.slow
def test_a_killed_run_on_two_ranks_ends_bit_identical_also_with_other_validations(train, tmp_path):
    settings = {"ranks": 2, "accumulate": 2}
    uninterrupted = train(**settings)
    train(**settings, kill_at=7, checkpoint=str(tmp_path / "7.ckpt"))
    resumed = train(**settings, resume=str(tmp_path / "7.ckpt"), validate_every=4)
    assert largest_difference(uninterrupted["weights"], resumed["weights"]) == 0


@pytest.mark.exact
def test_a_killed_run_continues_at_the_very_step_on_another_split(train, tmp_path):
    uninterrupted = train()
    checkpoint = str(tmp_path / "7.ckpt")
    train(accumulate=4, kill_at=7, checkpoint=checkpoint)
    for split in ({}, {"accumulate": 2}, {"ranks": 2}):
        resumed = train(resume=checkpoint, **split)
        assert resumed["steps"] == uninterrupted["steps"]
        assert resumed["losses"] == pytest.approx(uninterrupted["losses"][7:], rel=1e-9)
        assert largest_difference(uninterrupted["weights"], resumed["weights"]) < 1e-12
