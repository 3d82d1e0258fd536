"""Has the ranks meet where training will, within seconds, without PyTorch: plain sockets and a line of JSON each way.

A rank that stays away, cannot reach the first one or finds somebody else there is told apart, and named. The port is
free again before any rank goes on to training, which has its ranks meet there a moment later.
"""

import json
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import IO, Any

from lit_trainer.preflight.launch import Launch

Report = dict[str, Any]
Judge = Callable[[Mapping[int, Report], list[int]], Report]
"""From what the ranks have reported, and the ranks that stayed away, to what all are told."""

_MAX_BYTES = 16 * 2**20
_SECONDS_TO_SPEAK = 5.0
_SECONDS_TO_HEAR = 15.0  # of many ranks one may keep the first waiting
_SECONDS_TO_JUDGE = 60.0  # rank 0 may have to import PyTorch first


class NotMetError(Exception):
    """Says in one line why this rank could not meet the others."""


def meet(launch: Launch, mine: Report, judge: Judge, seconds: float) -> Report:
    """Brings the reports of all ranks to the first one, has it judge them, and returns its judgement on each.

    Args:
        launch: This process among the others.
        mine: What this rank reports.
        judge: Called on rank 0 alone.
        seconds: How long ranks wait for one another.

    Raises:
        NotMetError: If this rank has nobody to report to.
    """
    # Torchrun listens on the port itself: the first rank tells by its store where it listens instead.
    port = _port_by_agent(launch, seconds) if launch.has_agent else launch.port
    if launch.rank == 0:
        return _host(launch, port, mine, judge, seconds)
    return _visit(launch, port, mine, seconds)


def _host(launch: Launch, port: "int | socket.socket", mine: Report, judge: Judge, seconds: float) -> Report:
    end = time.monotonic() + seconds
    reports: dict[int, Report] = {0: mine}
    with ExitStack() as connections:
        with listen(port, launch.port, launch.size) if isinstance(port, int) else port as server:
            visitors: dict[int, socket.socket] = {}
            while len(reports) < launch.size and (left := end - time.monotonic()) > 0:
                server.settimeout(left)
                try:
                    visitor, _ = server.accept()
                except TimeoutError:
                    break
                connections.enter_context(visitor)
                visitor.settimeout(_SECONDS_TO_SPEAK)
                with visitor.makefile("rb") as reader:
                    said = _hear(reader)
                if said is None:  # somebody who looks for open ports, or a rank that has ended
                    continue
                if said.get("name") != launch.name:
                    _tell(visitor, {"stranger": launch.name})
                elif isinstance(said.get("rank"), int):
                    reports[said["rank"]], visitors[said["rank"]] = said["report"], visitor
                    _tell(visitor, {"heard": True})
        away = [rank for rank in range(launch.size) if rank not in reports]
        told = judge(reports, away)
        for visitor in visitors.values():  # only now that the port is free
            _tell(visitor, {"told": told})
        for visitor in visitors.values():  # who hangs up first keeps the port in use for a while
            with suppress(OSError):
                visitor.recv(1)
    return told


def _visit(launch: Launch, port: "int | socket.socket", mine: Report, seconds: float) -> Report:
    assert isinstance(port, int)
    end = time.monotonic() + seconds
    place, fault = f"{launch.address}:{port}", "nobody has answered"
    while (left := end - time.monotonic()) > 0:
        try:
            with socket.create_connection((launch.address, port), timeout=min(left, 10.0)) as host:
                host.settimeout(_SECONDS_TO_HEAR)
                _tell(host, {"name": launch.name, "rank": launch.rank, "report": mine})
                with host.makefile("rb") as reader:
                    answer = _hear(reader)
                    if answer is not None and "heard" in answer:
                        host.settimeout(seconds + _SECONDS_TO_JUDGE)  # until the last of all has come
                        answer = _hear(reader)
            if answer is not None and "told" in answer:
                told: Report = answer["told"]
                return told
            if answer is not None and "stranger" in answer:
                raise NotMetError(
                    f"{place} belongs to {answer['stranger'] or 'another training'}: set MASTER_PORT to another port"
                )
            fault = "what answers there is not rank 0 of this training; set MASTER_PORT to another port"
        except socket.gaierror as error:
            fault = f"{error.strerror}: use a name or number for MASTER_ADDR that every node knows"
        except ConnectionRefusedError:
            fault = "nobody listens there: is rank 0 started, and is this its address as seen from here"
        except TimeoutError:
            fault = "no answer: a firewall, or another network than the one between the nodes"
        except OSError as error:
            fault = error.strerror or str(error)
        time.sleep(max(0.0, min(0.2, end - time.monotonic())))
    raise NotMetError(f"rank {launch.rank} could not meet rank 0 at {place} within {seconds:g} s ({fault})")


def listen(port: int, named: int, size: int) -> socket.socket:
    """Returns a socket that listens on all addresses of this machine.

    Args:
        port: The port; 0 for any.
        named: The port as the user knows it.
        size: How many may come at once.

    Raises:
        NotMetError: If the port cannot be used.
    """
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=size)
        return socket.create_server(("", port), backlog=size)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        raise NotMetError(f"MASTER_PORT {named} cannot be used ({reason}): set another one") from error


def _port_by_agent(launch: Launch, seconds: float) -> "int | socket.socket":
    """Agrees on another port by the store of torchrun's agent; the first rank listens there already."""
    from datetime import timedelta

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    key = f"lit_trainer/preflight/{launch.name}"
    try:
        store = TCPStore(launch.address, launch.port, is_master=False, timeout=timedelta(seconds=seconds))
        if launch.rank > 0:
            return int(store.get(key).decode())
        server = listen(0, launch.port, launch.size)
        store.set(key, str(server.getsockname()[1]))
        return server
    except RuntimeError as error:  # torch has many types of its own below it
        reason = " ".join(str(error).split())[:150]
        raise NotMetError(f"rank {launch.rank} could not reach torchrun's own store at {launch.address}:{launch.port}"
                          f" within {seconds:g} s ({reason})") from error  # fmt: skip


def _tell(other: socket.socket, message: Report) -> None:
    try:
        other.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        return  # who has left needs no answer


def _hear(other: IO[bytes]) -> Report | None:
    """Returns a line of JSON, or None if the other one says nothing of the kind in time."""
    try:
        message = json.loads(other.readline(_MAX_BYTES))
    except (OSError, ValueError):
        return None
    return message if isinstance(message, dict) else None
