"""A run with every callback that has a state, killed at many points, ends bit by bit like one never interrupted.

Learning-rate schedule, early stopping, best and last checkpoints, evaluations, freezing, a loss scaler that skips
steps, accumulation, dropout, class weights and weighted batches of so many tokens.
"""

import json
import math
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tasks import interrupted_runs
from tests.tasks.runs import KilledError

pytestmark = [pytest.mark.exact, pytest.mark.slow]

KINDS = {
    "by step": {},
    "by epoch": {"evaluate": {"every_n_epochs": 1}, "last": {"every_n_epochs": 1}, "accumulate": 1, "patience": 1},
    "an evaluation at each save, and workers": {
        "evaluate": {"every_n_steps": 4},
        "last": {"every_n_steps": 4},
        "workers": 2,
        "max_tokens": False,
        "patience": 1,
    },
}

NAMES = [
    "at the start of an epoch",
    "before a micro-batch",
    "before an optimizer step",
    "after an optimizer step",
    "before writing last",
    "while writing last",
    "after writing last",
    "before an evaluation",
    "within an evaluation",
    "after an evaluation",
    "before writing best",
    "while writing best",
    "after writing best",
    "at the end of an epoch",
    "at the end of the run",
]


def kill_by_error():
    raise KilledError


class Runs:
    """Makes runs of one kind, each in a folder of its own; they differ only in where they are killed."""

    def __init__(self, folder, bert, kind):
        self.folder, self.settings = folder, {"folder": str(bert), **KINDS[kind]}
        self.number = 0
        self.points = self.start(self.new_root())
        self.found = self.result()

    def new_root(self):
        self.number += 1
        root = self.folder / str(self.number)
        root.mkdir()
        return root

    def start(self, root, kill_at=None, draws=0):
        own = {"root": str(root), "out": str(self.folder / "out.pt"), "kill_at": kill_at, "draws": draws}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Lightning's advice, which is not what is tested
            return interrupted_runs.run({**self.settings, **own}, kill_by_error)

    def start_process(self, root, kill_at):
        own = {"root": str(root), "out": str(self.folder / "out.pt"), "kill_at": kill_at}
        done = subprocess.run(
            [sys.executable, "-m", "tests.tasks.interrupted_runs", json.dumps({**self.settings, **own})],
            cwd=Path(__file__).parents[2],
            env=os.environ,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 9, done.stdout + done.stderr

    def result(self):
        path = self.folder / "out.pt"
        found = torch.load(path, weights_only=False)
        path.unlink()
        return found


@pytest.fixture(scope="module")
def runs_of(tmp_path_factory, tiny_bert):
    made = {}

    def of(kind):
        if kind not in made:
            made[kind] = Runs(tmp_path_factory.mktemp("runs"), tiny_bert, kind)
        return made[kind]

    return of


def assert_same(one, other, where):
    """Asserts that two nested values are equal to the last bit."""
    assert type(one) is type(other), where
    if isinstance(one, dict):
        assert set(one) == set(other), where
        for key in one:
            assert_same(one[key], other[key], f"{where}, {key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for index, (first, second) in enumerate(zip(one, other, strict=True)):
            assert_same(first, second, f"{where}, {index}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    else:
        assert one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other)), (
            f"{where}: {one} and {other}"
        )


def assert_ends_like(found, uninterrupted, where):
    steps = found.pop("steps")  # those of the last process only
    assert_same(uninterrupted["steps"] | steps, uninterrupted["steps"], f"{where}: steps")
    if not steps:  # the run had already ended: no step follows for which a rate is set, and no epoch to be counted
        found = {**found, "rates": uninterrupted["rates"], "epoch": uninterrupted["epoch"]}
    # Older files may be others: a run leaves that which it continued from, and need not write that step again.
    assert {found["best"][0], f"last-step={found['step']}.ckpt"} <= set(found["files"]), where
    found = {**found, "files": uninterrupted["files"]}
    for name in found:
        assert_same(found[name], uninterrupted[name], f"{where}: {name}")


@pytest.mark.parametrize("kind", KINDS)
def test_the_run_to_be_killed_has_something_to_lose(runs_of, kind):
    found = runs_of(kind).found
    steps = list(found["steps"].values())
    assert found["precision"]["num_skipped_steps"] > 0
    assert len({step["frozen"] for step in steps}) == 3
    assert len({step["lr/head"] for step in steps}) > 4
    assert len({step["scale"] for step in steps}) > 2
    history = found["early stopping"][0]["history"]
    assert found["best"][0] != f"best-step={history[-1][0]}.ckpt"
    assert found["early stopping"][1] is not None
    assert set(by_name(runs_of(kind).points)) == set(NAMES)


def by_name(points):
    """Returns the numbers of the points of each name, the step left out."""
    numbers = {}
    for number, point in enumerate(points):
        numbers.setdefault(re.sub(r"(, |-)step.*", "", point), []).append(number)
    return numbers


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_anywhere_ends_bit_identical(runs_of, kind, name):
    runs = runs_of(kind)
    numbers = by_name(runs.points)[name]
    # Over the names, all parts of the run have their turn.
    share = NAMES.index(name) / len(NAMES)
    chosen = [numbers[int(share * len(numbers))]] + ([numbers[-1]] if kind == "by step" else [])
    for point in dict.fromkeys(chosen):
        root = runs.new_root()
        runs.start(root, kill_at=point)
        runs.start(root, draws=point)
        assert_ends_like(runs.result(), runs.found, f"killed {runs.points[point]}")


@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(points=st.lists(st.integers(0, 60), min_size=2, max_size=5))
def test_a_run_killed_again_and_again_ends_bit_identical(runs_of, points):
    runs = runs_of("by step")
    root = runs.new_root()
    for point in points:
        runs.start(root, kill_at=point)
        (runs.folder / "out.pt").unlink(missing_ok=True)
    runs.start(root)
    assert_ends_like(runs.result(), runs.found, f"killed at {points}")


HARD = ["while writing last-step=4", "within an evaluation, step 6", "after writing last-step=6", "before an optimizer"]


@pytest.mark.parametrize("name", HARD)
def test_a_run_whose_process_ends_ends_bit_identical(runs_of, name):
    runs = runs_of("by step")
    root = runs.new_root()
    point = max(index for index, passed in enumerate(runs.points) if passed.startswith(name))
    runs.start_process(root, kill_at=point)
    runs.start(root)
    found = runs.result()
    assert_ends_like(found, runs.found, f"killed {name}")


def test_a_torn_last_checkpoint_costs_only_the_steps_since_the_one_before(runs_of):
    runs = runs_of("by step")
    root = runs.new_root()
    runs.start(root, kill_at=next(i for i, name in enumerate(runs.points) if "after an optimizer step, step 5" in name))
    newest = root / "last-step=4.ckpt"
    newest.write_bytes(newest.read_bytes()[:-1000])
    runs.start(root)
    found = runs.result()
    assert min(found["steps"]) == 4  # the best one is of step 3
    assert_ends_like(found, runs.found, "torn")
