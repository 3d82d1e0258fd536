"""Signals are noted where they come, and by no other process than the one that decides."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lit_trainer import signals


def test_what_has_come_is_noted_by_precedence() -> None:
    with signals.watching():
        assert signals.noted() == 0
        for signum, expected in [
            (signal.SIGINT, signal.SIGINT),
            (signal.SIGUSR1, signal.SIGUSR1),
            (signal.SIGTERM, signal.SIGUSR1),
        ]:
            os.kill(os.getpid(), signum)
            assert signals.noted() == expected
        signals.forget()
        assert signals.noted() == 0


@pytest.mark.parametrize("signum", [0, *signals.SIGNALS])
def test_precedence_has_an_inverse(signum: int) -> None:
    assert signals.with_precedence(signals.precedence(signum)) == signum


def test_an_inner_watch_adds_signals_and_forgets_none() -> None:
    ctrl_c = signal.getsignal(signal.SIGINT)
    with signals.watching(signals.BEFORE_TRAINING):
        assert signal.getsignal(signal.SIGINT) == ctrl_c
        os.kill(os.getpid(), signal.SIGTERM)
        with signals.watching():
            assert signals.noted() == signal.SIGTERM
            assert signal.getsignal(signal.SIGINT) != ctrl_c
        assert signal.getsignal(signal.SIGINT) == ctrl_c
    with signals.watching():
        assert signals.noted() == 0


def run(code: str) -> subprocess.Popen[str]:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code], start_new_session=True, **streams)


def ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_second_ctrl_c_ends_at_once_even_where_no_handler_runs() -> None:
    process = run(
        "import time\nfrom lit_trainer import signals\nwith signals.watching(): print(1, flush=True); time.sleep(60)"
    )
    ready(process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == -signal.SIGINT
    assert "Ctrl-C again" in process.communicate()[1]


def test_a_signal_to_a_process_that_is_finishing_does_not_make_it_fail() -> None:
    code = "import os, signal, threading, time\nfrom lit_trainer import signals\nclass Late:\n"
    code += "  def __init__(self): self.kill, self.pid, self.signum = os.kill, os.getpid(), signal.SIGUSR1\n"
    code += "  def __del__(self): self.kill(self.pid, self.signum)\n"
    code += "with signals.watching(until_exit=True): pass\nlate = Late()\nlate.itself = late\nimport gc; gc.freeze()\n"
    process = run(code)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 0, errors


FORKED = """
import os, time
from lit_trainer import signals
with signals.watching():
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
    print(signals.noted(), flush=True)
"""


def test_a_forked_process_ignores_the_warning_and_ends_by_sigterm() -> None:
    process = run(FORKED)
    child = int(ready(process))
    os.kill(child, signal.SIGUSR1)
    time.sleep(0.3)
    assert Path(f"/proc/{child}").exists()
    os.kill(child, signal.SIGTERM)
    assert ready(process) == "0", "the parent noted nothing"
    process.communicate(timeout=10)


WORKER = """
import os, signal, time
from lit_trainer import signals
child = os.fork()
if not child:
    signals.shield_worker()
    print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(1)
input()
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_a_worker_outlives_signals_to_all_but_not_that_of_its_parent() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    child = int(ready(process))
    for signum in signals.SIGNALS:
        os.kill(child, signum)
    time.sleep(0.3)
    assert Path(f"/proc/{child}").exists()
    assert process.communicate("\n", timeout=10)[0] == "0\n"
