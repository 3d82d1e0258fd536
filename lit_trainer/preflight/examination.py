"""All checks in their order: on this machine, then among the ranks."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from lit_trainer.preflight import collectives
from lit_trainer.preflight.cores import cores
from lit_trainer.preflight.findings import Finding
from lit_trainer.preflight.gpus import gpus
from lit_trainer.preflight.intended_run import IntendedRun
from lit_trainer.preflight.job import job
from lit_trainer.preflight.launch import Launch, find_launch
from lit_trainer.preflight.meeting import NotMetError, Report, meet
from lit_trainer.preflight.network import interfaces, meeting_place
from lit_trainer.preflight.packages import versions
from lit_trainer.preflight.sameness import content_of_node, differences, host
from lit_trainer.preflight.storage import marker, shared_memory, writable

Check = Callable[[], Iterator[Finding]]


class ToldByRankZeroError(Exception):
    """The pre-flight of all ranks has failed, and it is rank 0 that says why."""


def on_machine(
    run: IntendedRun, environment: Mapping[str, str] = os.environ, touches_gpus: bool = True
) -> Iterator[Finding]:
    """Yields what there is to say of this machine and job, the quick checks first and PyTorch last.

    Args:
        run: The run that is intended.
        environment: The variables.
        touches_gpus: Whether to look at GPUs, which takes some of their memory until this process ends.
    """
    per_node = environment.get("SLURM_NTASKS_PER_NODE") or environment.get("LOCAL_WORLD_SIZE") or ""
    processes = run.devices or (int(per_node) if per_node.isdigit() else 1)
    checks: list[Check] = [
        versions,
        lambda: writable(run.folder),
        lambda: shared_memory(run.num_workers, processes),
        lambda: cores(run.num_workers, processes, environment),
        lambda: job(run.devices, run.num_nodes, environment, run.uses_gpus),
        lambda: meeting_place(environment),
        lambda: interfaces(environment, run.num_nodes, run.uses_gpus),
    ]
    if touches_gpus:
        checks.append(lambda: gpus(run.uses_gpus))
    for check in checks:
        try:
            yield from check()
        except Exception as error:  # a check that fails must not keep the others from telling
            yield Finding("look", f"{type(error).__name__}: {error}: this could not be checked")


def among_ranks(
    run: IntendedRun, seconds: float, found: list[Finding], launch: Launch | None = None, with_gpus: bool = False
) -> Iterator[Finding]:
    """Has the ranks of a launch meet as training will, compares what they run, and times an all-reduce.

    What is wrong ends up as wrong on every rank, but only rank 0 tells it all.

    Args:
        run: The run that is intended.
        seconds: How long ranks wait for one another.
        found: What this rank has found so far.
        launch: This process among the others; None to look.
        with_gpus: Whether the GPUs are to exchange something by NCCL, too.

    Raises:
        ToldByRankZeroError: On the other ranks, if something is wrong.
        GPUsNotMetError: If GPUs do not meet; the process must then be ended by `os._exit`.
    """
    launch = find_launch(run.num_nodes) if launch is None else launch
    if launch is None:
        return
    begun = time.monotonic()
    mine: Report = {
        "host": host(),
        "wrong": [finding.text for finding in found if finding.kind == "wrong"],
        "content": content_of_node(run) if launch.local_rank == 0 else None,
    }
    told_by_judge: list[Finding] = []
    stores: list[Any] = []

    def judge(reports: Mapping[int, Report], away: list[int]) -> Report:
        told_by_judge.extend(_judged(reports, away, launch, seconds))
        told_by_judge.extend(_apart(reports, run.folder))
        if mine["wrong"] or any(finding.kind == "wrong" for finding in told_by_judge):
            return {"wrong": True}
        stores.extend(collectives.new_store(launch, seconds) for _ in range(1 + with_gpus))
        return {"wrong": False, "ports": [store.port for store in stores], "hosts": _hosts(reports)}

    try:
        with marker(run.folder) if launch.local_rank == 0 else nullcontext() as mine["marker"]:
            told = meet(launch, mine, judge, seconds)
    except NotMetError as error:
        yield Finding("wrong", str(error))
        return
    yield from told_by_judge
    if told["wrong"]:
        if launch.rank > 0:
            raise ToldByRankZeroError
        return
    hosts = {int(rank): name for rank, name in told["hosts"].items()}
    places = stores or told["ports"]
    try:
        everybody = collectives.time_by_gloo(launch, places[0], seconds)
    except Exception as error:  # torch has a type of its own for each way in which ranks do not meet
        reason = " ".join(str(error).split())[:200]
        yield Finding("wrong", f"rank {launch.rank} met the others, but they cannot exchange anything by gloo"
                      f" ({reason}): no firewall may be between the nodes, on any port; on several networks set"
                      " GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the one between them")  # fmt: skip
        return
    if launch.rank == 0:
        yield from collectives.slow_ranks(everybody, hosts)
        yield Finding("ok", f"all nodes have the same code, packages, settings and data; this took"
                      f" {time.monotonic() - begun:.1f} s")  # fmt: skip
    if with_gpus:
        finding = collectives.time_by_nccl(launch, places[1], seconds)
        if launch.rank == 0:
            yield finding


def _hosts(reports: Mapping[int, Report]) -> dict[int, str]:
    return {rank: str(report["host"]) for rank, report in reports.items()}


def _judged(reports: Mapping[int, Report], away: list[int], launch: Launch, seconds: float) -> Iterator[Finding]:
    """Yields what is wrong with the ranks, on the first one, which tells for all."""
    hosts = _hosts(reports)
    if away:
        which = ", ".join(f"rank {rank}" for rank in away[:8]) + (f" and {len(away) - 8} more" if len(away) > 8 else "")
        yield Finding("wrong", f"{which} of {launch.size} did not come to {launch.address}:{launch.port} within"
                      f" {seconds:g} s: is each of them started, does it know that address, and is no firewall between"
                      " the nodes?")  # fmt: skip
    for rank in sorted(reports):
        if rank != launch.rank:
            for text in reports[rank]["wrong"]:
                yield Finding("wrong", f"{hosts[rank]} (rank {rank}): {text}")
    content = {rank: report["content"] for rank, report in reports.items() if report["content"] is not None}
    yield from differences(content, hosts)


def _apart(reports: Mapping[int, Report], folder: Path) -> Iterator[Finding]:
    """Says which nodes write runs to a place of their own."""
    places = {rank: report.get("marker") for rank, report in reports.items()}
    apart = [str(reports[rank]["host"]) for rank, place in sorted(places.items()) if place and not Path(place).exists()]
    if apart:
        which = ", ".join(apart[:4]) + (f" and {len(apart) - 4} more" if len(apart) > 4 else "")
        yield Finding("look", f"{which} and {reports[0]['host']} do not see the same files in {folder}: a run could not"
                      " go on from its checkpoints; set trainer.default_root_dir to a file system that all nodes"
                      " share")  # fmt: skip
