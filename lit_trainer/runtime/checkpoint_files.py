"""Checkpoint files that are whole or absent: written atomically, read back at once, checked when they are loaded.

A checkpoint is a zip archive that holds a CRC-32 of each of its parts. Torch writes these sums but never looks at
them again, so a flipped bit goes unnoticed into the weights. Here a file is loaded only when its sums are right.
"""

import io
import logging
import os
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

_log = logging.getLogger(__name__)


class DamagedCheckpointError(ValueError):
    """A checkpoint file that is torn, altered or not a checkpoint at all."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place, flushes it to the disk, reads it back and only then moves it there.

    Whatever goes wrong on the way, a full disk or a kill, the file that was there before stays as it was. Remote paths
    (``s3://...``) are left to Lightning.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        """Writes a checkpoint.

        Args:
            checkpoint: What to write: plain data and tensors.
            path: Where to; its folder is made.
            storage_options: For remote paths only.

        Raises:
            ValueError: If the checkpoint holds something that could not be loaded again.
            OSError: If it cannot be written, with the disk full for instance.
        """
        if storage_options is not None or _is_remote(path):
            super().save_checkpoint(checkpoint, str(path), storage_options)
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.part")
        try:
            _write(checkpoint, partial)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        _sync_folder(target.parent)

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any = "cpu", weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Loads a checkpoint whose every byte is as it was written.

        Args:
            path: The file.
            map_location: Where its tensors go, as `torch.load` takes it.
            weights_only: Whether only plain data and tensors are allowed in it; None means yes.

        Raises:
            FileNotFoundError: If there is no such file.
            DamagedCheckpointError: If the file is torn or altered.
        """
        weights_only = True if weights_only is None else weights_only
        if _is_remote(path):
            loaded: dict[str, Any] = super().load_checkpoint(str(path), map_location, weights_only)
            return loaded
        file = Path(path)
        if not file.exists():
            raise FileNotFoundError(f"there is no checkpoint {file}")
        if fault := find_fault(file):
            before = newest_valid(file.parent)
            advice = f"the newest whole one beside it is {before}" if before else "no other in its folder is whole"
            raise DamagedCheckpointError(f"the checkpoint {file} {fault}; {advice}")
        checkpoint: dict[str, Any] = torch.load(file, map_location=map_location, weights_only=weights_only)
        return checkpoint


def find_fault(path: Path) -> str | None:
    """Reads a whole checkpoint file and says what is wrong with it, or None when nothing is.

    Args:
        path: A file as `torch.save` writes it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except Exception as error:  # damage to the archive's directory comes out as any of a dozen types
        return f"is torn or not a checkpoint ({error})"
    if damaged:
        return f"is damaged (its part {damaged} fails its checksum)"
    try:
        torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError:  # whole, but not plain data: not for here to say
        return None
    except Exception as error:  # torch is stricter about the directory than zipfile
        return f"is damaged ({str(error).splitlines()[0]})"
    return None


def newest_valid(folder: str | os.PathLike[str], resumable: bool = True) -> Path | None:
    """Finds the whole checkpoint with the most optimizer steps in a folder, and of two equal ones the later file.

    Each damaged one that would have come before is named in a warning. None when there is none, or no folder.

    Args:
        folder: Where to look for ``*.ckpt`` files, not deeper.
        resumable: Whether one without optimizer state is passed over.
    """
    found: list[tuple[int, int, Path]] = []
    for path in Path(folder).glob("*.ckpt"):
        try:
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            step, complete = int(content["global_step"]), "optimizer_states" in content
        except Exception as error:  # whatever torch makes of such a file, it is no checkpoint
            _log.warning("passed over %s: it is torn or not a checkpoint (%s)", path, str(error).splitlines()[0])
            continue
        if complete or not resumable:
            found.append((step, path.stat().st_mtime_ns, path))
    for _, _, path in sorted(found, reverse=True):
        fault = find_fault(path)
        if fault is None:
            return path
        _log.warning("passed over %s: it %s", path, fault)
    return None


def _is_remote(path: str | os.PathLike[str]) -> bool:
    return "://" in str(path)


def _write(checkpoint: dict[str, Any], path: Path) -> None:
    """Writes a checkpoint to the disk and opens it again as a resume would."""
    try:
        with path.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        if cause := _cause(error):
            reason = f"the checkpoint could not be written: {cause.strerror}; the files before it are untouched"
            raise OSError(cause.errno, reason, str(path)) from error
        culprits = list(_not_plain(checkpoint))
        if not culprits:
            raise
        raise ValueError(
            f"this checkpoint could not be loaded again: {', '.join(culprits)}. A checkpoint holds plain data only"
            " (numbers, strings, lists, dicts, tensors): leave such an argument out with"
            " save_hyperparameters(ignore=[...]) or keep its plain form"
        ) from error


def _cause(error: BaseException | None) -> OSError | None:
    """Finds the system's error, which the writer of torch turns into a RuntimeError of its own."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error


def _not_plain(value: Any, where: str = "") -> Iterator[str]:
    """Names the parts of a checkpoint that do not load with ``weights_only=True``."""
    if isinstance(value, dict | list | tuple) and type(value) in (dict, list, tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _not_plain(item, f"{where}.{key}" if where else str(key))
            if isinstance(value, dict) and not _loads(key):
                yield f"the key {key!r} of {where or 'the checkpoint'} is a {_type_name(key)}"
    elif not _loads(value):
        yield f"{where} is a {_type_name(value)}"


def _loads(value: Any) -> bool:
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except Exception:  # a value that does not even pickle is as unwelcome as one that does not load
        return False
    return True


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _sync_folder(folder: Path) -> None:
    """Makes the new name itself outlast a power cut, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
