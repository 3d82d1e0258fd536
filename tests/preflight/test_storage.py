"""A folder that cannot be written is told, and so is too little space in it or in shared memory."""

import shutil
from collections import namedtuple

from lit_trainer.preflight.storage import shared_memory, writable
from tests.preflight.told import kinds, only

Usage = namedtuple("Usage", ["total", "used", "free"])


def test_a_folder_that_is_not_there_yet_is_fine_and_stays_away(tmp_path) -> None:
    assert kinds(writable(tmp_path / "runs" / "new")) == ["ok"]
    assert not list(tmp_path.iterdir())


def test_a_full_disk_and_a_small_shared_memory_are_worth_a_look(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(64 * 2**20, 0, 2**20))
    assert only(writable(tmp_path))[0] == "look"
    assert only(shared_memory(place=tmp_path)) == (
        "look", f"{tmp_path} has 64 MiB, 1 MiB of it free: workers may die of a bus error; start a container with"
        " --ipc=host or --shm-size=8g, or keep data.num_workers at 0",
    )  # fmt: skip


def test_shared_memory_is_held_against_the_workers_of_all_processes(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**29, 0, 2**29))
    assert only(shared_memory(0, 8, tmp_path))[0] == "ok"
    assert only(shared_memory(2, 2, tmp_path))[0] == "ok"
    kind, text = only(shared_memory(2, 8, tmp_path))
    assert kind == "look"
    assert "16 workers may die" in text


def test_a_folder_that_cannot_be_written_is_wrong(tmp_path, monkeypatch) -> None:
    def refuse(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    assert only(writable(tmp_path)) == (
        "wrong", f"nothing can be written in {tmp_path} (Read-only file system): set trainer.default_root_dir"
    )  # fmt: skip


def test_a_file_in_the_place_of_the_folder_is_wrong(tmp_path) -> None:
    (tmp_path / "runs").touch()
    assert only(writable(tmp_path / "runs" / "films")) == (
        "wrong", f"{tmp_path / 'runs'} is a file, so that no run can be written there: set trainer.default_root_dir"
    )  # fmt: skip
