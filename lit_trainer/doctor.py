"""The command ``doctor``: says in a few seconds what is wrong with a machine, or with the job it runs in."""

import argparse
import hashlib
import importlib.metadata
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from lit_trainer import __version__
from lit_trainer.slurm import NAMES_OF_SESSIONS, job_id

Kind = Literal["ok", "look", "wrong"]

PACKAGES = ("torch", "lightning", "transformers", "datasets", "torchmetrics", "jsonargparse")
GIB = 2**30
MIN_FREE_BYTES = 5 * GIB
MIN_SHARED_BYTES = GIB


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        kind: Whether it is fine, worth a look, or keeps training from working.
        text: What was found and, unless it is fine, what to do.
    """

    kind: Kind
    text: str


def main(args: Sequence[str]) -> None:
    """Prints one line for each finding, and exits with 1 if one of them is wrong.

    Args:
        args: What follows ``doctor`` on the command line.
    """
    parser = argparse.ArgumentParser(
        prog="lit-trainer doctor",
        description="Says what is wrong with this machine for training; in a job, start it with srun like training.",
        allow_abbrev=False,
    )
    parser.add_argument("--folder", default="runs", help="where runs are to be written (runs)")
    parser.add_argument("--devices", type=int, help="the trainer.devices that training is to have")
    parser.add_argument("--num_nodes", type=int, help="the trainer.num_nodes that training is to have")
    options = parser.parse_args(list(args))
    findings = list(examine(Path(options.folder), options.devices, options.num_nodes))
    rank = os.environ.get("SLURM_PROCID", "0")
    where = f"{socket.gethostname()}: " if int(os.environ.get("SLURM_NTASKS") or 1) > 1 else ""
    for finding in findings:
        if rank == "0" or finding.kind != "ok":  # that all is well one rank may say for all
            print(f"{finding.kind:6}{where}{finding.text}", flush=True)
    if any(finding.kind == "wrong" for finding in findings):
        sys.exit(1)


def examine(folder: Path, devices: int | None = None, num_nodes: int | None = None) -> Iterator[Finding]:
    """Yields all findings, the quick ones first.

    Args:
        folder: Where runs are to be written.
        devices: Processes on each node that training is to have; None is not to be compared.
        num_nodes: Nodes that it is to have; None likewise.
    """
    checks: list[Callable[[], Iterator[Finding]]] = [
        versions,
        lambda: writable(folder),
        shared_memory,
        cores,
        lambda: job(devices, num_nodes),
        meeting_place,
        gpus,
        ranks,
    ]
    for check in checks:
        try:
            yield from check()
        except Exception as error:  # a check that fails must not keep the others from telling
            yield Finding("look", f"{type(error).__name__}: {error}: this could not be checked")


def versions() -> Iterator[Finding]:
    """Looks at the packages, and for code that mixes Lightning's two names."""
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            yield Finding("wrong", f"{name} is not installed: pip install lit_trainer")
    yield Finding("ok", f"lit_trainer {__version__}, Python {sys.version.split()[0]}, {', '.join(found)}")
    mixed = [path for path in sorted(Path.cwd().glob("*.py")) if _imports_other_lightning(path)]
    if mixed:
        yield Finding(
            "wrong",
            f"{', '.join(path.name for path in mixed)}: imports pytorch_lightning, whose classes are not those of"
            " lightning.pytorch: import lightning.pytorch instead",
        )


def _imports_other_lightning(path: Path) -> bool:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return any(line.strip().startswith(("import pytorch_lightning", "from pytorch_lightning")) for line in lines)


