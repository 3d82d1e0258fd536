"""What keeps training from working is said in one line each, with what to do."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lit_trainer import doctor
from lit_trainer.cli import main
from lit_trainer.preflight import collectives, examination
from lit_trainer.preflight.examination import on_machine
from lit_trainer.preflight.findings import Finding
from lit_trainer.preflight.intended_run import IntendedRun
from lit_trainer.preflight.launch import Launch
from tests.tiny_recipe import told, write_recipe


def test_a_machine_that_is_fine_is_told_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["doctor", "--folder", str(tmp_path / "runs")])
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert not [line for line in lines if line.startswith("wrong")]
    assert not (tmp_path / "runs").exists(), "it leaves nothing behind"


def test_what_is_wrong_is_the_exit_code(monkeypatch, capsys) -> None:
    monkeypatch.setattr(doctor, "examine", lambda *_: iter([Finding("wrong", "no: do this")]))
    with pytest.raises(SystemExit) as end:
        main(["doctor"])
    assert end.value.code == 1
    assert capsys.readouterr().out == "wrong no: do this\n"


def test_a_check_that_fails_keeps_no_other_from_telling(monkeypatch, tmp_path) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(examination, "shared_memory", fails)
    findings = list(on_machine(IntendedRun(tmp_path)))
    assert Finding("look", "RuntimeError: no such thing: this could not be checked") in findings
    assert len(findings) > 3


def test_a_command_is_held_against_the_machine(tmp_path, monkeypatch, capsys, tiny_bert, films) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = str(write_recipe(tiny_bert, films))
    main(["doctor", "fit", "--config", recipe, "--data.num_workers", "500"])
    said = capsys.readouterr().out
    assert "look  data.num_workers is 500 for each process but it has" in said
    assert "GPU" not in said, "the recipe asks for the CPU"
    assert not (tmp_path / "runs").exists(), "nothing of the command has begun"
    assert told(capsys, "doctor", "fit", "--config", recipe, "--data.no_such", "1").startswith(
        "data.no_such: TextData takes no no_such"
    )


def test_doctor_imports_no_torch_to_explain_itself() -> None:
    code = (
        "import sys\nfrom lit_trainer.cli import main\n"
        "try: main(['doctor', '--help'])\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_gpus_that_do_not_meet_end_the_process_although_nccl_hangs(monkeypatch, capsys) -> None:
    def hang(*_: object) -> Finding:
        raise collectives.GPUsNotMetError("the GPUs of 2 ranks did not meet")

    class EndedError(Exception):
        pass

    def end(code: int) -> None:
        raise EndedError(code)

    monkeypatch.setattr(doctor, "examine", hang)
    monkeypatch.setattr(doctor, "find_launch", lambda _: Launch(0, 0, 2, 2, "n1", 1))
    monkeypatch.setattr(doctor, "host", lambda: "n1")
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(EndedError, match="1"):
        doctor.main([])
    assert capsys.readouterr().out == "wrong n1: the GPUs of 2 ranks did not meet\n"


def start(rank: int, port: int, folder: Path, *args: str) -> subprocess.Popen[str]:
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": str(rank)}
    variables |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        [sys.executable, "-m", "lit_trainer", "doctor", *args],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
    )


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


@pytest.mark.slow
def test_ranks_meet_and_what_differs_is_named(tmp_path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    port, here = free_port(), socket.gethostname()
    both = [start(0, port, tmp_path), start(1, port, other)]
    first, second = (process.communicate(timeout=120)[0] for process in both)
    assert [process.returncode for process in both] == [0, 0], first + second
    assert f"look  {here}: folder: working folder is {other} on {here} (rank 1), {tmp_path} on {here} (rank 0)" in first
    assert f"{here}: 2 ranks meet; an all-reduce of 4 KiB takes" in first
    assert f"ok    {here}: all nodes have the same code, packages, settings and data" in first
    assert "ok  " not in second, "that all is well one rank says for all"


@pytest.mark.slow
def test_a_rank_that_stays_alone_says_so_in_seconds(tmp_path) -> None:
    begun = time.monotonic()
    port = free_port()
    both = [start(0, port, tmp_path, "--seconds", "3"), start(1, free_port(), tmp_path, "--seconds", "3")]
    first, second = (process.communicate(timeout=90)[0] for process in both)
    assert [process.returncode for process in both] == [1, 1]
    assert f"rank 1 of 2 did not come to 127.0.0.1:{port} within 3 s: is each of them started" in first
    assert "rank 1 could not meet rank 0 at 127.0.0.1:" in second
    assert "nobody listens there" in second
    assert time.monotonic() - begun < 60
