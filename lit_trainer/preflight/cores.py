"""Checks of the cores that this process may use against the threads and workers that it is to have."""

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from lit_trainer.preflight.findings import Finding


def cores(
    num_workers: int | None = None, processes: int = 1, environment: Mapping[str, str] = os.environ
) -> Iterator[Finding]:
    """Compares threads and workers with the cores that this process may use.

    Args:
        num_workers: Processes of this process that load data; None if not known.
        processes: Processes on this node among which its cores are shared, unless SLURM gives each its own.
        environment: The variables.
    """
    number, why = _cores(processes, environment)
    given = environment.get("OMP_NUM_THREADS", "")
    fine = True
    if given.isdigit() and int(given) > number:
        fine = False
        yield Finding(
            "look", f"OMP_NUM_THREADS is {given} but this process has {_count(number)} ({why}): set it to that at most"
        )
    if num_workers is not None and num_workers > number:
        fine = False
        yield Finding(
            "look",
            f"data.num_workers is {num_workers} for each process but it has {_count(number)} ({why}): they wait for one"
            f" another; set it to {number - 1} at most, or ask for more cores",
        )
    if fine:
        yield Finding("ok", f"{_count(number)} for this process ({why}), OMP_NUM_THREADS {given or 'not set'}")


def _cores(processes: int, environment: Mapping[str, str]) -> tuple[int, str]:
    """Returns how many cores this process has, and by what."""
    machine = os.cpu_count() or 1
    limits = {"the machine": machine}
    if hasattr(os, "sched_getaffinity"):
        limits["its affinity"] = len(os.sched_getaffinity(0))
    quota = cgroup_quota()
    if quota is not None:
        limits["the cgroup's quota"] = max(1, math.floor(quota))
    by = min(limits, key=lambda name: limits[name])
    number = limits[by]
    allotted = environment.get("SLURM_CPUS_PER_TASK", "")
    if allotted.isdigit():
        return (int(allotted), "SLURM_CPUS_PER_TASK") if int(allotted) < number else (number, by)
    if processes > 1:
        return max(1, number // processes), f"{number} by {by}, shared by {processes} processes"
    return number, by


def cgroup_quota(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Returns the cores that a container or a job may use at a time, or None without a limit.

    Args:
        groups: The file that says which cgroup this process is in.
        root: Where cgroups are mounted.
    """
    try:
        lines = [line.split(":", 2) for line in groups.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return None
    limits: list[float] = []
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers and "cpu" not in controllers.split(","):
            continue
        for group in (Path(path.lstrip("/")), *Path(path.lstrip("/")).parents):  # a limit further up holds as well
            limits += _limits(root / ("" if not controllers else "cpu") / group, is_second=not controllers)
    return min(limits, default=None)


def _limits(folder: Path, is_second: bool) -> Iterator[float]:
    """Yields the limit that a folder of cgroups, version 1 or 2, has."""
    try:
        if is_second:
            quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text(encoding="utf-8").strip()
            period = (folder / "cpu.cfs_period_us").read_text(encoding="utf-8").strip()
        if quota not in ("max", "-1"):
            yield int(quota) / int(period)
    except (OSError, ValueError):
        return


def _count(number: int) -> str:
    return f"{number} core{'' if number == 1 else 's'}"