def writable(folder: Path) -> Iterator[Finding]:
    """Writes a file where runs go, and looks at the space there."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"x")
    except OSError as error:
        yield Finding("wrong", f"nothing can be written in {existing} ({error.strerror}): set trainer.default_root_dir")
        return
    free = shutil.disk_usage(existing).free
    if free < MIN_FREE_BYTES:
        yield Finding("look", f"only {free / GIB:.1f} GiB are free in {existing}: checkpoints may not fit")
    else:
        yield Finding("ok", f"{existing} can be written, {free / GIB:.0f} GiB are free")


def shared_memory(place: Path = Path("/dev/shm")) -> Iterator[Finding]:
    """Looks at the memory by which workers hand over batches."""
    if not place.is_dir():
        return
    total = shutil.disk_usage(place).total
    if total < MIN_SHARED_BYTES:
        yield Finding(
            "look",
            f"{place} has {total / 2**20:.0f} MiB: workers may die of a bus error; start a container with --ipc=host or"
            " --shm-size=8g, or keep data.num_workers at 0",
        )
    else:
        yield Finding("ok", f"{place} has {total / GIB:.0f} GiB")


def cores(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Compares threads with the cores that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    given = environment.get("OMP_NUM_THREADS")
    tasks = int(environment.get("SLURM_CPUS_PER_TASK") or allowed)
    if given and given.isdigit() and int(given) > min(tasks, allowed):
        yield Finding(
            "look",
            f"OMP_NUM_THREADS is {given} but this process has {min(tasks, allowed)} cores: set it to that at most",
        )
    else:
        yield Finding("ok", f"{min(tasks, allowed)} cores for this process, OMP_NUM_THREADS {given or 'not set'}")


def job(
    devices: int | None = None, num_nodes: int | None = None, environment: Mapping[str, str] = os.environ
) -> Iterator[Finding]:
    """Compares the variables of a SLURM job with what Lightning makes of them.

    Args:
        devices: Processes on each node that training is to have.
        num_nodes: Nodes that it is to have.
        environment: The variables.
    """
    if "SLURM_JOB_ID" not in environment:
        return
    name, tasks = environment.get("SLURM_JOB_NAME"), int(environment.get("SLURM_NTASKS") or 1)
    if job_id(environment) is None:
        kind: Kind = "wrong" if tasks > 1 else "look"
        yield Finding(kind, f"the job's name is {name}, one of {' and '.join(NAMES_OF_SESSIONS)}: Lightning takes it"
                      " for a session by hand, with each process on its own; use srun --job-name=train")  # fmt: skip
        return
    if "SLURM_STEP_ID" not in environment and tasks > 1:
        yield Finding("wrong", f"{tasks} tasks but no srun: this process would wait for ever for the others; put srun"
                      " before the command")  # fmt: skip
    per_node = environment.get("SLURM_NTASKS_PER_NODE")
    if per_node is None and tasks > 1:
        yield Finding("wrong", "the job was made with --ntasks alone, which Lightning refuses: use --ntasks-per-node")
    elif devices is not None and str(devices) != (per_node or "1"):
        yield Finding(
            "wrong", f"trainer.devices is {devices} but --ntasks-per-node is {per_node or 1}: make them equal"
        )
    nodes = environment.get("SLURM_NNODES", "1")
    if num_nodes is not None and str(num_nodes) != nodes:
        yield Finding("wrong", f"trainer.num_nodes is {num_nodes} but --nodes is {nodes}: make them equal")
    if shutil.which("scontrol") is None:
        yield Finding("wrong", "there is no scontrol: the job cannot have itself queued again; a container needs"
                      " SLURM's commands inside")  # fmt: skip
    yield Finding("ok", f"SLURM job {job_id(environment)}: {tasks} tasks on {nodes} nodes")


def meeting_place(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Looks whether the address where ranks meet is one that other nodes can reach, and its port free."""
    nodes = int(environment.get("SLURM_NNODES") or environment.get("NNODES") or 1)
    address = environment.get("MASTER_ADDR")
    if address is None and nodes > 1 and "SLURM_NODELIST" in environment:
        address = _first_host(environment["SLURM_NODELIST"])
    if address is None:
        return
    try:
        resolved = socket.gethostbyname(address)
    except OSError as error:
        yield Finding("wrong", f"MASTER_ADDR {address} has no address here ({error}): all ranks would wait for ever;"
                      " use a name or number that every node knows")  # fmt: skip
        return
    if (
        nodes > 1
        and "GLOO_SOCKET_IFNAME" not in environment
        and resolved.startswith("127.")
        and address.partition(".")[0] == socket.gethostname().partition(".")[0]
    ):
        yield Finding("look", f"MASTER_ADDR {address} is {resolved} on its own node, where no other node can reach it:"
                      " remove that line of /etc/hosts, or set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the network"
                      " between the nodes (ip -br address shows them)")  # fmt: skip
    port, rank = environment.get("MASTER_PORT"), environment.get("SLURM_PROCID") or environment.get("RANK") or "0"
    if port is not None and rank == "0":
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind(("", int(port)))
            except OSError as error:
                yield Finding("wrong", f"MASTER_PORT {port} cannot be used ({error.strerror}): set another one")
                return
    yield Finding("ok", f"ranks meet at {address} ({resolved}){f', port {port}' if port else ''}")


def _first_host(nodes: str) -> str:
    """Returns the first of a list of nodes, of which SLURM itself knows best how to read it."""
    with_scontrol = shutil.which("scontrol")
    if with_scontrol:
        done = subprocess.run([with_scontrol, "show", "hostnames", nodes], capture_output=True, text=True, timeout=10)
        if done.returncode == 0 and done.stdout.split():
            return done.stdout.split()[0]
    return nodes.partition(",")[0]


