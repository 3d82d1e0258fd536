"""Checks of how the nodes of a training find and reach one another."""

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from lit_trainer.preflight.findings import Finding
from lit_trainer.preflight.launch import first_host

INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""By which network NCCL and gloo go; training on GPUs uses both, as the ranks agree on signals by gloo."""

RENAMED = {
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
}
SLOWER = {
    "NCCL_P2P_DISABLE": "the GPUs of a node reach one another by its memory, which is slower",
    "NCCL_IB_DISABLE": "NCCL leaves InfiniBand alone and goes by TCP, which is slower",
    "NCCL_SHM_DISABLE": "processes of a node reach one another by TCP, which is slower",
}
_VIRTUAL = ("lo", "docker", "veth", "virbr", "br-", "cni", "flannel", "tun", "tap", "dummy")


def meeting_place(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Looks whether the address where ranks meet is one that other nodes can reach, and its port free."""
    nodes = _num_nodes(environment)
    address, listed = environment.get("MASTER_ADDR"), environment.get("SLURM_NODELIST", "")
    if address is None and nodes > 1 and listed:
        address = first_host(listed)
        yield from _as_lightning_reads(listed, address)
    if address is None:
        return
    try:
        resolved = socket.gethostbyname(address)
    except OSError as error:
        yield Finding("wrong", f"MASTER_ADDR {address} has no address here ({error}): all ranks would wait for ever;"
                      " use a name or number that every node knows")  # fmt: skip
        return
    is_here = address.partition(".")[0] == socket.gethostname().partition(".")[0]
    if nodes > 1 and resolved.startswith("127.") and is_here and "GLOO_SOCKET_IFNAME" not in environment:
        yield Finding("look", f"MASTER_ADDR {address} is {resolved} on its own node, where no other node can reach it:"
                      " remove that line of /etc/hosts, or set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the network"
                      " between the nodes (ip -br address shows them)")  # fmt: skip
    port, rank = environment.get("MASTER_PORT"), environment.get("SLURM_PROCID") or environment.get("RANK") or "0"
    if port is not None and rank == "0" and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        fault = _why_not_free(port)
        if fault is not None:
            yield Finding("wrong", f"MASTER_PORT {port} cannot be used ({fault}): set another one")
            return
    yield Finding("ok", f"ranks meet at {address} ({resolved}){f', port {port}' if port else ''}")


def _num_nodes(environment: Mapping[str, str]) -> int:
    given = environment.get("SLURM_NNODES") or environment.get("GROUP_WORLD_SIZE") or environment.get("NNODES") or "1"
    return int(given) if given.isdigit() else 1


def _as_lightning_reads(listed: str, first: str) -> Iterator[Finding]:
    """Looks whether Lightning takes the same node for the first: of two brackets it reads only one."""
    if listed.count("[") < 2:
        return
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

    taken = SLURMEnvironment.resolve_root_node_address(listed)
    if taken != first:
        yield Finding("wrong", f"Lightning takes {taken} for the first of {listed}, which is {first}: put 'export"
                      f" MASTER_ADDR={first}' before srun, as $(scontrol show hostnames | head -n 1)")  # fmt: skip


def _why_not_free(port: str) -> str | None:
    """Says why nothing can listen on a port of this machine; None if it can."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("", int(port)))
        except (OSError, ValueError, OverflowError) as error:
            return getattr(error, "strerror", None) or str(error)
    return None


def interfaces(
    environment: Mapping[str, str] = os.environ,
    num_nodes: int | None = None,
    uses_gpus: bool | None = None,
) -> Iterator[Finding]:
    """Looks at the variables that say by which network NCCL and gloo are to go, and at those that slow them down.

    Args:
        environment: The variables.
        num_nodes: Nodes; None as the environment says.
        uses_gpus: Whether training is on GPUs; on CPUs it does without NCCL.
    """
    here = [name for _, name in socket.if_nameindex()]
    several = (num_nodes or _num_nodes(environment)) > 1
    used = [name for name in INTERFACES if uses_gpus is not False or name.startswith("GLOO")]
    for variable in used:
        yield from _named_interface(variable, environment.get(variable), here, several)
    given = [variable for variable in used if environment.get(variable)]
    if several and len(given) == 1 < len(used):
        other = next(variable for variable in used if variable not in given)
        yield Finding("look", f"{given[0]} is {environment[given[0]]} but {other} is not set: training uses both NCCL"
                      f" and gloo; set {other} as well")  # fmt: skip
    real = [name for name in here if not name.startswith(_VIRTUAL)]
    if several and not given and len(real) > 1:
        yield Finding("look", f"this machine is on {', '.join(real)}: if ranks do not meet, or slowly, set"
                      f" {' and '.join(used)} to the one between the nodes (ip -br address)")  # fmt: skip
    for variable, effect in SLOWER.items() if uses_gpus is not False else ():
        is_set = environment.get(variable, "0") not in ("0", "")
        if is_set and (variable != "NCCL_IB_DISABLE" or has_infiniband()):
            yield Finding("look", f"{variable} is {environment[variable]}: {effect}; unset it unless it must be")
    for old, new in RENAMED.items():
        if old in environment:
            yield Finding("look", f"{old} is called {new} now: rename it")


def _named_interface(variable: str, value: str | None, here: list[str], several: bool) -> Iterator[Finding]:
    """Looks whether an interface that is named is there; for NCCL a name's beginning, with ``=`` the whole."""
    if not value or value.startswith("^"):
        return
    exact = variable.startswith("GLOO") or value.startswith("=")
    names = [name.strip() for name in value.removeprefix("=").split(",") if name.strip()]
    matching = [found for found in here if any(found == name if exact else found.startswith(name) for name in names)]
    missing = [name for name in names if not any(found == name or (not exact and found.startswith(name))
                                                 for found in here)]  # fmt: skip
    if missing if exact else not matching:
        yield Finding("wrong", f"{variable} is {value} but this machine has {', '.join(here)}: name one of these, the"
                      " same network on all nodes (ip -br address)")  # fmt: skip
    elif several and matching == ["lo"]:
        yield Finding("look", f"{variable} is {value}, by which no other machine can be reached: name the network"
                      " between the nodes (ip -br address)")  # fmt: skip


def has_infiniband(place: Path = Path("/sys/class/infiniband")) -> bool:
    """Tells whether this machine is on an InfiniBand.

    Args:
        place: Where Linux lists such devices.
    """
    return place.is_dir() and any(place.iterdir())
