"""The folder of a run: claimed by one process when its first file is due, and never given to another run."""

import csv
import os
import re
import sys
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from lightning.fabric.loggers.csv_logs import _ExperimentWriter
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.utilities import rank_zero_only

SETTINGS_FILE = "config.yaml"
"""What holds the settings of a run in its folder."""

_JOB_FILE = "slurm_job.txt"


class RunFolder:
    """The next free ``version_N`` of a root folder.

    It is made at first use. A SLURM job that was queued again gets the folder back that the same command had before.

    Args:
        root: Where the folders of runs are.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    @cached_property
    def path(self) -> Path:
        """The folder; on all ranks but the first, which alone claims one, the root."""
        if getattr(rank_zero_only, "rank", 0) != 0:
            return self.root
        before = folder_of_job(self.root)
        if before is not None:
            return before
        folder = _claim(self.root)
        if job := _slurm_job():
            (folder / _JOB_FILE).write_text(job, encoding="utf-8")
        return folder

    def release(self) -> None:
        """Gives back a folder in which nothing was written, so that a run that could not begin leaves none behind."""
        folder = self.__dict__.pop("path", self.root)
        if folder != self.root:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def folder_of_job(root: str | os.PathLike[str]) -> Path | None:
    """Returns the folder that this command of this SLURM job had before the job was queued again; None if it was not.

    Args:
        root: Where the folders of runs are.
    """
    job = _slurm_job()
    if not job or int(os.environ.get("SLURM_RESTART_COUNT") or 0) == 0:
        return None
    for file in sorted(Path(root).glob(f"version_*/{_JOB_FILE}"), key=lambda file: file.stat().st_mtime):
        if file.read_text(encoding="utf-8") == job:
            return file.parent
    return None


def _claim(root: Path) -> Path:
    """Makes the next folder. That it is made, not that it was free a moment ago, is what tells who owns it."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        taken = [int(match[1]) for path in root.iterdir() if (match := re.fullmatch(r"version_(\d+)", path.name))]
        number = max(taken, default=-1) + 1
        while True:
            folder = root / f"version_{number}"
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                number += 1
    except OSError as error:
        raise ValueError(f"trainer.default_root_dir: no folder can be made in {root}: {error.strerror}") from error


def _slurm_job() -> str | None:
    """Describes which command of which job this is, in words that stay the same when the job is queued again."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    name = f"{array}_{task}" if array and task else job
    return f"job {name}, step {os.environ.get('SLURM_STEP_ID', 'batch')}: {' '.join(sys.argv[1:])}\n"


class RunTensorBoardLogger(TensorBoardLogger):
    """Writes TensorBoard's files into a run's folder.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: RunFolder) -> None:
        super().__init__(save_dir=folder.root, name="", default_hp_metric=False)
        self._folder = folder

    @property
    def version(self) -> str:
        """The name of the run's folder."""
        return self._folder.path.name

    @rank_zero_only
    def save(self) -> None:
        """Writes what is still to be written; config.yaml holds the settings, so there is no hparams.yaml."""
        self.experiment.flush()


class RunCSVLogger(CSVLogger):
    """Writes ``metrics.csv`` into a run's folder and goes on with one that is there.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: RunFolder) -> None:
        super().__init__(save_dir=folder.root, name="")
        self._folder = folder

    @property
    def version(self) -> str:
        """The name of the run's folder."""
        return self._folder.path.name

    @property
    @rank_zero_experiment
    def experiment(self) -> _ExperimentWriter:
        """What writes the file."""
        if self._experiment is None:
            self._experiment = _ContinuedWriter(self.log_dir)
        return self._experiment


class _ContinuedWriter(ExperimentWriter):
    """Appends to the file of a run that was interrupted, where Lightning's own would remove it."""

    def _check_log_dir_exists(self) -> None:
        file = Path(self.metrics_file_path)
        if file.exists():
            with file.open(newline="", encoding="utf-8") as lines:
                self.metrics_keys = next(csv.reader(lines), [])
