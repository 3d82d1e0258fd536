"""The example for submitit in ``configs/slurm/README.md``, on a real SLURM: it trains, and goes on when interrupted."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.documents import blocks
from tests.integration.conftest import NUM_STEPS, Slurm

pytest.importorskip("submitit", reason="submitit is not installed: pip install -e '.[dev]'")
pytestmark = pytest.mark.slow

EXAMPLE = next(block.text for block in blocks("configs/slurm/README.md") if block.language == "python")


def steps(folder: Path) -> list[int]:
    file = folder / "steps-0.txt"
    return [int(line.split()[0]) for line in file.read_text().splitlines()] if file.exists() else []


def until(condition: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that in time"
        time.sleep(0.1)


def test_a_job_of_submitit_is_queued_again_and_goes_on(slurm: Slurm, folder: Path, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    for name, value in {**slurm.env, "STEP_SECONDS": "0.25", "NAME": ""}.items():
        monkeypatch.setenv(name, value)
    example = EXAMPLE.replace("configs/recipes/sms_spam_minilm.yaml", "recipe.yaml")
    example = example.replace("range(3)", "range(1)").replace("cpus_per_task=8", "cpus_per_task=1")
    assert example.count("recipe.yaml") == 1
    names: dict[str, Any] = {}
    exec(compile(example, "configs/slurm/README.md", "exec"), names)
    (job,) = names["jobs"]
    until(lambda: len(steps(folder)) >= 6)
    slurm.run("scancel", "--signal=USR1", job.job_id)
    until(lambda: int(slurm.info(job.job_id)["Restarts"]) > 0)
    info = slurm.wait(job.job_id, "COMPLETED", "FAILED", "CANCELLED")
    said = "".join(file.read_text() for file in (folder / "slurm").glob("*_log.*"))
    assert info["JobState"] == "COMPLETED", said
    assert steps(folder) == list(range(NUM_STEPS)), "nothing lost and nothing repeated"
    assert "ckpt_path auto: this job goes on from" in said
