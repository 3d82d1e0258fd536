"""A folder gets into the cache whole or not at all."""

import errno
import os
from pathlib import Path

import pytest

from lit_trainer.cache import build_once, cache_folder


def write(folder: Path, text: str = "whole") -> None:
    (folder / "file").write_text(text)


def is_whole(folder: Path) -> bool:
    return (folder / "file").exists() and (folder / "file").read_text() == "whole"


def test_the_environment_moves_it(monkeypatch, tmp_path):
    monkeypatch.setenv("LIT_TRAINER_CACHE", "~/there")
    assert cache_folder() == Path.home() / "there"
    monkeypatch.setenv("LIT_TRAINER_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the specification says to ignore
    assert cache_folder() == Path.home() / ".cache" / "lit_trainer"


def test_what_is_there_is_not_built_again(tmp_path):
    build_once(tmp_path / "entry", write)
    build_once(tmp_path / "entry", lambda _: pytest.fail("it is built again"))
    assert is_whole(tmp_path / "entry")


def test_a_build_that_fails_leaves_nothing(tmp_path):
    def fail(folder: Path) -> None:
        write(folder, "half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once(tmp_path / "entry", fail)
    assert [path.name for path in tmp_path.iterdir()] == [".entry.lock"]
    build_once(tmp_path / "entry", write)
    assert is_whole(tmp_path / "entry")


def test_a_full_disk_says_how_to_move_the_cache(tmp_path):
    def fill(folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ValueError, match=r"\(No space left on device\): set LIT_TRAINER_CACHE to a folder that can"):
        build_once(tmp_path / "entry", fill)


def test_what_is_not_whole_is_replaced(tmp_path):
    (tmp_path / "entry").mkdir()
    write(tmp_path / "entry", "half")
    build_once(tmp_path / "entry", write, is_whole)
    assert is_whole(tmp_path / "entry")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".entry.lock", "entry"]


def test_without_a_lock_the_first_to_finish_wins(tmp_path):
    def lose(folder: Path) -> None:
        (tmp_path / "entry").mkdir()
        write(tmp_path / "entry")
        (tmp_path / "entry" / "first").touch()
        write(folder)

    build_once(tmp_path / "entry", lose)
    assert (tmp_path / "entry" / "first").exists()


def test_others_may_read_what_is_shared(tmp_path):
    before = os.umask(0o022)
    try:
        build_once(tmp_path / "entry", write)
    finally:
        os.umask(before)
    assert (tmp_path / "entry").stat().st_mode & 0o777 == 0o755
