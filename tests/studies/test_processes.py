"""Processes run as many at a time as asked, and none outlives the study."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from lit_trainer.studies import processes
from lit_trainer.studies.processes import Job, last_words, run_jobs

SLEEP = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {SLEEP}"


def job(folder: Path, name: str, code: str) -> Job:
    return Job(name, (sys.executable, "-c", code), folder / f"{name}.txt")


def wait_for(log: Path) -> None:
    deadline = time.monotonic() + 30
    while not (log.exists() and log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_each_ends_with_its_code_and_its_log(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['GIVEN']); sys.exit({})"
    jobs = [job(tmp_path, str(number), code.format(number)) for number in range(3)]
    started: list[str] = []
    ended = list(run_jobs(jobs, {"GIVEN": "words"}, on_start=lambda each: started.append(each.name)))
    assert [(each.name, code) for each, code in ended] == [("0", 0), ("1", 1), ("2", 2)]
    assert started == ["0", "1", "2"]
    assert last_words(jobs[2].log) == "words"


def test_some_run_side_by_side(tmp_path: Path) -> None:
    """Each waits for a file that the other one makes."""
    code = (
        "import pathlib, time\n"
        "pathlib.Path(r'{0}/{1}').touch()\n"
        "while not pathlib.Path(r'{0}/{2}').exists(): time.sleep(.01)"
    )
    jobs = [job(tmp_path, "a", code.format(tmp_path, 1, 2)), job(tmp_path, "b", code.format(tmp_path, 2, 1))]
    assert sorted(code for _, code in run_jobs(jobs, {}, at_once=2)) == [0, 0]


@pytest.mark.parametrize("code", [SLEEP, STUBBORN])
def test_what_runs_is_ended_with_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(processes, "PATIENCE_SECONDS", 1.0)
    quick, slow = job(tmp_path, "quick", "pass"), job(tmp_path, "slow", code)
    later = job(tmp_path, "later", "print('ran')")
    running = run_jobs([quick, slow, later], {}, at_once=2)
    assert next(running)[0] == quick
    wait_for(slow.log)
    begun = time.monotonic()
    running.close()
    assert time.monotonic() - begun < 10
    with pytest.raises(ProcessLookupError):
        os.kill(int(slow.log.read_text().split()[0]), 0)


def test_a_study_in_the_background_ends_its_runs_in_good_order(tmp_path: Path) -> None:
    slow = job(tmp_path, "slow", SLEEP)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        running = run_jobs([job(tmp_path, "quick", "pass"), slow], {}, at_once=2)
        next(running)
        wait_for(slow.log)
        running.close()
    finally:
        signal.signal(signal.SIGINT, before)
    assert "KeyboardInterrupt" in slow.log.read_text()


def test_sigterm_is_as_ctrl_c() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), processes.ended_as_interrupted():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_last_words_of_a_log_are_what_went_wrong(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    assert last_words(log) == "it wrote nothing"
    log.write_text("one\nlit-trainer: error: data.text: no column\n\n")
    assert last_words(log) == "data.text: no column"
