"""Signals that ask a run to end are noted here, from before the heavy imports on, and answered where it is safe.

A handler runs wherever its process happens to be: between two lines of an optimizer, or never while the process waits
in a collective. So it does no more than to note the signal. Nothing here needs torch.
"""

import atexit
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
"""What is noted, by rising precedence: a user's Ctrl-C, an end that others decided on, and the warning before one."""

BEFORE_TRAINING = [signum for signum in SIGNALS if signum != signal.SIGINT]
"""What is noted before training is under way, when Ctrl-C can end a process that has nothing to lose."""

_noted = 0
_owner: int | None = None
_before: dict[int, Any] = {}


def noted() -> int:
    """Returns the signal of the highest precedence that has come, or 0."""
    return int(SIGNALS[_noted - 1]) if _noted else 0


def forget() -> None:
    """Forgets the signals that have come."""
    global _noted
    _noted = 0


def precedence(signum: int) -> int:
    """Returns a number that is higher for what has precedence, and 0 for no signal, so that ranks can take the maximum.

    Args:
        signum: One of `SIGNALS`, or 0.
    """
    return SIGNALS.index(signal.Signals(signum)) + 1 if signum else 0


def with_precedence(number: int) -> int:
    """Returns the signal that `precedence` gave a number.

    Args:
        number: From 0 to the number of `SIGNALS`.
    """
    return int(SIGNALS[number - 1]) if number else 0


@contextmanager
def watching(signums: Iterable[int] = tuple(SIGNALS), until_exit: bool = False) -> Iterator[None]:
    """Notes signals while it lasts. Outside the main thread it does nothing, and what is noted already stays so.

    A second Ctrl-C ends the process at once, wherever it is. A process that is forked off is not the one to decide: it
    ignores a signal to all, except SIGTERM, which ends it as ever.

    Args:
        signums: Some of `SIGNALS`.
        until_exit: Whether it lasts until the process ends, so that a late signal does not have a finished job fail.
    """
    global _owner
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if _owner != os.getpid():
        _owner = os.getpid()
        _before.clear()
        forget()
    added = [signum for signum in signums if signum not in _before]
    for signum in added:
        _before[signum] = signal.signal(signum, _note)
    try:
        yield
    finally:
        if until_exit:  # Python gives up its handlers at the end of all, and a default one would end a finished job
            atexit.register(_ignore_all)
            added = []
        for signum in added:
            handler = _before.pop(signum, None)
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        if not _before:
            _owner = None


def _ignore_all() -> None:
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


def shield_worker(worker: int = 0) -> None:
    """Makes a worker that loads data outlive a signal to all processes, so that the run can go on to its next step.

    To be called in the worker, as the ``worker_init_fn`` of a loader for instance. SIGTERM ends it still if it comes
    from its parent.

    Args:
        worker: Its number.
    """
    for signum in SIGNALS:
        if signum != signal.SIGTERM:
            signal.signal(signum, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != os.getppid():
        pass
    os._exit(0)


def _note(signum: int, frame: FrameType | None) -> None:
    global _noted
    if os.getpid() != _owner:
        if signum == signal.SIGTERM:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
        return
    _noted = max(_noted, precedence(signum))
    if signum == signal.SIGINT:
        signal.signal(signum, signal.SIG_DFL)
        os.write(2, b"\nends after this optimizer step; Ctrl-C again ends at once\n")
