"""Writes down what a run cost."""

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from lit_trainer.studies.run_files import COST_FILE


class Recorder(pl.Callback):
    """Writes ``cost.json`` into the run's folder: what training took, and on what.

    ``train_seconds`` is that of the optimizer steps alone, without start, evaluations and checkpoints, and
    ``cpu_seconds`` the processor time within it, which is less where the machine did other work. ``peak_bytes`` is the
    most memory that this process had until training ended; of a GPU, what its tensors took there.
    """

    def __init__(self) -> None:
        self._seconds = self._cpu_seconds = 0.0
        self._begun = (0.0, 0.0)
        self._num_batches = 0

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """Starts the clock."""
        self._begun = _now(trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Stops the clock; what callbacks write after a step counts no more."""
        wall, cpu = _now(trainer)
        self._seconds += wall - self._begun[0]
        self._cpu_seconds += cpu - self._begun[1]
        self._num_batches += 1

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Writes the file."""
        device = trainer.strategy.root_device
        folder = trainer.log_dir or trainer.default_root_dir  # all ranks have to ask
        if not trainer.is_global_zero:
            return
        is_gpu = device.type == "cuda"
        cost = {
            "train_seconds": self._seconds,
            "cpu_seconds": self._cpu_seconds,
            "num_steps": trainer.global_step,
            "num_batches": self._num_batches,
            "peak_bytes": torch.cuda.max_memory_allocated(device) if is_gpu else _peak_of_process(),
            "device": torch.cuda.get_device_name(device) if is_gpu else device.type,
            "num_devices": trainer.world_size,
            "num_threads": torch.get_num_threads(),
        }
        Path(folder, COST_FILE).write_text(json.dumps(cost, indent=1), encoding="utf-8")


def _now(trainer: pl.Trainer) -> tuple[float, float]:
    """Returns the time of the clock and of the processor, once the device has done what it was given."""
    if trainer.strategy.root_device.type == "cuda":
        torch.cuda.synchronize(trainer.strategy.root_device)
    return time.perf_counter(), time.process_time()


def _peak_of_process() -> int:
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(kilobytes if sys.platform == "darwin" else kilobytes * 1024)
