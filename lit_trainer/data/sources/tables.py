"""From columns in memory, or batches read from files, to a table; what is read from files is kept for the next time."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from datasets import Dataset, DatasetDict
from datasets.table import MemoryMappedTable

from lit_trainer import __version__
from lit_trainer.cache import build_once, cache_folder
from lit_trainer.data.labels import is_missing, label_name
from lit_trainer.data.sources.files import DataFile

Reader: TypeAlias = Callable[[list[DataFile]], Iterator[pa.RecordBatch]]


def table_of(columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    """Makes a table of columns. A column that mixes text and numbers, such as "1" and 1, becomes text.

    Raises:
        ValueError: If a column holds what no table can.
    """
    arrays = {}
    for name, values in columns.items():
        try:
            arrays[name] = pa.array(values, from_pandas=True)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
            try:
                arrays[name] = pa.array(
                    [None if is_missing(value) else label_name(value) for value in values], pa.string()
                )
            except ValueError:
                raise ValueError(f"the column {name!r} mixes what no column can hold together: {error}") from error
    return pa.table(arrays)


def load_files(files: Mapping[str, list[DataFile]], settings: Sequence[object], read: Reader) -> DatasetDict:
    """Reads the files of each split once; from then on the rows come, memory-mapped, from the cache folder.

    What is kept is named for the files' content and not for their names or dates: a file that has changed is read
    again, and processes that start together read it once between them.

    Args:
        files: The files of each split.
        settings: All that the reading depends on besides the files.
        read: Reads the files of a split, as batches that are alike in columns and types.

    Raises:
        ValueError: If a split has no rows, or cannot be read.
    """
    return DatasetDict({split: _load_split(split, own, settings, read) for split, own in files.items()})


def _load_split(split: str, files: list[DataFile], settings: Sequence[object], read: Reader) -> Dataset:
    digest = hashlib.sha256(repr((__version__, *settings)).encode())
    for file in files:
        with file.open(decompress=False) as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())  # type: ignore[arg-type]
        digest.update(Path(file.member or file.path).suffix.encode())
    key = digest.hexdigest()

    def build(folder: Path) -> None:
        batches = read(files)
        first = next((batch for batch in batches if len(batch)), None)
        if first is None:
            raise ValueError(f"the {split} split has no rows: {', '.join(map(str, files))}")
        with pa.ipc.new_stream(str(folder / "rows.arrow"), first.schema) as writer:
            writer.write_batch(first)
            for batch in batches:
                writer.write_batch(batch)

    folder = cache_folder() / "tables" / key
    build_once(folder, build)
    return Dataset(MemoryMappedTable.from_file(str(folder / "rows.arrow")), fingerprint=key)
