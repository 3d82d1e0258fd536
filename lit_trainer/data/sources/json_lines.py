"""Rows of JSON Lines: one object a line."""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from datasets import DatasetDict

from lit_trainer.data.sources.base import Source
from lit_trainer.data.sources.files import DataFile, FilePath, Files, check_encoding, find_files
from lit_trainer.data.sources.tables import load_files, table_of


class JSONLines(Source):
    """Rows of JSON Lines files, one object a line. A key that a line lacks is missing there.

    Args:
        files: One path, several, or those of each split by its name. A path may have wildcards, be a wheel's member,
            and end in .gz, .bz2, .xz or .zip (with one file in it).
        root: A folder or zip file that the paths start from.
        encoding: Of the text.

    Raises:
        ValueError: If there is no such encoding.
    """

    def __init__(self, files: Files, root: FilePath | None = None, encoding: str = "utf-8") -> None:
        self.files, self.root, self.encoding = files, root, check_encoding(encoding)

    def load(self) -> DatasetDict:
        """Returns the rows of each split."""
        return load_files(find_files(self.files, self.root), [type(self).__name__, self.encoding], self._read)

    def _read(self, files: list[DataFile]) -> Iterator[pa.RecordBatch]:
        # All at once: the type of a column is known only when its last row is.
        columns: dict[str, list[Any]] = {}
        num_rows = 0
        for file in files:
            for row in self._rows(file):
                for name in row:
                    columns.setdefault(name, [None] * num_rows)
                for name, values in columns.items():
                    values.append(row.get(name))
                num_rows += 1
        yield from table_of(columns).to_batches()

    def _rows(self, file: DataFile) -> Iterator[dict[str, Any]]:
        with file.open_text(self.encoding, "strict") as text:
            for number, line in enumerate(text, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except json.JSONDecodeError as error:
                    raise ValueError(
                        f"{file}, line {number}: no valid JSON, {error.msg} at character {error.pos}"
                    ) from None
                if not isinstance(row, dict):
                    raise ValueError(
                        f'{file}, line {number}: not an object such as {{"text": "..."}}, one for each line'
                    )
                yield row
