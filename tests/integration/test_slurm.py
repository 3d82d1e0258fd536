"""On a real SLURM of two nodes, jobs that are pre-empted, out of time or short of a rank go on as if they were not."""

import csv
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.conftest import END, NUM_STEPS, Slurm, finish, submit_job

pytestmark = pytest.mark.slow


def steps(folder: Path, name: str, rank: int = 0) -> list[int]:
    """Returns the optimizer steps that a rank has trained, those of all its attempts."""
    file = folder / f"steps-{name}{rank}.txt"
    return [int(line.split()[0]) for line in file.read_text().splitlines()] if file.exists() else []


def until(condition: Callable[[], Any], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that in time"
        time.sleep(0.1)


def state(root: Path) -> tuple[Any, Any]:
    """Returns weights and optimizer at the end of the one run in a folder."""
    (run,) = root.glob("version_*")
    content = torch.load(run / f"checkpoints/last-step={NUM_STEPS}.ckpt", weights_only=True)
    return content["state_dict"], content["optimizer_states"][0]["state"]


def assert_same(one: Any, other: Any) -> None:
    for mine, theirs in zip(one, other, strict=True):
        assert mine.keys() == theirs.keys()
        for key in mine:
            torch.testing.assert_close(mine[key], theirs[key], rtol=0, atol=0)


@pytest.fixture(scope="module")
def whole(cluster: Slurm, folder: Path) -> Any:
    """The end of a job that nothing interrupts."""
    job = submit_job(cluster, folder, "whole", step_seconds=0.01)
    log = finish(cluster, folder, "whole", job)
    assert "ckpt_path auto: this job has no checkpoint yet, training begins anew" in log
    return state(folder / "runs" / "whole")


def assert_survived(folder: Path, name: str, whole: Any) -> None:
    for rank in range(2):
        assert steps(folder, name, rank) == list(range(NUM_STEPS)), "nothing lost and nothing repeated"
    assert_same(state(folder / "runs" / name), whole)
    assert not list((folder / "runs" / name).rglob("preempted-*.ckpt")), "nothing is left behind"
    with (folder / "runs" / name / "version_0" / "metrics.csv").open(newline="") as file:
        logged = [int(row["step"]) for row in csv.DictReader(file) if row.get("train/loss")]
    assert logged == list(range(NUM_STEPS)), "one run in the eyes of the logger, too"


def test_two_nodes_train_as_one(folder: Path, whole: Any) -> None:
    ranks = [
        [line.split()[1:] for line in (folder / f"steps-whole{rank}.txt").read_text().splitlines()] for rank in (0, 1)
    ]
    assert ranks[0] == [["2", "n1"]] * NUM_STEPS
    assert ranks[1] == [["2", "n2"]] * NUM_STEPS


def test_a_warned_job_is_queued_again_and_goes_on_at_the_next_step(slurm, submit, folder, whole) -> None:
    job = submit("warned")
    until(lambda: len(steps(folder, "warned")) >= 6)
    slurm.run("scancel", "--signal=USR1", job)
    until(lambda: int(slurm.info(job)["Restarts"]) > 0)
    log = finish(slurm, folder, "warned", job)
    assert f"job {job} is queued again" in log
    assert "ckpt_path auto: this job goes on from runs/warned/version_0/checkpoints/preempted-step=" in log
    assert_survived(folder, "warned", whole)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_job_that_gives_way_to_another_one_goes_on_after_it(slurm, submit, folder, whole, workers) -> None:
    name = f"gives_way_{workers}"
    job = submit(name, "--data.num_workers", workers)
    until(lambda: len(steps(folder, name)) >= 6)
    slurm.run("sbatch", "-p", "urgent", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "srun true")
    until(lambda: int(slurm.info(job)["Restarts"]) > 0)
    finish(slurm, folder, name, job)
    assert_survived(folder, name, whole)


def test_without_a_warning_too(slurm, submit, folder, whole) -> None:
    """SIGTERM alone: the job must still be there when its time to give way has come."""
    job = submit("no_warning")
    until(lambda: len(steps(folder, "no_warning")) >= 6)
    slurm.run("scancel", "--signal=TERM", job)
    until(lambda: "waits to be killed" in (folder / f"no_warning-{job}.out").read_text())
    assert slurm.info(job)["JobState"] == "RUNNING"
    slurm.run("scontrol", "requeue", job)  # as SLURM does at the end of the grace time
    until(lambda: int(slurm.info(job)["Restarts"]) > 0)
    finish(slurm, folder, "no_warning", job)
    assert_survived(folder, "no_warning", whole)


def test_a_cancelled_job_stays_cancelled(slurm, submit, folder) -> None:
    job = submit("cancelled")
    until(lambda: len(steps(folder, "cancelled")) >= 3)
    slurm.run("scancel", job)
    info = slurm.wait(job, *END)
    assert (info["JobState"], info["Restarts"]) == ("CANCELLED", "0")


def test_the_time_limit_is_no_end(slurm, submit, folder, whole) -> None:
    """SLURM's warning comes up to a minute early, so that a limit of two minutes leaves from 40 to 100 seconds."""
    options = ("--time", "2:00", "--warning-seconds", 20)
    job = submit("time", step_seconds=4, options=options)
    until(lambda: int(slurm.info(job)["Restarts"]) > 0, seconds=180)
    info = slurm.wait(job, *END, seconds=500)
    assert info["JobState"] == "COMPLETED", (folder / f"time-{job}.out").read_text()
    assert_survived(folder, "time", whole)


def test_one_element_of_an_array_is_queued_again_by_itself(slurm, submit, folder, whole) -> None:
    options = ("--array", "0-1")
    job = submit(
        "array",
        "--seed_everything={task}",
        nodes=1,
        options=(*options, "--setup", "export NAME=a$SLURM_ARRAY_TASK_ID-"),
    )
    until(lambda: min(len(steps(folder, f"a{task}-")) for task in (0, 1)) >= 6)
    slurm.run("scancel", "--signal=USR1", f"{job}_1")
    until(lambda: int(slurm.info(f"{job}_1")["Restarts"]) > 0)
    infos = [slurm.wait(f"{job}_{task}", *END) for task in (0, 1)]
    assert [info["JobState"] for info in infos] == ["COMPLETED", "COMPLETED"]
    assert infos[0]["Restarts"] == "0"
    for task in (0, 1):
        assert steps(folder, f"a{task}-") == list(range(NUM_STEPS))
    assert len(list((folder / "runs" / "array").glob("version_*"))) == 2


def test_a_rank_that_dies_ends_the_job_soon_and_it_can_be_queued_again(slurm, submit, folder, whole) -> None:
    (folder / "die-1.txt").write_text("10")
    job = submit("dies")
    until(lambda: 10 in steps(folder, "dies", 1))
    info = slurm.wait(job, *END, seconds=60)
    assert info["JobState"] == "FAILED"
    assert "task 1: Exited with exit code 7" in (folder / f"dies-{job}.out").read_text()
    slurm.run("scontrol", "requeue", job)
    until(lambda: 11 in steps(folder, "dies"))
    finish(slurm, folder, "dies", job)
    assert steps(folder, "dies", 1) == [*range(11), *range(9, NUM_STEPS)], "it goes on from the best, its newest file"
    assert_same(state(folder / "runs" / "dies"), whole)


def test_two_jobs_in_one_folder_keep_apart(slurm, submit, folder, whole) -> None:
    root = ("--trainer.default_root_dir", "runs/shared")
    first = submit("first", *root, nodes=1)
    second = submit("second", *root, "--seed_everything", 1, nodes=1)
    until(lambda: min(len(steps(folder, name)) for name in ("first", "second")) >= 5)
    slurm.run("scancel", "--signal=USR1", first)
    until(lambda: int(slurm.info(first)["Restarts"]) > 0)
    finish(slurm, folder, "first", first)
    finish(slurm, folder, "second", second)
    for name in ("first", "second"):
        assert steps(folder, name) == list(range(NUM_STEPS))
    assert len(list((folder / "runs" / "shared").glob("version_*"))) == 2