def gpus() -> Iterator[Finding]:
    """Looks at the GPUs that PyTorch sees, and at the driver."""
    import torch

    if not torch.cuda.is_available():
        if shutil.which("nvidia-smi") and torch.version.cuda is None:
            yield Finding("wrong", "there is an NVIDIA driver, but this PyTorch is for CPUs: install one for CUDA")
        elif shutil.which("nvidia-smi"):
            yield Finding("wrong", f"there is an NVIDIA driver, but PyTorch for CUDA {torch.version.cuda} sees no GPU:"
                          " compare the driver's CUDA version in nvidia-smi, and CUDA_VISIBLE_DEVICES")  # fmt: skip
        else:
            yield Finding("ok", "no GPU: training uses the CPU")
        return
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        text = f"GPU {index}: {torch.cuda.get_device_name(index)}, {free / GIB:.0f} of {total / GIB:.0f} GiB free"
        if free < total / 2:
            yield Finding("look", f"{text}: another process uses it; nvidia-smi shows which")
        else:
            yield Finding("ok", text)
    if torch.cuda.device_count() > 1 and not torch.distributed.is_nccl_available():
        yield Finding("wrong", "several GPUs but no NCCL in this PyTorch: install a build for CUDA on Linux")


def ranks(seconds: float = 20.0, environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Has the ranks of a job meet as training does, compares what they run, and times a small all-reduce.

    Args:
        seconds: How long ranks wait for one another.
        environment: Variables of SLURM or of torchrun.
    """
    rank, size = _rank_and_size(environment)
    address = environment.get("MASTER_ADDR") or _first_host(environment.get("SLURM_NODELIST", ""))
    if size == 1 or not address:
        return
    port = int(environment.get("MASTER_PORT") or 15000 + int(environment.get("SLURM_JOB_ID", "0")[-4:]))
    import torch.distributed as dist

    place = f"tcp://{address}:{port}"
    try:
        dist.init_process_group("gloo", place, timedelta(seconds=seconds), world_size=size, rank=rank)
    except Exception as error:  # torch has a type of its own for each way in which ranks do not meet
        reason = " ".join(str(error).split())[:200]
        yield Finding("wrong", f"rank {rank} could not meet the others at {place} within {seconds:g} s ({reason}): is"
                      " each of them started, and no firewall between them? On several networks set GLOO_SOCKET_IFNAME"
                      " and NCCL_SOCKET_IFNAME to the one between the nodes")  # fmt: skip
        return
    everybody: list[dict[str, str]] = [{} for _ in range(size)]
    dist.all_gather_object(everybody, {**_environment(), "late": f"{_late(dist):.3f}"})
    dist.destroy_process_group()
    if rank == 0:
        yield from _differences(everybody)


def _rank_and_size(environment: Mapping[str, str]) -> tuple[int, int]:
    if "WORLD_SIZE" in environment:
        return int(environment.get("RANK") or 0), int(environment["WORLD_SIZE"])
    if "SLURM_STEP_ID" in environment and job_id(environment):
        return int(environment.get("SLURM_PROCID") or 0), int(environment.get("SLURM_NTASKS") or 1)
    return 0, 1


def _environment() -> dict[str, str]:
    """Describes what is to be the same on all nodes."""
    code = hashlib.sha256()
    package = Path(__file__).parent
    for file in sorted(package.rglob("*.py")):
        code.update(file.relative_to(package).as_posix().encode() + file.read_bytes())
    installed = sorted(f"{found.name}=={found.version}" for found in importlib.metadata.distributions())
    return {
        "host": socket.gethostname(),
        "code of lit_trainer": code.hexdigest()[:12],
        "packages": hashlib.sha256("\n".join(installed).encode()).hexdigest()[:12],
        "Python": sys.version.split()[0],
        "working folder": str(Path.cwd()),
    }


def _late(dist: Any, repeats: int = 5) -> float:
    """Returns the seconds that a small all-reduce takes on this rank, the median of some."""
    import torch

    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        dist.all_reduce(torch.ones(1024))
        times.append(time.perf_counter() - begun)
    return sorted(times)[repeats // 2]


def _differences(everybody: Sequence[Mapping[str, str]]) -> Iterator[Finding]:
    """Compares ranks with the first one."""
    first = everybody[0]
    for key in first:
        others = [f"rank {rank} on {other['host']}" for rank, other in enumerate(everybody) if other[key] != first[key]]
        if key not in ("host", "late") and others:
            yield Finding("wrong", f"{key}: {', '.join(others[:4])} has another than rank 0 on {first['host']}; give"
                          " all nodes the same one")  # fmt: skip
    slowest = max(range(len(everybody)), key=lambda rank: float(everybody[rank]["late"]))
    late = float(everybody[slowest]["late"])
    text = f"{len(everybody)} ranks meet; an all-reduce takes {1000 * late:.0f} ms, longest on rank {slowest}"
    yield Finding("ok" if late < 0.1 else "look", f"{text} on {everybody[slowest]['host']}"
                  + ("" if late < 0.1 else ": the network between the nodes is slow, or a node is busy"))  # fmt: skip
