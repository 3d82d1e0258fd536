"""Tables that are written piece by piece: CSV, JSON Lines or Parquet by the name of the file, whole or not at all."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

SUFFIXES = (".csv", ".jsonl", ".parquet")


class TableFile:
    """A table that grows by record batches and stands under its name only once it is complete.

    Args:
        path: A name that ends in .csv, .jsonl or .parquet. A file that is there is replaced at the end.

    Raises:
        ValueError: If the name has another ending or the folder cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.suffix.lower() not in SUFFIXES:
            raise ValueError(f"predictions: {self.path} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
        self._partial = self.path.with_name(f".{self.path.name}.partial")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._partial.open("wb")
        except OSError as error:
            raise ValueError(f"predictions: {self.path} cannot be written ({error.strerror})") from error
        self._writer: Any = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Appends rows; all batches have the columns of the first."""
        if self._writer is None:
            self._writer = self._open(batch.schema)
        self._writer.write_batch(batch)

    def _open(self, schema: pa.Schema) -> Any:
        makers: dict[str, Callable[[], Any]] = {
            ".csv": lambda: pa.csv.CSVWriter(self._file, schema),
            ".parquet": lambda: pa.parquet.ParquetWriter(self._file, schema),
            ".jsonl": lambda: _JSONLinesWriter(self._file),
        }
        return makers[self.path.suffix.lower()]()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Puts the file in its place, or removes what was written of it."""
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            self._file.close()
            if kind is None:
                self._partial.replace(self.path)
            else:
                self._partial.unlink()


class _JSONLinesWriter:
    def __init__(self, file: Any) -> None:
        self._file = file

    def write_batch(self, batch: pa.RecordBatch) -> None:
        lines = (json.dumps(row, ensure_ascii=False, default=str) for row in batch.to_pylist())
        self._file.write("".join(f"{line}\n" for line in lines).encode())

    def close(self) -> None:
        """Leaves the file open: it belongs to the table."""
