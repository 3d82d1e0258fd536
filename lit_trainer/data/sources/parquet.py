"""Rows of Parquet files."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import DatasetDict

from lit_trainer.data.sources.base import Source
from lit_trainer.data.sources.files import DataFile, FilePath, Files, find_files
from lit_trainer.data.sources.tables import load_files


class Parquet(Source):
    """Rows of Parquet files.

    Args:
        files: One path, several, or those of each split by its name. A path may have wildcards and be a wheel's member.
        root: A folder or zip file that the paths start from.
        columns: The columns to read; null for all.
    """

    def __init__(self, files: Files, root: FilePath | None = None, columns: list[str] | None = None) -> None:
        self.files, self.root, self.columns = files, root, columns

    def load(self) -> DatasetDict:
        """Returns the rows of each split."""
        return load_files(find_files(self.files, self.root), [type(self).__name__, self.columns], self._read)

    def _read(self, files: list[DataFile]) -> Iterator[pa.RecordBatch]:
        schema: pa.Schema | None = None
        for file in files:
            with file.open() as content:
                try:
                    table = pq.ParquetFile(content)
                    for batch in table.iter_batches(columns=self._columns(file, table.schema_arrow.names)):
                        plain = pa.Table.from_batches([batch]).unify_dictionaries()
                        schema = schema or _without_dictionaries(plain.schema)
                        yield from plain.select(schema.names).cast(schema).combine_chunks().to_batches()
                except (pa.ArrowException, KeyError) as error:
                    raise ValueError(f"{file} cannot be read: {str(error).splitlines()[0]}") from error

    def _columns(self, file: DataFile, there: list[str]) -> list[str]:
        unknown = [name for name in self.columns or [] if name not in there]
        if unknown:
            raise ValueError(f"columns: {file} has no column {', '.join(unknown)}, only {', '.join(there)}")
        return there if self.columns is None else self.columns


def _without_dictionaries(schema: pa.Schema) -> pa.Schema:
    """Returns the schema with plain values for the categories that pandas writes."""
    for number, column in enumerate(schema):
        if pa.types.is_dictionary(column.type):
            schema = schema.set(number, column.with_type(column.type.value_type))
    return schema
