"""A job that was queued again goes on from its own checkpoint, and nobody else does."""

import os
import sys
from pathlib import Path

import pytest
import torch

from lit_trainer.runtime.job_checkpoint import checkpoint_of_job, is_auto
from lit_trainer.runtime.run_folder import RunFolder

STATE = {"optimizer_states": [], "callbacks": {}}


def save(run: Path, name: str, step: int) -> Path:
    path = run / "checkpoints" / f"{name}-step={step}.ckpt"
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"global_step": step, **STATE}, path)
    return path


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "lit_trainer")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Pretends to be a job, and returns the folder of its run."""

    def job(**variables: object) -> Path:
        for name in [name for name in os.environ if name.startswith("SLURM_")]:
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(f"SLURM_{name}", str(value))
        monkeypatch.setattr(sys, "argv", ["lit-trainer", "fit"])
        return RunFolder(tmp_path).path

    return job


def test_the_interrupted_step_comes_before_an_older_last_one(job, tmp_path, caplog) -> None:
    run = job(JOB_ID=7)
    save(run, "last", 4)
    expected = save(run, "preempted", 6)
    assert job(JOB_ID=7, RESTART_COUNT=1) == run
    assert checkpoint_of_job("auto:elsewhere", tmp_path) == str(expected)
    assert f"this job goes on from {expected}" in caplog.text


def test_without_one_the_last_is_taken(job, tmp_path) -> None:
    expected = save(job(JOB_ID=7), "last", 4)
    job(JOB_ID=7, RESTART_COUNT=1)
    assert checkpoint_of_job("auto", tmp_path) == str(expected)


def test_a_torn_one_is_passed_over(job, tmp_path, caplog) -> None:
    run = job(JOB_ID=7)
    expected = save(run, "last", 4)
    save(run, "preempted", 6).write_bytes(b"torn")
    job(JOB_ID=7, RESTART_COUNT=1)
    assert checkpoint_of_job("auto", tmp_path) == str(expected)
    assert "passed over" in caplog.text


@pytest.mark.parametrize(
    "other",
    [
        {"JOB_ID": 8},
        {"JOB_ID": 8, "RESTART_COUNT": 1},
        {"JOB_ID": 7},
        {"JOB_ID": 9, "ARRAY_JOB_ID": 5, "ARRAY_TASK_ID": 1, "RESTART_COUNT": 1},
        {},
    ],
    ids=str,
)
def test_nobody_else_picks_it_up(job, tmp_path, other, caplog) -> None:
    save(job(JOB_ID=7), "preempted", 6)
    save(job(JOB_ID=10, ARRAY_JOB_ID=5, ARRAY_TASK_ID=0), "preempted", 6)
    job(**other)
    assert checkpoint_of_job("auto", tmp_path) is None
    assert "training begins anew" in caplog.text


def test_a_job_that_has_none_yet_starts_from_the_one_given(job, tmp_path, caplog) -> None:
    given = save(tmp_path / "other", "best", 3)
    job(JOB_ID=7)
    assert checkpoint_of_job(f"auto:{given}", tmp_path) == str(given)
    assert f"it starts from {given}" in caplog.text
    with pytest.raises(ValueError, match="ckpt_path is absent, but there is no such file or folder"):
        checkpoint_of_job("auto:absent", tmp_path)


@pytest.mark.parametrize(
    ("given", "expected"), [("auto", True), ("auto:x", True), ("automatic", False), ("best", False), (None, False)]
)
def test_auto_is_recognised(given: str | None, expected: bool) -> None:
    assert is_auto(given) == expected
