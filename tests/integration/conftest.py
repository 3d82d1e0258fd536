"""A real SLURM cluster of two nodes on this machine, for the session."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.tiny_recipe import write_recipe

SCRIPT = Path(__file__).parent / "slurm_cluster.sh"
ROOT = Path(__file__).parents[2]
NUM_STEPS = 24
END = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")


class Slurm:
    """The commands of a cluster.

    Args:
        folder: Where `SCRIPT` has started it.
    """

    def __init__(self, folder: Path) -> None:
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        self.env |= {"SLURM_CONF": str(folder / "slurm.conf"), "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}

    def run(self, *command: object, check: bool = True, cwd: Path | None = None) -> str:
        done = subprocess.run(
            [str(word) for word in command], env=self.env, cwd=cwd, capture_output=True, text=True, timeout=90
        )
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done.stdout.strip()

    def info(self, job: str) -> dict[str, str]:
        """Returns what SLURM knows of a job; there is no accounting, but it remembers finished ones for an hour."""
        words = self.run("scontrol", "-o", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, job: str, *states: str, seconds: float = 150) -> dict[str, str]:
        """Waits until a job is in one of some states."""
        end = time.monotonic() + seconds
        while (info := self.info(job))["JobState"] not in states:
            assert time.monotonic() < end, f"job {job} is {info['JobState']} and not {' or '.join(states)}"
            time.sleep(0.3)
        return info

    def cancel_all(self) -> None:
        self.run("scancel", "--user", "root", check=False)
        end = time.monotonic() + 30
        while self.run("squeue", "-h", check=False) and time.monotonic() < end:
            time.sleep(0.2)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Slurm]:
    missing = "SLURM" if not shutil.which("slurmctld") else "root" if os.geteuid() else ""
    if missing:
        reason = f"no {missing}: run 'tests/integration/slurm_cluster.sh install' as root, then these tests as root"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # short: there are unix sockets in it
    subprocess.run(["bash", SCRIPT, "start", folder], check=True, timeout=120)
    try:
        yield Slurm(folder)
    finally:
        subprocess.run(["bash", SCRIPT, "stop", folder], check=True, timeout=120)
        shutil.rmtree(folder)


@pytest.fixture
def slurm(cluster: Slurm) -> Iterator[Slurm]:
    """The cluster without any other job."""
    yield cluster
    cluster.cancel_all()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path, films: dict[str, list[str]]) -> Path:
    """Where all jobs run: with a recipe of 24 steps, each a quarter of a second."""
    folder = tmp_path_factory.mktemp("jobs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_recipe(tiny_bert, films)
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    recipe["model"]["class_path"] = "tests.integration.slow_task.SlowTask"
    recipe["trainer"] |= {"max_epochs": NUM_STEPS // 3, "log_every_n_steps": 1}
    recipe["trainer"]["callbacks"][-1]["init_args"] = {"every_n_steps": 4}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder


Submit = Callable[..., str]


def submit_job(
    slurm: Slurm,
    folder: Path,
    name: str,
    *arguments: object,
    nodes: int = 2,
    step_seconds: float = 0.25,
    options: tuple[object, ...] = (),
) -> str:
    """Submits a fit whose log, notes and run bear a name; returns the job's id."""
    slurm.env |= {"STEP_SECONDS": str(step_seconds), "NAME": name}
    return slurm.run(
        *(sys.executable, "-m", "lit_trainer", "submit", "--nodes", nodes, "--cpus-per-task", 1),
        *("--output", f"{name}-%j.out", "--setup", "export GLOO_SOCKET_IFNAME=lo", "--time", 10),
        *(*options, "fit", "--config", "recipe.yaml", "--trainer.default_root_dir", f"runs/{name}", *arguments),
        cwd=folder,
    )


@pytest.fixture
def submit(slurm: Slurm, folder: Path) -> Submit:
    return partial(submit_job, slurm, folder)


def finish(slurm: Slurm, folder: Path, name: str, job: str) -> str:
    """Waits for a job's success and returns its log."""
    info = slurm.wait(job, *END)
    log = (folder / f"{name}-{job}.out").read_text()
    assert info["JobState"] == "COMPLETED", log
    return log
