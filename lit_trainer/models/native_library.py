"""Compiles a C++ file once for the processor it runs on and loads it, where there is a compiler.

A shared library of plain C functions needs no headers of torch: it compiles in a second, loads in a millisecond and
costs a few microseconds a call. It links the OpenMP that torch has already loaded, so both share one pool of threads.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

# The first set of flags that compiles is used. No -ffast-math: linking with it changes how the whole process rounds.
_FLAGS = (
    ["-O3", "-march=native", "-fopenmp"],
    ["-O3", "-march=native"],
    ["-O3"],
)
_ALWAYS = ["-std=c++17", "-fno-math-errno", "-fno-trapping-math", "-Wno-unknown-pragmas", "-shared", "-fPIC"]
_TIMEOUT_SECONDS = 120


def load(source: Path) -> ctypes.CDLL | None:
    """Returns the compiled library, from the user's cache where another run has left it, or None.

    Args:
        source: The C++ file. The cache knows it by its text, the compiler and the processor.
    """
    compiler = _compiler()
    if compiler is None or os.name != "posix":
        return None
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lit_trainer"
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        library = cache / f"{source.stem}-{_fingerprint(source, compiler)}.so"
        if not library.exists():
            with tempfile.TemporaryDirectory(dir=cache) as folder:  # renamed into place whole: ranks may race
                _compile(compiler, source, Path(folder) / library.name).replace(library)
        return ctypes.CDLL(str(library))
    except (OSError, RuntimeError):
        pass  # no home, a full or read-only disk: compile for this process alone
    try:
        with tempfile.TemporaryDirectory() as folder:
            return ctypes.CDLL(str(_compile(compiler, source, Path(folder) / f"{source.stem}.so")))
    except (OSError, RuntimeError):
        return None


def _compiler() -> str | None:
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and (path := shutil.which(name)):
            return path
    return None


def _compile(compiler: str, source: Path, target: Path) -> Path:
    for flags in _FLAGS:
        command = [compiler, *flags, *_ALWAYS, str(source), "-o", str(target)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            break
        if done.returncode == 0:
            return target
    raise RuntimeError(f"{compiler} does not compile {source}")


def _fingerprint(source: Path, compiler: str) -> str:
    """Tells apart what must not share a library: a home folder may serve machines of several kinds."""
    seen = hashlib.sha256(source.read_bytes())
    seen.update(repr((compiler, Path(compiler).stat().st_mtime_ns, _FLAGS, _ALWAYS, platform.machine())).encode())
    cpu = Path("/proc/cpuinfo")
    if cpu.exists():
        lines = cpu.read_text().split("\n\n", 1)[0].splitlines()
        kept = [line for line in lines if line.split("\t")[0] in {"flags", "Features", "model name", "CPU part"}]
        seen.update("\n".join(kept).encode())
    else:
        seen.update(platform.processor().encode())
    return seen.hexdigest()[:16]
