"""The benchmark of exactness runs in its quick form, and its figures for lit_trainer are what is promised."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    out = tmp_path_factory.mktemp("exactness")
    command = [sys.executable, "benchmarks/exactness.py", "--quick", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((out / "exactness.json").read_text()), (out / "exactness.md").read_text(), done.stdout


@pytest.mark.exact
@pytest.mark.slow
def test_gradients_of_lit_trainer_are_the_same_on_any_split(quick):
    errors = [
        cells["lit_trainer"]
        for splits in quick[0]["gradients"].values()
        for cells in splits.values()
        if "lit_trainer" in cells
    ]
    assert len(errors) == 8
    assert max(errors) < 1e-12


@pytest.mark.exact
@pytest.mark.slow
def test_lit_trainer_scores_every_row_once_with_the_same_loss(quick):
    for row in quick[0]["evaluations"]:
        found = row["lit_trainer"]
        assert (found["scored"], found["distinct"]) == (row["rows"], row["rows"])
        assert found["loss_error"] < 1e-12


@pytest.mark.exact
@pytest.mark.slow
def test_lit_trainer_survives_every_kill(quick):
    assert set(quick[0]["resumes"]["lit_trainer"].values()) == {0.0}


@pytest.mark.exact
@pytest.mark.slow
def test_weighted_draws_of_lit_trainer_are_shared_out_between_ranks(quick):
    found = next(row for row in quick[0]["draws"] if row["system"] == "lit_trainer")
    assert found["True"]["draws"] == found["False"]["draws"] == 100
    assert 0.35 < found["True"]["rare"] < 0.65
    assert found["False"]["duplicates"] == 0


@pytest.mark.exact
@pytest.mark.slow
def test_the_tables_show_what_was_measured(quick):
    figures, text, printed = quick
    assert all(system in text for system in ("lit_trainer", "Lightning", "Trainer, mean", "Trainer, counted"))
    assert f"| lit_trainer | {len(figures['resumes']['lit_trainer'])} of " in text
    assert "Weighted sampling on two ranks" in printed
