"""Rows of comma-separated or tab-separated values; every value stays the text that it is."""

import csv
import html
import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from datasets import DatasetDict

from lit_trainer.data.sources.base import Source
from lit_trainer.data.sources.files import (
    DataFile,
    DecodingErrors,
    FilePath,
    Files,
    check_encoding,
    find_files,
)
from lit_trainer.data.sources.tables import load_files

_BATCH = 10_000


class CSVFile(Source):
    r"""Rows of CSV files, or of TSV files by another delimiter.

    Nothing is guessed: a value is the text in the file, ``NA`` and ``007`` included, and only an empty one is missing.

    Args:
        files: One path, several, or those of each split by its name. A path may have wildcards, be a wheel's member,
            and end in .gz, .bz2, .xz or .zip (with one file in it).
        root: A folder or zip file that the paths start from.
        delimiter: What stands between two values, such as ``"\t"`` for TSV.
        quotechar: What surrounds a value with delimiters or line ends in it; null where quotes are plain characters.
        encoding: Of the text.
        encoding_errors: What is done about bytes that the encoding does not have.
        columns: The columns' names if the first line is a row already.
        lists: Columns that hold lists, such as several labels, each with what stands between two entries.
        unescape_html: Whether ``&amp;`` and the like become the characters that they stand for.
        strip: Characters to take off both ends of every value.

    Raises:
        ValueError: If the delimiter, quotechar or encoding cannot be one.
    """

    def __init__(
        self,
        files: Files,
        root: FilePath | None = None,
        delimiter: str = ",",
        quotechar: str | None = '"',
        encoding: str = "utf-8",
        encoding_errors: DecodingErrors = "strict",
        columns: list[str] | None = None,
        lists: dict[str, str] | None = None,
        unescape_html: bool = False,
        strip: str = "",
    ) -> None:
        self.files, self.root = files, root
        self.delimiter = "\t" if delimiter == "\\t" else delimiter  # what a tab looks like on a command line
        self.quotechar = quotechar
        for name, value in (("delimiter", self.delimiter), ("quotechar", quotechar)):
            if value is not None and len(value) != 1:
                raise ValueError(f"{name} is {value!r}, not one character")
        self.encoding, self.encoding_errors = check_encoding(encoding), encoding_errors
        self.columns, self.lists = columns, lists or {}
        self.unescape_html, self.strip = unescape_html, strip

    def load(self) -> DatasetDict:
        """Returns the rows of each split, all of them text."""
        settings = {name: value for name, value in vars(self).items() if name not in ("files", "root")}
        return load_files(find_files(self.files, self.root), [type(self).__name__, settings], self._read)

    def _read(self, files: list[DataFile]) -> Iterator[pa.RecordBatch]:
        schema: pa.Schema | None = None
        for file in files:
            with file.open_text(self.encoding, self.encoding_errors) as text, _fields_of_any_length():
                lines = self._lines(file, text)
                names = next(lines)
                schema = schema or self._schema(names, file)
                if sorted(names) != sorted(schema.names):
                    raise ValueError(f"{file} has the columns {', '.join(names)}; {files[0]} {', '.join(schema.names)}")
                while rows := list(itertools.islice(lines, _BATCH)):
                    cells = dict(zip(names, zip(*rows, strict=True), strict=True))
                    values = [
                        pa.array(self._values(name, cells[name]), schema.field(name).type) for name in schema.names
                    ]
                    yield pa.record_batch(values, schema=schema)

    def _lines(self, file: DataFile, text: Any) -> Iterator[Sequence[str]]:
        """Yields the columns' names and then the values of each row."""
        # Strict, since otherwise a quote in the wrong place swallows rows without a word.
        reader = csv.reader(
            text,
            delimiter=self.delimiter,
            quotechar=self.quotechar,
            quoting=csv.QUOTE_MINIMAL if self.quotechar else csv.QUOTE_NONE,
            strict=True,
        )
        try:
            lines = (line for line in reader if line)
            header = self.columns or next(lines, None)
            if header is None:
                raise ValueError(f"{file} is empty")
            names = [name.strip() or f"column_{number}" for number, name in enumerate(header, start=1)]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{file} has more than one column called {', '.join(twice)}")
            yield names
            for line in lines:
                if len(line) != len(names):
                    raise ValueError(
                        f"{file}, line {reader.line_num}: {len(line)} values for the {len(names)} columns "
                        f"{', '.join(names)} (delimiter {self.delimiter!r}, quotechar {self.quotechar!r})"
                    )
                yield line
        except csv.Error as error:
            raise ValueError(
                f"{file}, line {reader.line_num}: {error}; where quotes are plain characters set quotechar to null"
            ) from error

    def _schema(self, names: Sequence[str], file: DataFile) -> pa.Schema:
        unknown = [name for name in self.lists if name not in names]
        if unknown:
            raise ValueError(f"lists: {file} has no column {', '.join(unknown)}, only {', '.join(names)}")
        return pa.schema({name: pa.list_(pa.string()) if name in self.lists else pa.string() for name in names})

    def _values(self, name: str, cells: Sequence[str]) -> Sequence[str | list[str] | None]:
        if self.unescape_html:
            cells = [html.unescape(cell) for cell in cells]
        if self.strip:
            cells = [cell.strip(self.strip) for cell in cells]
        if name in self.lists:
            return [[entry for part in cell.split(self.lists[name]) if (entry := part.strip())] for cell in cells]
        return [cell or None for cell in cells]


@contextmanager
def _fields_of_any_length() -> Iterator[None]:
    """Lifts the limit of 131,072 characters, which long documents exceed."""
    before = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        yield
    finally:
        csv.field_size_limit(before)
