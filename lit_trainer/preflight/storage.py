"""Checks of where things are written: the folder of runs, and the memory that processes share."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lit_trainer.preflight.findings import GIB, Finding

MIN_FREE_BYTES = 5 * GIB
MIN_SHARED_BYTES = GIB
MIN_SHARED_BYTES_OF_WORKER = GIB // 8


def writable(folder: Path) -> Iterator[Finding]:
    """Writes a file where runs go, and looks at the space there.

    Args:
        folder: Where runs are to be written; it need not be there.
    """
    existing = _existing(folder)
    if not existing.is_dir():
        yield Finding("wrong", f"{existing} is a file, so that no run can be written there: set"
                      " trainer.default_root_dir")  # fmt: skip
        return
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(2**20))
            file.flush()
    except OSError as error:
        yield Finding("wrong", f"nothing can be written in {existing} ({error.strerror}): set trainer.default_root_dir")
        return
    free = shutil.disk_usage(existing).free
    if free < MIN_FREE_BYTES:
        yield Finding("look", f"only {free / GIB:.1f} GiB are free in {existing}: checkpoints may not fit")
    else:
        yield Finding("ok", f"{existing} can be written, {free / GIB:.0f} GiB are free")


def _existing(folder: Path) -> Path:
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


@contextmanager
def marker(folder: Path) -> Iterator[str | None]:
    """Leaves an empty file where runs go, as long as it lasts, which other nodes see if the place is theirs as well.

    Args:
        folder: Where runs are to be written.

    Yields:
        The file's path, or None if none can be written.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.NamedTemporaryFile(prefix=".preflight-", dir=_existing(folder)))
        except OSError:
            yield None
        else:
            yield file.name


def shared_memory(
    num_workers: int | None = None, processes: int = 1, place: Path = Path("/dev/shm")
) -> Iterator[Finding]:
    """Looks at the memory by which workers hand over batches.

    Args:
        num_workers: Workers of each process; None if not known.
        processes: Processes on this node.
        place: Where that memory is.
    """
    if not place.is_dir():
        return
    usage = shutil.disk_usage(place)
    workers = None if num_workers is None else num_workers * processes
    needed = MIN_SHARED_BYTES if workers is None else workers * MIN_SHARED_BYTES_OF_WORKER
    if min(usage.total, usage.free) < needed:
        whose = "workers" if workers is None else f"{workers} worker{'' if workers == 1 else 's'}"
        yield Finding(
            "look",
            f"{place} has {_size(usage.total)}, {_size(usage.free)} of it free: {whose} may die of a bus error;"
            " start a container with --ipc=host or --shm-size=8g, or keep data.num_workers at 0",
        )
    else:
        yield Finding("ok", f"{place} has {_size(usage.total)}")


def _size(size: int) -> str:
    return f"{size / GIB:.0f} GiB" if size >= GIB else f"{size / 2**20:.0f} MiB"
