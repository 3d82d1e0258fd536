"""The run that a pre-flight is for, as far as its settings are known."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class IntendedRun:
    """What training is to have; None, or nothing, is not known and not to be compared.

    Args:
        folder: Where runs are to be written.
        devices: Processes on each node.
        num_nodes: Nodes.
        num_workers: Processes of each process that load data.
        uses_gpus: Whether it trains on GPUs; None where it does if there are any.
        settings: All settings by dotted key, as on the command line.
    """

    folder: Path = Path("runs")
    devices: int | None = None
    num_nodes: int | None = None
    num_workers: int | None = None
    uses_gpus: bool | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> "IntendedRun":
        """Reads it from the settings.

        Args:
            settings: By dotted key, as on the command line.
        """
        accelerator = str(settings.get("trainer.accelerator"))
        return cls(
            folder=Path(str(settings.get("trainer.default_root_dir") or "runs")),
            devices=_count(settings.get("trainer.devices")),
            num_nodes=_count(settings.get("trainer.num_nodes")),
            num_workers=_count(settings.get("data.num_workers")),
            uses_gpus={"cpu": False, "gpu": True, "cuda": True}.get(accelerator),
            settings=settings,
        )


def _count(value: Any) -> int | None:
    """Returns a number as settings have it: as such, as text or as a list of devices; None for ``auto`` and -1."""
    if isinstance(value, list):
        return len(value)
    text = str(value)
    if "," in text:
        return len([part for part in text.split(",") if part.strip()])
    return int(text) if text.isdigit() else None
