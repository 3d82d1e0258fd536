"""From what people call a checkpoint (best, last, a run's folder, a file) to the file it is."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import lightning.pytorch as pl
import torch
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector

from lit_trainer.runtime.checkpoint_files import newest_valid
from lit_trainer.runtime.run_folder import SETTINGS_FILE

_log = logging.getLogger(__name__)

Kind: TypeAlias = Literal["best", "last"]


def find_checkpoint(given: str, kind: Kind, root: str | os.PathLike[str]) -> str:
    """Returns the path of a checkpoint file.

    Args:
        given: ``best`` or ``last`` of the newest run that has checkpoints; a run's folder; or a file, which may be
            remote (``s3://...``).
        kind: Which one of a run's folder is meant.
        root: Where the folders of runs are.

    Raises:
        ValueError: If there is none.
    """
    if "://" in given:
        return given
    if given in ("best", "last"):
        run = _newest_run(Path(root))
        if run is None:
            raise ValueError(f"ckpt_path is {given}, but no run in {root} (trainer.default_root_dir) has a checkpoint")
        found = _in_run(run, "best" if given == "best" else "last")
    elif Path(given).is_dir():
        found = _in_run(Path(given), kind)
    elif Path(given).exists():
        return given
    else:
        runs = ", ".join(str(run) for run in sorted(_runs(Path(root)))) or "none"
        raise ValueError(
            f"ckpt_path is {given}, but there is no such file or folder; it may be best, last, a file, or the folder of"
            f" a run (those in {root}: {runs})"
        )
    _log.info("Checkpoint: %s", found)
    return str(found)


def run_of(checkpoint: str) -> Path | None:
    """Returns the folder of the run that a checkpoint file belongs to, if that still has its settings."""
    folder = Path(checkpoint).parent.parent
    return folder if (folder / SETTINGS_FILE).is_file() else None


def _runs(root: Path) -> Iterator[Path]:
    """Yields the folders of runs that have a checkpoint."""
    for run in root.glob("version_*"):
        if any((run / "checkpoints").glob("*.ckpt")):
            yield run


def _newest_run(root: Path) -> Path | None:
    return max(_runs(root), key=lambda run: _latest(run / "checkpoints").stat().st_mtime_ns, default=None)


def _latest(folder: Path, pattern: str = "*.ckpt") -> Path:
    return max(folder.glob(pattern), key=lambda file: file.stat().st_mtime_ns)


def _in_run(run: Path, kind: Kind) -> Path:
    folder = run / "checkpoints" if (run / "checkpoints").is_dir() else run
    if not any(folder.glob("*.ckpt")):
        raise ValueError(f"ckpt_path: there is no checkpoint in {folder}")
    if kind == "best" and any(folder.glob("best*.ckpt")):
        return _best(folder)
    found = newest_valid(folder, resumable=kind == "last")
    if found is None:
        raise ValueError(f"ckpt_path: none of the checkpoints in {folder} is whole, with all that a resume needs")
    if kind == "best":
        _log.warning("no evaluation was kept as the best in %s; the newest checkpoint is taken", folder)
    return found


def _best(folder: Path) -> Path:
    """Returns the best of several: the last one written knows the order, as it was when it was written."""
    latest = _latest(folder, "best*.ckpt")
    content = torch.load(latest, map_location="cpu", weights_only=True, mmap=True)
    for state in content.get("callbacks", {}).values():
        if isinstance(state, dict) and "best_model_path" in state:
            best = folder / Path(state["best_model_path"]).name
            return best if best.is_file() else latest
    return latest


class ExplicitCheckpointConnector(_CheckpointConnector):
    """Loads what it is told to and nothing else.

    Under SLURM Lightning's own resumes any run, also a test, from any file ``hpc_ckpt_N.ckpt`` that a run before it has
    left in the root folder.
    """

    _hpc_resume_path = None

    @classmethod
    def install(cls, trainer: pl.Trainer) -> None:
        """Replaces the trainer's own."""
        trainer._checkpoint_connector = cls(trainer)
