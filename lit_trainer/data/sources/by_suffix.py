"""The source that reads a file, by how the file's name ends."""

from pathlib import PurePath

from lit_trainer.data.sources.base import Source
from lit_trainer.data.sources.csv import CSVFile
from lit_trainer.data.sources.json_lines import JSONLines
from lit_trainer.data.sources.parquet import Parquet

_COMPRESSED = {".gz", ".bz2", ".xz", ".zip"}


def source_of_file(path: str) -> Source:
    """Returns the source for a file.

    Args:
        path: A CSV, TSV, JSON Lines or Parquet file; CSV, TSV and JSON Lines may be compressed.

    Raises:
        ValueError: If the name has another ending.
    """
    suffixes = [suffix.lower() for suffix in PurePath(path).suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    match suffixes[-1] if suffixes else "":
        case ".csv":
            return CSVFile(path)
        case ".tsv":
            return CSVFile(path, delimiter="\t")
        case ".jsonl" | ".ndjson":
            return JSONLines(path)
        case ".parquet":
            return Parquet(path)
    raise ValueError(f"{path} is no file that can be read by its name; it may end in .csv, .tsv, .jsonl or .parquet")
