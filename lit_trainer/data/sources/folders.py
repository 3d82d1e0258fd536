"""Texts in files, one a row, in folders named for their class."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from datasets import Dataset, DatasetDict

from lit_trainer.data.sources.base import Source
from lit_trainer.data.sources.files import DataFile, DecodingErrors, check_encoding
from lit_trainer.data.sources.tables import load_files
from lit_trainer.data.splits import NAMES
from lit_trainer.wheel import WheelMember


class TextFolders(Source):
    """Text files in folders that are named for their class: ``folder/<class>/*.txt``.

    Where the folders are named for splits instead, each has such folders of its own: ``folder/<split>/<class>/*.txt``.
    The columns are ``text``, ``label`` (the class) and ``file`` (the path inside the folder, in whose order they come).

    Args:
        folder: The folder, or a wheel's member.
        pattern: What the files' names are like.
        encoding: Of the text.
        encoding_errors: What is done about bytes that the encoding does not have.

    Raises:
        ValueError: If there is no such encoding.
    """

    def __init__(
        self,
        folder: str | WheelMember,
        pattern: str = "*.txt",
        encoding: str = "utf-8",
        encoding_errors: DecodingErrors = "strict",
    ) -> None:
        self.folder, self.pattern = folder, pattern
        self.encoding, self.encoding_errors = check_encoding(encoding), encoding_errors

    def load(self) -> DatasetDict:
        """Returns the texts of each split."""
        folder = Path(os.fspath(self.folder)).expanduser()
        if not folder.is_dir():
            raise ValueError(f"folder: there is no folder {folder.absolute()}")
        inside = sorted(path.name for path in folder.iterdir() if path.is_dir())
        split_names = {name for names in NAMES.values() for name in names}
        is_split = bool(inside) and split_names.issuperset(inside)
        folders = {name: folder / name for name in inside} if is_split else {"train": folder}
        return DatasetDict({split: self._load(split, path) for split, path in folders.items()})

    def _load(self, split: str, folder: Path) -> Dataset:
        paths = sorted(folder.glob(f"*/{self.pattern}"), key=lambda path: (path.parent.name, path.name))
        names = [path.relative_to(folder).as_posix() for path in paths]
        if not names:
            raise ValueError(f"folder: there are no files <class>/{self.pattern} in {folder}")
        settings = [type(self).__name__, self.encoding, self.encoding_errors, names]

        def read(files: list[DataFile]) -> Iterator[pa.RecordBatch]:
            texts = []
            for file in files:
                with file.open_text(self.encoding, self.encoding_errors) as text:
                    texts.append(text.read())
            labels = [name.split("/")[0] for name in names]
            yield from pa.table({"text": texts, "label": labels, "file": names}).to_batches()

        return load_files({split: [DataFile(path) for path in paths]}, settings, read)[split]
