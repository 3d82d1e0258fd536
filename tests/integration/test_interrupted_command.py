"""The command itself, interrupted: what it says, how it exits and what it goes on from."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tiny_recipe import told, write_recipe


@pytest.fixture
def recipe(tmp_path: Path, tiny_bert: Path, films: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_recipe(tiny_bert, films)


def start(recipe: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lit_trainer", "fit", "--config", str(recipe), *args],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("SLURM_")},
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        _, said = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, said


@pytest.mark.slow
def test_a_command_that_is_asked_to_end_says_where_it_goes_on(recipe: Path) -> None:
    process = start(recipe, "--trainer.max_epochs=5000")
    until = time.monotonic() + 100
    while not list(Path().glob("runs/films/version_0/checkpoints/last-*.ckpt")) and time.monotonic() < until:
        time.sleep(0.1)
    process.terminate()
    code, said = end(process)
    assert code == 143, said
    (file,) = Path().glob("runs/films/version_0/checkpoints/preempted-*.ckpt")
    assert f"SIGTERM: saved {file}, to go on from there" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_signal_during_the_imports_is_answered_before_training(recipe: Path) -> None:
    process = start(recipe)
    until = time.monotonic() + 60
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text() and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    code, said = end(process)
    assert code == 138, said
    assert "SIGUSR1: fit ends with nothing new to save" in said
    assert not list(Path().rglob("*.ckpt"))


SLOW_TO_BEGIN = """
import time
from pathlib import Path
from lightning.pytorch import Callback

class Waits(Callback):
    def setup(self, trainer, pl_module, stage):
        Path("waits").touch()
        time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["imports", "before training"])
def test_ctrl_c_with_nothing_to_lose_exits_as_ctrl_c_does(recipe: Path, moment: str) -> None:
    Path("slow_to_begin.py").write_text(SLOW_TO_BEGIN)
    process = start(recipe, "--trainer.callbacks+=slow_to_begin.Waits")
    until = time.monotonic() + 100
    memory = Path(f"/proc/{process.pid}/maps")
    while not (Path("waits").exists() if moment == "before training" else "libtorch" in memory.read_text()):
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    code, said = end(process)
    assert code == 130, said
    assert "Traceback" not in said


def test_only_fit_goes_on_by_itself(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "test", "--config", str(recipe), "--ckpt_path", "auto") == (
        "ckpt_path is auto, which is for fit; test takes a run, best or last"
    )
