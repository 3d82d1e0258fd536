"""Runs as processes of their own, some at a time, that end in good order when the study is interrupted."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

FIT = (sys.executable, "-u", "-m", "lit_trainer", "fit")
PATIENCE_SECONDS = 30.0
"""How long a run that is interrupted may take to write what it still has to write."""

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Job:
    """A command whose output goes to a file.

    Args:
        name: What it is, for people.
        command: Its words.
        log: The file.
    """

    name: str
    command: tuple[str, ...]
    log: Path


def run_jobs(
    jobs: Sequence[Job],
    environment: Mapping[str, str],
    at_once: int = 1,
    on_start: Callable[[Job], None] = lambda job: None,
) -> Iterator[tuple[Job, int]]:
    """Runs jobs and yields each with its exit code when it has ended.

    Each is a session of its own, so that Ctrl-C reaches this process alone, which then ends the others: they are
    interrupted as by Ctrl-C, and killed if they take too long over it.

    Args:
        jobs: In the order in which they start.
        environment: Variables besides those of this process.
        at_once: How many run side by side.
        on_start: Called when one starts.
    """
    waiting, running = list(jobs), dict[Job, subprocess.Popen[bytes]]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                on_start(job)
                running[job] = _start(job, environment)
            ended = [job for job, process in running.items() if process.poll() is not None]
            for job in ended:
                yield job, running.pop(job).returncode
            if not ended:
                time.sleep(_POLL_SECONDS)
    finally:
        _end(list(running.values()))


def _start(job: Job, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("wb") as log:
        return subprocess.Popen(
            job.command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_listen,
        )


def _listen() -> None:
    """Lets a run be interrupted also where the study is one in the background, which a shell has ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in running:
        process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + PATIENCE_SECONDS
    for process in running:
        try:
            process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with the ranks that it has started
            process.wait()


@contextmanager
def ended_as_interrupted() -> Iterator[None]:
    """Has SIGTERM do what Ctrl-C does: the runs must not go on without the study."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread, where no signal arrives
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def last_words(log: Path) -> str:
    """Returns the last line of a log, which says why a run failed, without the command's own prefix."""
    with suppress(OSError):
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
        for line in reversed(lines):
            if line:
                return line.removeprefix("lit-trainer: error: ")
    return "it wrote nothing"
