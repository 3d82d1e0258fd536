"""The processes that are measured: how they are started, asked in turn, and let go of when they fail."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GATE = "SPEED_GATE"  # as in speed_pace, which needs torch

HERE = Path(__file__).parent
_LAST_LINES = 3


@dataclass
class Measured:
    """One system in one process.

    Args:
        name: What it is called in the tables.
        command: What is run, behind the name of this Python.
        environment: Variables besides those that all have.

    Attributes:
        failure: Why it gives no figures; empty as long as it does.
        startup: Seconds from the command to where the first step can begin.
        first_step: Seconds from the command to the end of the first step.
        rounds: What it reported of each round.
        evaluations: What it reported of each evaluation.
        mib: The most memory in training.
        precision: As Lightning names it.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    failure: str = ""
    startup: float = 0.0
    first_step: float = 0.0
    rounds: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    mib: float = 0.0
    precision: str = ""
    _process: Any = None
    _to: Any = None
    _from: int = -1
    _buffer: bytes = b""
    _log: Path = Path()
    _launched: float = 0.0

    def launch(self, folder: Path, **shared: str) -> None:
        """Starts the process.

        Args:
            folder: For its log.
            shared: Variables of all processes.
        """
        commands, write = os.pipe()
        self._from, reports = os.pipe()
        self._log = folder / f"{''.join(c if c.isalnum() else '_' for c in self.name)}.log"
        environment = {**os.environ, **shared, **self.environment, GATE: f"{commands},{reports}"}
        environment["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        self._launched = time.perf_counter()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self.command],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(commands, reports),
            )
        os.close(commands)
        os.close(reports)
        self._to = os.fdopen(write, "w")

    def wait_until_ready(self, limit: float) -> None:
        """Waits until it could make its first step, for so many seconds at most."""
        if found := self._hear(limit):
            self.precision = found["precision"]
            self.startup = time.perf_counter() - self._launched

    def train(self, steps: int, limit: float) -> dict[str, Any]:
        """Has it make some steps and returns what it reports; nothing if it fails."""
        found = self._ask(limit, do="train", steps=steps)
        self.mib = found.get("mib", self.mib)
        return found

    def evaluate(self, limit: float) -> dict[str, Any]:
        """Has it evaluate once and returns what it reports; nothing if it fails."""
        return self._ask(limit, do="evaluate")

    def end(self) -> None:
        """Ends the process."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._to is not None and not self._to.closed:
            with suppress(OSError):
                self._to.close()
            os.close(self._from)

    def _ask(self, limit: float, **command: Any) -> dict[str, Any]:
        if self.failure:
            return {}
        with suppress(OSError):  # it may have ended, which the next line finds out
            print(json.dumps(command), file=self._to, flush=True)
        return self._hear(limit)

    def _hear(self, limit: float) -> dict[str, Any]:
        deadline = time.monotonic() + limit
        while b"\n" not in self._buffer:
            if not select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return self._fail(f"took more than {limit:.0f} s")
            part = os.read(self._from, 2**16)
            if not part:
                return self._fail(self._last_words())
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return " / ".join(lines[-_LAST_LINES:])[-300:] or "ended without a word"

    def _fail(self, why: str) -> dict[str, Any]:
        self.failure = why
        print(f"  {self.name}: {why}", file=sys.stderr, flush=True)
        self.end()
        return {}
