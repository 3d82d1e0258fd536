"""What a run notes about itself, beside its settings and metrics: a small JSON file in its folder."""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Self

FILE_NAME: Final = "run.json"
"""What the file is called in the folder of a run."""

VERSION: Final = 1
"""The version of the file. It is raised when an older reader would misread it."""


@dataclass
class RunNotes:
    """What happened to a run, and on what.

    Args:
        command: The first thing that it did: fit, validate or test.
        status: ``running``, ``finished``, ``interrupted`` or ``failed``; one that was killed stays ``running``.
        reason: Why it stopped early, or what it failed of.
        started: When, as ISO 8601 has it.
        ended: When.
        seconds: How long training took, with its evaluations.
        step: Optimizer steps that were done.
        num_steps: Optimizer steps that there were to be, if that is known.
        model: The class of the model.
        num_parameters: Its numbers.
        num_trained_parameters: Those of them that are trained.
        devices: What it ran on, in words.
        precision: What it computed in.
        versions: Of Python and of packages, by name.
        best: The best evaluation: ``step``, ``monitor`` and ``score``.
        baseline: The metrics of always giving the average label, by name.
        data: What the check of the data found, as `lit_trainer.data.report.Report.as_dict` gives it.
    """

    command: str = "fit"
    status: str = "running"
    reason: str | None = None
    started: str | None = None
    ended: str | None = None
    seconds: float | None = None
    step: int | None = None
    num_steps: int | None = None
    model: str | None = None
    num_parameters: int | None = None
    num_trained_parameters: int | None = None
    devices: str | None = None
    precision: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    best: dict[str, Any] | None = None
    baseline: dict[str, float] = field(default_factory=dict)
    data: dict[str, Any] | None = None

    def save(self, folder: Path) -> None:
        """Writes the file, whole or not at all.

        Args:
            folder: That of the run.
        """
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{FILE_NAME}.partial"
        text = json.dumps({"version": VERSION, **asdict(self)}, indent=2, ensure_ascii=False, default=str)
        partial.write_text(text + "\n", encoding="utf-8")
        partial.replace(folder / FILE_NAME)

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Reads the file; None where there is none.

        Args:
            folder: That of the run.

        Raises:
            ValueError: If it holds something else, or was written by a newer version.
        """
        path = folder / FILE_NAME
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if (version := data.pop("version")) > VERSION:
                raise ValueError(f"its version is {version}; this lit_trainer reads up to {VERSION}")
            known = {each.name for each in fields(cls)}
            return cls(**{name: value for name, value in data.items() if name in known})
        except FileNotFoundError:
            return None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} does not tell about a run: {error}") from error
