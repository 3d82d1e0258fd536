"""The cache folder, and how a folder gets into it: whole or not at all, however many processes ask at once."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

LOCATION = "LIT_TRAINER_CACHE"
"""The environment variable that moves the cache."""


def cache_folder() -> Path:
    """Returns the folder of all that can be fetched or made again: ``LIT_TRAINER_CACHE``, else in the XDG cache."""
    if chosen := os.environ.get(LOCATION):
        return Path(chosen).expanduser().absolute()
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "lit_trainer"


def build_once(folder: Path, build: Callable[[Path], None], is_whole: Callable[[Path], bool] = Path.exists) -> None:
    """Makes sure that a folder is there and whole.

    It is built beside its place and then renamed, so that nobody sees half of it. A lock makes the other processes
    wait for the first; where a file system has no locks, the first to finish wins and nothing breaks.

    Args:
        folder: The folder there shall be.
        build: Fills the new, empty folder that it is given.
        is_whole: Tells whether a folder is complete; one that is not is built anew and replaced.

    Raises:
        ValueError: If the cache folder cannot be written.
    """
    if is_whole(folder):
        return
    from filelock import FileLock  # here, so that a cache that is full costs no import

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f".{folder.name}.lock"):
            if not is_whole(folder):
                with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
                    fresh = Path(scratch) / "fresh"
                    fresh.mkdir()  # the scratch folder itself is for its owner alone, the cache may be shared
                    build(fresh)
                    _put(fresh, folder, Path(scratch) / "stale", is_whole)
    except OSError as error:
        raise ValueError(
            f"the cache folder {folder.parent} cannot be written ({error.strerror or error}): "
            f"set {LOCATION} to a folder that can"
        ) from error


def _put(fresh: Path, folder: Path, stale: Path, is_whole: Callable[[Path], bool]) -> None:
    """Renames `fresh` to `folder`; what stands there and is not whole is moved out of the way to `stale`."""
    try:
        fresh.rename(folder)
    except OSError:
        if is_whole(folder):
            return
        folder.rename(stale)
        fresh.rename(folder)
