"""A real SLURM cluster of two nodes on this machine, for the session."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "slurm_cluster.sh"
ROOT = Path(__file__).parents[2]


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
