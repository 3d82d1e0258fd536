"""Checks of the variables of a SLURM job against what Lightning makes of them."""

import os
import shutil
from collections.abc import Iterator, Mapping

from lit_trainer.preflight.findings import Finding, Kind
from lit_trainer.slurm import NAMES_OF_SESSIONS, job_id


def job(
    devices: int | None = None,
    num_nodes: int | None = None,
    environment: Mapping[str, str] = os.environ,
    uses_gpus: bool | None = None,
) -> Iterator[Finding]:
    """Compares the variables of a SLURM job with the Trainer's settings.

    Args:
        devices: Processes on each node that training is to have.
        num_nodes: Nodes that it is to have.
        environment: The variables.
        uses_gpus: Whether it trains on GPUs.
    """
    if "SLURM_JOB_ID" not in environment or "TORCHELASTIC_RUN_ID" in environment:  # it is torchrun's to say then
        return
    name, tasks = environment.get("SLURM_JOB_NAME"), int(environment.get("SLURM_NTASKS") or 1)
    if job_id(environment) is None:
        in_step = int(environment.get("SLURM_STEP_NUM_TASKS") or tasks)
        kind: Kind = "wrong" if in_step > 1 else "look"
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
    if uses_gpus is not False:
        yield from _gpus_of_tasks(int(per_node or 1), environment)
    if shutil.which("scontrol") is None:
        yield Finding("wrong", "there is no scontrol: the job cannot have itself queued again; a container needs"
                      " SLURM's commands inside")  # fmt: skip
    yield Finding("ok", f"SLURM job {job_id(environment)}: {tasks} tasks on {nodes} nodes")


def _gpus_of_tasks(per_node: int, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Looks whether each task sees all GPUs of its node, of which Lightning has it take the one of its number."""
    of_node, visible = environment.get("SLURM_GPUS_ON_NODE", ""), environment.get("CUDA_VISIBLE_DEVICES")
    if of_node.isdigit() and int(of_node) < per_node:
        yield Finding("wrong", f"{per_node} tasks on this node but {of_node} GPUs: make --ntasks-per-node and"
                      " --gpus-per-node equal, or set trainer.accelerator to cpu")  # fmt: skip
    elif of_node.isdigit() and visible is not None and len(visible.split(",")) < per_node:
        yield Finding("wrong", f"CUDA_VISIBLE_DEVICES is {visible!r} but {per_node} tasks run on this node: Lightning"
                      " has each take the GPU of its number, so all must see all; ask by --gpus-per-node, neither by"
                      " --gpus-per-task nor with --gpu-bind")  # fmt: skip
