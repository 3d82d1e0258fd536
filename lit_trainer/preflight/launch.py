"""The processes that were started together for one training, by SLURM, by torchrun or by hand."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from lit_trainer.slurm import job_id


@dataclass(frozen=True)
class Launch:
    """This process among those that were started together.

    Args:
        rank: Its number among all.
        local_rank: Its number on this node.
        size: The number of all.
        num_nodes: The number of nodes.
        address: Of the node of rank 0.
        port: On which training is to have its ranks meet.
        name: What only these processes have in common.
        has_agent: Whether torchrun listens on the port.
    """

    rank: int
    local_rank: int
    size: int
    num_nodes: int
    address: str
    port: int
    name: str = ""
    has_agent: bool = False


def find_launch(num_nodes: int | None = None, environment: Mapping[str, str] = os.environ) -> Launch | None:
    """Returns the launch that this process belongs to, or None for one that was started alone.

    Processes that Lightning starts itself count as alone: they come to be only when training begins.

    Args:
        num_nodes: Nodes that training is to have, for processes that were started by hand, one a node.
        environment: Variables of SLURM or of torchrun.
    """
    get = environment.get
    address, port = get("MASTER_ADDR", ""), get("MASTER_PORT", "")
    if "RANK" in environment and "WORLD_SIZE" in environment:
        size = int(environment["WORLD_SIZE"])
        launch = Launch(
            rank=int(environment["RANK"]),
            local_rank=int(get("LOCAL_RANK") or 0),
            size=size,
            num_nodes=max(1, size // int(get("LOCAL_WORLD_SIZE") or size)),
            address=address,
            port=int(port or 0),
            name=get("TORCHELASTIC_RUN_ID", "") + get("TORCHELASTIC_RESTART_COUNT", ""),
            has_agent=get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )
    elif "SLURM_STEP_ID" in environment and job_id(environment):
        job = environment["SLURM_JOB_ID"]
        launch = Launch(
            rank=int(get("SLURM_PROCID") or 0),
            local_rank=int(get("SLURM_LOCALID") or 0),
            size=int(get("SLURM_NTASKS") or 1),
            num_nodes=int(get("SLURM_NNODES") or 1),
            address=address or first_host(get("SLURM_NODELIST", "")),
            port=int(port or 15000 + int(job[-4:])),  # as Lightning has it
            name=f"SLURM job {job}",
        )
    elif (num_nodes or 1) > 1 and "NODE_RANK" in environment and "LOCAL_RANK" not in environment:
        launch = Launch(int(environment["NODE_RANK"]), 0, num_nodes or 1, num_nodes or 1, address, int(port or 0))
    else:
        return None
    return launch if launch.size > 1 and launch.address and launch.port else None


def first_host(nodes: str) -> str:
    """Returns the first of a list of nodes, of which SLURM itself knows best how to read it.

    Args:
        nodes: The list, such as ``n[1-4]``.
    """
    with_scontrol = shutil.which("scontrol")
    if with_scontrol and nodes:
        done = subprocess.run([with_scontrol, "show", "hostnames", nodes], capture_output=True, text=True, timeout=10)
        if done.returncode == 0 and done.stdout.split():
            return done.stdout.split()[0]
    return nodes.partition(",")[0]
