"""Threads and workers are held against the cores that a process really has."""

import os
from pathlib import Path

import pytest

from lit_trainer.preflight.cores import cgroup_quota, cores
from tests.preflight.told import kinds, only


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(32), raising=False)
    monkeypatch.setattr("lit_trainer.preflight.cores.cgroup_quota", lambda: None)


def test_more_threads_than_cores_are_worth_a_look() -> None:
    assert only(cores(None, 1, {"OMP_NUM_THREADS": "64", "SLURM_CPUS_PER_TASK": "1"})) == (
        "look", "OMP_NUM_THREADS is 64 but this process has 1 core (SLURM_CPUS_PER_TASK): set it to that at most"
    )  # fmt: skip
    assert kinds(cores(None, 1, {"OMP_NUM_THREADS": "1"})) == ["ok"]


def test_more_workers_than_cores_are_worth_a_look() -> None:
    assert only(cores(8, 1, {"SLURM_CPUS_PER_TASK": "4"})) == (
        "look", "data.num_workers is 8 for each process but it has 4 cores (SLURM_CPUS_PER_TASK): they wait for one"
        " another; set it to 3 at most, or ask for more cores",
    )  # fmt: skip
    assert kinds(cores(4, 1, {"SLURM_CPUS_PER_TASK": "4"})) == ["ok"]


def test_processes_share_the_cores_of_a_machine() -> None:
    kind, text = only(cores(8, 8, {}))
    assert kind == "look"
    assert "it has 4 cores (32 by its affinity, shared by 8 processes)" in text


def test_a_quota_counts_where_it_is_less_than_the_cores(monkeypatch) -> None:
    monkeypatch.setattr("lit_trainer.preflight.cores.cgroup_quota", lambda: 2.5)
    assert only(cores(0, 1, {}))[1].startswith("2 cores for this process (the cgroup's quota)")


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_the_least_quota_on_the_way_up_holds(tmp_path: Path) -> None:
    write(tmp_path / "self", "0::/job/step\n")
    write(tmp_path / "job" / "step" / "cpu.max", "max 100000\n")
    write(tmp_path / "job" / "cpu.max", "400000 100000\n")
    assert cgroup_quota(tmp_path / "self", tmp_path) == 4
    write(tmp_path / "job" / "step" / "cpu.max", "150000 100000\n")
    assert cgroup_quota(tmp_path / "self", tmp_path) == 1.5


def test_the_first_version_of_cgroups_is_read_as_well(tmp_path: Path) -> None:
    write(tmp_path / "self", "4:memory:/job\n3:cpu,cpuacct:/job\n")
    write(tmp_path / "cpu" / "job" / "cpu.cfs_quota_us", "200000\n")
    write(tmp_path / "cpu" / "job" / "cpu.cfs_period_us", "100000\n")
    assert cgroup_quota(tmp_path / "self", tmp_path) == 2
    assert cgroup_quota(tmp_path / "none", tmp_path) is None
