"""What a run has left behind: its metrics, what it cost, and the test rows with what the model said of them."""

import csv
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from lit_trainer.decision.probabilities import Integers
from lit_trainer.reporting.scores import SplitScores, scores_path
from lit_trainer.studies.run_files import COST_FILE

_FINISHED = "finished.json"


class UnfinishedError(ValueError):
    """A run that lacks what a comparison needs."""


@dataclass(frozen=True)
class FinishedRun:
    """A run that came to its end and was tested.

    Args:
        folder: The run's folder.
        metrics: Those of the test, by name without ``test/``.
        cost: What the recorder wrote.
    """

    folder: Path
    metrics: Mapping[str, float]
    cost: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads a run's own folder.

        Args:
            folder: Such as ``.../version_0``.

        Raises:
            UnfinishedError: If it was not tested.
        """
        metrics: dict[str, float] = {}
        try:
            with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    metrics |= {name: float(value) for name, value in row.items() if name != "step" and value}
            cost = json.loads((folder / COST_FILE).read_text(encoding="utf-8"))
        except OSError as error:
            raise UnfinishedError(f"{error.filename} is not there: a comparison needs the loggers of the run") from None
        tested = {name.removeprefix("test/"): value for name, value in metrics.items() if name.startswith("test")}
        if not tested:
            raise UnfinishedError("it was not tested: is there a test split, and a checkpoint of the best evaluation?")
        return cls(folder, tested, cost)

    def note(self, parent: Path) -> None:
        """Notes in a folder that this is the run in it that has finished."""
        about = {"run": self.folder.name, "metrics": self.metrics, "cost": self.cost}
        partial = parent / f".{_FINISHED}.partial"
        partial.write_text(json.dumps(about, indent=1), encoding="utf-8")
        partial.replace(parent / _FINISHED)

    @classmethod
    def noted(cls, parent: Path) -> Self | None:
        """Returns the run in a folder that was noted to have finished, if it and its scores are still there."""
        try:
            about = json.loads((parent / _FINISHED).read_text(encoding="utf-8"))
            run = cls(parent / about["run"], about["metrics"], about["cost"])
        except (OSError, ValueError, KeyError):
            return None
        return run if run.folder.is_dir() else None

    @property
    def hardware(self) -> str:
        """What it computed on, as ``cpu, 2 threads a process`` or ``4 x NVIDIA H200``."""
        threads, device = self.cost["num_threads"], self.cost["device"]
        if device == "cpu":
            return f"cpu, {threads} thread{'s' * (threads != 1)} a process"
        return f"{self.cost['num_devices']} x {device}"

    def decisions(self) -> tuple[Integers, Integers] | None:
        """Returns, for the test rows that have a label, that and the most probable class, int64 ``[N]`` each.

        None where a row has not one class, or nothing was kept.
        """
        try:
            scores = SplitScores.load(scores_path(self.folder, "test"))
        except (OSError, ValueError):
            return None
        labels, logits = scores.labels, scores.logits
        if labels.dtype.kind != "i":
            return None
        decided = logits.argmax(1) if logits.shape[1] > 1 else (logits[:, 0] >= 0).astype(np.int64)
        counted = labels >= 0
        return labels[counted].astype(np.int64), decided[counted].astype(np.int64)


def newest_run(parent: Path) -> Path:
    """Returns the newest folder of a run in a folder, or that itself if there is none."""
    return max(parent.glob("version_*"), key=lambda path: int(path.name.partition("_")[2]), default=parent)


def remove_weights(folder: Path) -> None:
    """Removes checkpoints and the exported model of a run, which those of many runs would fill a disk with."""
    for name in ("checkpoints", "export"):
        shutil.rmtree(folder / name, ignore_errors=True)
