from pathlib import Path

import pytest

from lit_trainer.models import native_library

SOURCE = 'extern "C" int doubled(int x) { return 2 * x; }\n'
needs_compiler = pytest.mark.skipif(native_library._compiler() is None, reason="no C++ compiler")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "doubling.cpp"
    path.write_text(SOURCE)
    return path


@needs_compiler
def test_compiles_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = native_library.load(source)
    assert first is not None
    assert first.doubled(21) == 42
    monkeypatch.setattr(native_library, "_compile", None)
    second = native_library.load(source)
    assert second is not None
    assert second.doubled(4) == 8


@needs_compiler
def test_another_text_is_another_library(source: Path) -> None:
    native_library.load(source)
    source.write_text(SOURCE.replace("2 * x", "3 * x"))
    library = native_library.load(source)
    assert library is not None
    assert library.doubled(21) == 63


@needs_compiler
def test_works_without_a_cache(source: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    library = native_library.load(source)
    assert library is not None
    assert library.doubled(21) == 42


def test_is_none_without_a_compiler(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert native_library.load(source) is None


def test_is_none_when_nothing_compiles(source: Path) -> None:
    source.write_text("this is no C++")
    assert native_library.load(source) is None
    assert not [path for path in (source.parent / "cache").rglob("*") if path.is_file()]


def test_is_none_when_the_compiler_hangs(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "slow++"
    compiler.write_text("#!/bin/sh\nsleep 30\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(native_library, "_TIMEOUT_SECONDS", 0.05)
    assert native_library.load(source) is None
