"""The folder of a run, as far as it is there: settings, notes, metrics, scores and decision rule."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from lit_trainer.decision.rule import FILE_NAME as RULE_FILE
from lit_trainer.decision.rule import DecisionRule
from lit_trainer.reporting.notes import FILE_NAME as NOTES_FILE
from lit_trainer.reporting.notes import RunNotes
from lit_trainer.reporting.scores import FOLDER as SCORES_FOLDER
from lit_trainer.reporting.scores import SplitScores, scores_path
from lit_trainer.reporting.series import Series, read_series

SETTINGS_FILE = "config.yaml"
METRICS_FILE = "metrics.csv"

_SIGNS = (SETTINGS_FILE, METRICS_FILE, NOTES_FILE, SCORES_FOLDER)


@dataclass(frozen=True)
class Run:
    """What the folder of a run holds; what cannot be read is missing, and `problems` says why.

    Args:
        folder: The folder.
        settings_text: ``config.yaml``; empty if it is not there.
        notes: What the run notes about itself.
        series: What it has logged, by name.
        rule: The decision rule that it has fitted.
        scores: The rows of the test split, else of the best validation.
        problems: What could not be read, each in a line.
    """

    folder: Path
    settings_text: str = ""
    notes: RunNotes | None = None
    series: dict[str, Series] = field(default_factory=dict)
    rule: DecisionRule | None = None
    scores: SplitScores | None = None
    problems: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Reads the folder.

        Args:
            folder: That of a run.

        Raises:
            ValueError: If it is none.
        """
        _check_is_run(folder)
        problems: list[str] = []

        def attempt(read: Any, *arguments: Any) -> Any:
            try:
                return read(*arguments)
            except FileNotFoundError:
                return None
            except (OSError, ValueError) as error:
                problems.append(" ".join(str(error).split()))
                return None

        scores = None
        for split in ("test", "validation"):
            scores = scores or attempt(SplitScores.load, scores_path(folder, split))
        return cls(
            folder,
            attempt(_text, folder / SETTINGS_FILE) or "",
            attempt(RunNotes.load, folder),
            attempt(read_series, folder / METRICS_FILE) or {},
            attempt(DecisionRule.load, folder / RULE_FILE),
            scores,
            tuple(problems),
        )

    @property
    def name(self) -> str:
        """The folder and the one it is in, such as ``sms_spam_minilm/version_0``."""
        return "/".join(self.folder.absolute().parts[-2:])

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings; empty if there are none, or none that can be read."""
        try:
            read = yaml.safe_load(self.settings_text)
        except yaml.YAMLError:
            return {}
        return read if isinstance(read, dict) else {}

    @property
    def best_step(self) -> int | None:
        """The optimizer step of the best evaluation, if it is known."""
        best = (self.notes and self.notes.best) or {}
        step = best.get("step")
        if step is None and self.scores is not None:
            step = self.scores.step
        return step if isinstance(step, int) else None

    def last(self, prefix: str) -> dict[str, float]:
        """Returns the last values of the metrics whose names begin with a prefix, without it."""
        found = {name.removeprefix(prefix): each.last for name, each in self.series.items() if name.startswith(prefix)}
        return {name: found[name] for name in sorted(found, key=lambda name: (name == "loss", "/" in name))}


def _check_is_run(folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; give that of a run, such as runs/NAME/version_0")
    if any((folder / sign).exists() for sign in _SIGNS):
        return
    runs = sorted(
        {path.parent for sign in _SIGNS for path in folder.glob(f"version_*/{sign}")},
        key=lambda run: int(number) if (number := run.name.removeprefix("version_")).isdigit() else -1,
    )
    hint = f"; the newest one in it is {runs[-1]}" if runs else f": it has neither {SETTINGS_FILE} nor {METRICS_FILE}"
    raise ValueError(f"{folder} is not the folder of a run{hint}")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
