"""What keeps training from working is said in one line each, with what to do."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest

from lit_trainer import doctor
from lit_trainer.cli import main

Usage = namedtuple("Usage", ["total", "used", "free"])


def kinds(findings) -> list[str]:
    return [finding.kind for finding in findings]


def only(findings) -> tuple[str, str]:
    (finding,) = findings
    return finding.kind, finding.text


def test_a_machine_that_is_fine_is_told_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["doctor", "--folder", str(tmp_path / "runs")])
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert not [line for line in lines if line.startswith("wrong")]
    assert not (tmp_path / "runs").exists(), "it leaves nothing behind"


def test_what_is_wrong_is_the_exit_code(monkeypatch, capsys) -> None:
    monkeypatch.setattr(doctor, "examine", lambda *_: iter([doctor.Finding("wrong", "no: do this")]))
    with pytest.raises(SystemExit) as end:
        main(["doctor"])
    assert end.value.code == 1
    assert capsys.readouterr().out == "wrong no: do this\n"


def test_a_check_that_fails_keeps_no_other_from_telling(monkeypatch, tmp_path) -> None:
    def fails() -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(doctor, "shared_memory", fails)
    findings = list(doctor.examine(tmp_path))
    assert doctor.Finding("look", "RuntimeError: no such thing: this could not be checked") in findings
    assert len(findings) > 3


def test_the_other_name_of_lightning_is_found(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.py").write_text("from pytorch_lightning import LightningModule\n")
    assert "task.py: imports pytorch_lightning" in next(f.text for f in doctor.versions() if f.kind == "wrong")


def test_a_full_disk_and_a_small_shared_memory_are_worth_a_look(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(64 * 2**20, 0, 2**20))
    assert only(doctor.writable(tmp_path))[0] == "look"
    kind, text = only(doctor.shared_memory(tmp_path))
    assert kind == "look"
    assert text.endswith("has 64 MiB: workers may die of a bus error; start a container with --ipc=host or"
                         " --shm-size=8g, or keep data.num_workers at 0")  # fmt: skip


def test_a_folder_that_cannot_be_written_is_wrong(tmp_path, monkeypatch) -> None:
    def refuse(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    assert only(doctor.writable(tmp_path)) == (
        "wrong", f"nothing can be written in {tmp_path} (Read-only file system): set trainer.default_root_dir"
    )  # fmt: skip


def test_more_threads_than_cores_are_worth_a_look() -> None:
    assert only(doctor.cores({"OMP_NUM_THREADS": "64", "SLURM_CPUS_PER_TASK": "1"})) == (
        "look", "OMP_NUM_THREADS is 64 but this process has 1 cores: set it to that at most"
    )  # fmt: skip
    assert kinds(doctor.cores({"OMP_NUM_THREADS": "1"})) == ["ok"]


JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NAME": "train",
    "SLURM_NTASKS": "4",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_NNODES": "2",
}


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"SLURM_JOB_NAME": "bash"}, "the job's name is bash, one of bash and interactive: Lightning takes it for a"),
        (
            {"SLURM_STEP_ID": ""},
            "4 tasks but no srun: this process would wait for ever for the others; put srun before",
        ),
        ({"SLURM_NTASKS_PER_NODE": ""}, "the job was made with --ntasks alone, which Lightning refuses"),
        ({"SLURM_NTASKS_PER_NODE": "4"}, "trainer.devices is 2 but --ntasks-per-node is 4: make them equal"),
        ({"SLURM_NNODES": "1"}, "trainer.num_nodes is 2 but --nodes is 1: make them equal"),
    ],
)
def test_a_job_that_training_could_not_run_in_is_wrong(monkeypatch, variables, message) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    job = {name: value for name, value in {**JOB, **variables}.items() if value}
    wrong = [finding.text for finding in doctor.job(2, 2, job) if finding.kind == "wrong"]
    assert len(wrong) == 1
    assert wrong[0].startswith(message)
    assert kinds(doctor.job(2, 2, JOB)) == ["ok"]


def test_an_address_that_nobody_knows_is_wrong() -> None:
    kind, text = only(doctor.meeting_place({"MASTER_ADDR": "no.such.host.invalid"}))
    assert kind == "wrong"
    assert text.startswith("MASTER_ADDR no.such.host.invalid has no address here")


def test_an_address_that_means_another_machine_on_each_is_worth_a_look(monkeypatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "n1")
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    first, second = doctor.meeting_place({"MASTER_ADDR": "n1", "SLURM_NNODES": "2"})
    assert first.kind == "look"
    assert first.text.startswith("MASTER_ADDR n1 is 127.0.1.1 on its own node, where no other node can reach it")
    assert second.kind == "ok"


def test_a_port_in_use_is_wrong() -> None:
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        port = server.getsockname()[1]
        kind, text = only(doctor.meeting_place({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}))
    assert kind == "wrong"
    assert text.startswith(f"MASTER_PORT {port} cannot be used")


def start(rank: int, port: int, folder: Path) -> subprocess.Popen[str]:
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": str(rank)}
    code = "from lit_trainer import doctor\nfor found in doctor.ranks(8.0): print(found.kind, found.text)"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **variables, "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
    )


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


@pytest.mark.slow
def test_ranks_meet_and_what_differs_is_named(tmp_path) -> None:
    (tmp_path / "other").mkdir()
    port = free_port()
    both = [start(0, port, tmp_path), start(1, port, tmp_path / "other")]
    first, second = (process.communicate(timeout=90)[0].splitlines() for process in both)
    assert first[0] == (
        f"wrong working folder: rank 1 on {socket.gethostname()} has another than rank 0 on {socket.gethostname()};"
        " give all nodes the same one"
    )
    assert "2 ranks meet; an all-reduce takes" in first[1]
    assert second == []


@pytest.mark.slow
def test_a_rank_that_stays_alone_says_so_in_seconds(tmp_path) -> None:
    begun = time.monotonic()
    said = start(0, free_port(), tmp_path).communicate(timeout=90)[0]
    assert said.startswith("wrong rank 0 could not meet the others at tcp://127.0.0.1:")
    assert time.monotonic() - begun < 60
