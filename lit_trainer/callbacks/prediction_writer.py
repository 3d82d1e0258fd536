"""Predictions of any number of rows, written once each and in data-set order while they are made."""

import logging
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from lightning.pytorch.callbacks import Callback
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics.utilities.distributed import gather_all_tensors

from lit_trainer.batch import ROW
from lit_trainer.callbacks.table_files import TableFile
from lit_trainer.decision.columns import predicted_columns
from lit_trainer.decision.rule import DecisionRule

_log = logging.getLogger(__name__)

_BATCHES_AT_ONCE = 16
"""How many batches stay on the device until they are brought to the host together: to do so waits for the device."""


class PredictionWriter(Callback):
    """Writes what `Trainer.predict` predicts to one table, row by row in the order of the data.

    The columns are those of the data, ``row`` (the row's number) and, for classes, ``label`` and the probability of
    each class as ``probability_<name>``; for several classes at once ``labels`` is a list; for values there is
    ``value``. A column of the data that has one of these names is kept as ``data_<name>``. Ranks bring their rows to
    the first one as they go, so that memory does not grow with the number of rows.

    Args:
        path: The file, which ends in .csv, .jsonl or .parquet; an existing one is replaced once all rows are there.
        columns: The data's columns to keep beside the predictions; all if not given.

    Raises:
        ValueError: If the file cannot be written, a column is not there, or a row is predicted more than once.
    """

    def __init__(self, path: str = "predictions.csv", columns: list[str] | None = None) -> None:
        self.path, self.columns = path, columns
        self._file: TableFile | None = None
        self._on_device: list[tuple[Tensor, Tensor]] = []
        self._waiting: dict[int, NDArray[np.float64]] = {}
        self._next = 0
        self._renamed: dict[str, str] = {}

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Opens the file, before anything is computed."""
        self._on_device, self._waiting, self._next, self._renamed = [], {}, 0, {}
        table = self._table(trainer)
        missing = sorted(set(self.columns or ()) - set(table.column_names))
        if missing:
            raise ValueError(
                f"predictions.columns: no column {', '.join(missing)}; there are {', '.join(table.column_names)}"
            )
        if trainer.is_global_zero:
            self._file = TableFile(self.path).__enter__()

    def on_predict_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keeps what was found, and now and then hands on what was kept."""
        self._on_device.append((outputs[ROW], outputs["logits"]))
        if len(self._on_device) == _BATCHES_AT_ONCE:
            self._hand_on(trainer, pl_module)

    def on_predict_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Hands on the last rows."""
        if self._on_device:
            self._hand_on(trainer, pl_module)

    def _hand_on(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Brings rows to the first rank, which writes those whose turn it is. All ranks have as many batches."""
        rows, logits = (torch.cat(column) for column in zip(*self._on_device, strict=True))
        self._on_device, logits = [], logits.double()
        if trainer.world_size > 1:
            rows, logits = torch.cat(gather_all_tensors(rows)), torch.cat(gather_all_tensors(logits))
        if self._file is None:
            return
        for row, values in zip(rows.tolist(), logits.cpu().numpy(), strict=True):
            if row < 0:
                continue
            if row < self._next or row in self._waiting:
                raise ValueError(f"row {row} was predicted more than once")
            self._waiting[row] = values
        due: list[NDArray[np.float64]] = []
        while self._next + len(due) in self._waiting:
            due.append(self._waiting.pop(self._next + len(due)))
        if due:
            self._file.write(self._records(trainer, pl_module, np.stack(due)))
            self._next += len(due)

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Completes the file."""
        if self._file is not None:
            file, self._file = self._file, None
            file.__exit__(None, None, None)
            _log.info("Wrote %s rows to %s", f"{self._next:,}", self.path)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Removes an incomplete file; one that was there before stays."""
        if self._file is not None:
            file, self._file = self._file, None
            file.__exit__(type(exception), exception, exception.__traceback__)

    @staticmethod
    def _table(trainer: pl.Trainer) -> Dataset:
        table: Dataset = trainer.datamodule.predict_table  # type: ignore[attr-defined]
        return table

    def _records(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, logits: NDArray[np.float64]
    ) -> pa.RecordBatch:
        """Makes the next rows of the table, the data's columns first."""
        numbers = np.arange(self._next, self._next + len(logits))
        table = self._table(trainer)
        kept = table.select_columns(self.columns if self.columns is not None else table.column_names)
        rule: DecisionRule | None = pl_module.decision_rule  # type: ignore[assignment]
        predicted = predicted_columns(logits, rule)
        if self._next == 0:
            self._renamed = _renamed(kept.column_names, {"row", *predicted})
            for name, new in self._renamed.items():
                _log.info("The data's column %s is written as %s, beside the prediction of that name", name, new)
        of_data = kept.with_format(None)[self._next : self._next + len(logits)]
        columns = {self._renamed.get(name, name): values for name, values in of_data.items()}
        return pa.RecordBatch.from_pydict({"row": numbers, **columns, **predicted})


def _renamed(names: list[str], taken: set[str]) -> dict[str, str]:
    """Returns new names for those of the data's columns whose names are taken."""
    new: dict[str, str] = {}
    for name in names:
        if name in taken:
            new[name] = f"data_{name}"
            while new[name] in {*names, *taken}:
                new[name] = f"data_{new[name]}"
    return new
