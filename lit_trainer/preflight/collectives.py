"""Times a small all-reduce over the ranks of a training, and says which rank is slow."""

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from lit_trainer.preflight.findings import Finding, Kind
from lit_trainer.preflight.launch import Launch

Times = dict[str, float]
"""Of one rank, in milliseconds: an all-reduce, the way to rank 0 and back, and a bit of work of its own."""

SLOW_MILLISECONDS = 50.0
"""What an all-reduce of a few kilobytes, or the way to a rank, does not take on a network that works."""

_REPEATS = 7
_SLOWER = 3.0
_NCCL_BYTES = 32 * 2**20


class GPUsNotMetError(Exception):
    """Says why GPUs could not exchange anything."""


def new_store(launch: Launch, seconds: float) -> Any:
    """Returns what the ranks of a process group meet by, on rank 0; its ``port`` is for the others.

    Args:
        launch: This process.
        seconds: How long ranks wait for one another.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(launch.address, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=seconds))


def time_by_gloo(launch: Launch, store: Any, seconds: float) -> list[Times]:
    """Returns how long exchanges by gloo take on each rank, the median of some.

    Args:
        launch: This process.
        store: That of `new_store` on rank 0, its port on the others.
        seconds: How long ranks wait for one another.

    Raises:
        RuntimeError: If they cannot reach one another.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    limit = timedelta(seconds=seconds)
    if isinstance(store, int):
        store = TCPStore(launch.address, store, is_master=False, timeout=limit)
    dist.init_process_group("gloo", store=store, rank=launch.rank, world_size=launch.size, timeout=limit)
    try:
        small = torch.ones(1024)
        work = median_time(lambda: torch.ones(192, 192) @ torch.ones(192, 192))
        dist.barrier()
        mine = {"all_reduce": median_time(lambda: dist.all_reduce(small)), "work": work, "way": 0.0}
        for rank in range(1, launch.size):
            if launch.rank == rank:
                for _ in range(_REPEATS):
                    dist.recv(small, 0)
                    dist.send(small, 0)
            elif launch.rank == 0:
                ways = median_time(lambda rank=rank: (dist.send(small, rank), dist.recv(small, rank)))  # type: ignore[misc]
                mine[f"way to {rank}"] = ways
        everybody: list[Times] = [{} for _ in range(launch.size)]
        dist.all_gather_object(everybody, mine)
        for rank in range(1, launch.size):
            everybody[rank]["way"] = everybody[0].pop(f"way to {rank}")
        return everybody
    finally:
        dist.destroy_process_group()


def median_time(act: Callable[[], Any]) -> float:
    """Returns the milliseconds that something takes, the median of some times.

    Args:
        act: What is timed.
    """
    times = []
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        act()
        times.append(1000 * (time.perf_counter() - begun))
    return statistics.median(times)


def slow_ranks(everybody: Sequence[Times], hosts: Mapping[int, str]) -> Iterator[Finding]:
    """Says how long an all-reduce takes and which ranks are slow, by their way to rank 0 or by their own work.

    Args:
        everybody: What `time_by_gloo` returns.
        hosts: The name of each rank's node.
    """
    size = len(everybody)
    all_reduce = max(times["all_reduce"] for times in everybody)
    works = statistics.median_low([times["work"] for times in everybody])
    ways = statistics.median_low([times["way"] for times in everybody[1:]])
    busy = [rank for rank in range(size) if everybody[rank]["work"] > max(_SLOWER * works, works + 5)]
    far = [rank for rank in range(1, size) if everybody[rank]["way"] > max(_SLOWER * ways, 5.0)]
    if size > 2 and ways > SLOW_MILLISECONDS:
        far = [0]  # all of the others are slow to reach from there
    kind: Kind = "look" if all_reduce > SLOW_MILLISECONDS else "ok"
    text = f"{size} ranks meet; an all-reduce of 4 KiB takes {_told(all_reduce)} by gloo"
    if kind == "look":
        text += f", where less than {SLOW_MILLISECONDS:g} ms are to be expected"
        if not busy and not far:
            rank = max(range(size), key=lambda rank: everybody[rank]["way"])
            text += f"; rank {rank} on {hosts[rank]} is the slowest to reach: is it another network than that between"
            text += " the nodes (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)?"
    yield Finding(kind, text)
    for rank in busy[:4]:
        yield Finding("look", f"rank {rank} on {hosts[rank]} is slow: {_told(everybody[rank]['work'])} for what takes"
                      f" {_told(works)} elsewhere, and all wait for it: is something else running there?")  # fmt: skip
    for rank in far[:4]:
        yield Finding("look", f"rank {rank} on {hosts[rank]} is slow to reach: {_told(everybody[rank]['way'])} to rank"
                      f" 0 and back, {_told(ways)} from elsewhere: look at that node's network")  # fmt: skip


def _told(milliseconds: float) -> str:
    return f"{milliseconds:.1f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"


def time_by_nccl(launch: Launch, store: Any, seconds: float) -> Finding:
    """Has the GPUs of all ranks exchange something, and says how long it takes.

    In a thread, since NCCL waits where nothing can interrupt it. After a `GPUsNotMetError` the process is of no more
    use and must be ended by `os._exit`.

    Args:
        launch: This process.
        store: That of `new_store` on rank 0, its port on the others.
        seconds: How long ranks wait for one another.

    Raises:
        GPUsNotMetError: If they do not meet in time, or NCCL refuses.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    limit = timedelta(seconds=seconds)
    if isinstance(store, int):
        store = TCPStore(launch.address, store, is_master=False, timeout=limit)
    outcome: list[Any] = []

    def exchange() -> None:
        try:
            device = torch.device("cuda", launch.local_rank % torch.cuda.device_count())
            torch.cuda.set_device(device)
            shared = PrefixStore("nccl", store)
            # NCCL's own watch would end the process without a word; this thread is given up a little earlier.
            dist.init_process_group(
                "nccl", store=shared, rank=launch.rank, world_size=launch.size, timeout=2 * limit, device_id=device
            )
            data = torch.ones(_NCCL_BYTES // 4, device=device)
            dist.all_reduce(data)
            torch.cuda.synchronize()

            def once() -> None:
                dist.all_reduce(data)
                torch.cuda.synchronize()

            outcome.append(median_time(once))
            dist.destroy_process_group()
        except Exception as error:  # torch has a type of its own for each way in which GPUs do not meet
            outcome.append(error)

    thread = threading.Thread(target=exchange, daemon=True)
    thread.start()
    thread.join(seconds)
    more = "NCCL_DEBUG=INFO says more; on several networks set NCCL_SOCKET_IFNAME to the one between the nodes"
    if not outcome:
        raise GPUsNotMetError(f"the GPUs of {launch.size} ranks did not meet by NCCL within {seconds:g} s: {more}")
    if isinstance(outcome[0], Exception):
        raise GPUsNotMetError(f"NCCL: {' '.join(str(outcome[0]).split())[:200]}: {more}")
    speed = _NCCL_BYTES / outcome[0] / 1e6
    return Finding("ok", f"an all-reduce of 32 MiB takes {_told(outcome[0])} by NCCL, {speed:.1f} GB/s")
