"""Files of rows: where they are, and how they are opened, plain, compressed or inside a zip file."""

import bz2
import codecs
import difflib
import fnmatch
import gzip
import io
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

from lit_trainer.wheel import WheelMember

FilePath: TypeAlias = str | WheelMember
Files: TypeAlias = FilePath | list[FilePath] | dict[str, FilePath | list[FilePath]]
DecodingErrors: TypeAlias = Literal["strict", "ignore", "replace"]

_OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


@dataclass(frozen=True)
class DataFile:
    """A file on disk, or one inside a zip file.

    Args:
        path: Of the file, or of the zip file.
        member: The name inside the zip file.
    """

    path: Path
    member: str | None = None

    def __str__(self) -> str:
        return str(self.path) if self.member is None else f"{self.member} in {self.path}"

    @contextmanager
    def open(self, decompress: bool = True) -> Iterator[IO[bytes]]:
        """Opens the file to read bytes, by default decompressed as its ending says (.gz, .bz2, .xz).

        Raises:
            ValueError: If the file cannot be read, also later while it is open.
        """
        try:
            with self._raw() as raw:
                opener = _OPENERS.get(Path(self.member or self.path.name).suffix.lower()) if decompress else None
                if opener is None:
                    yield raw
                else:
                    with opener(raw) as plain:
                        yield plain
        except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise ValueError(f"{self} cannot be read: {reason}") from error

    @contextmanager
    def _raw(self) -> Iterator[IO[bytes]]:
        if self.member is None:
            with self.path.open("rb") as raw:
                yield raw
        else:
            with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as raw:
                yield raw

    @contextmanager
    def open_text(self, encoding: str, errors: DecodingErrors) -> Iterator[io.TextIOWrapper]:
        """Opens the file to read text, with line ends as they are.

        Raises:
            ValueError: If the file cannot be read or decoded; it names the line.
        """
        # A byte order mark is no part of the first column's name.
        codec = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
        try:
            with self.open() as binary:
                yield io.TextIOWrapper(binary, encoding=codec, errors=errors, newline="")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{self}, line {self._first_bad_line(codec)}: not {encoding}; set encoding to the file's own, such as "
                "latin-1 or cp1252, or encoding_errors to ignore or replace"
            ) from error

    def _first_bad_line(self, encoding: str) -> int:
        decoder = codecs.getincrementaldecoder(encoding)()
        number = 0
        with self.open() as binary:
            for number, line in enumerate(binary, start=1):
                try:
                    decoder.decode(line)
                except UnicodeDecodeError:
                    return number
        return number  # the file ends in the middle of a character


def check_encoding(encoding: str) -> str:
    """Returns an encoding that exists.

    Raises:
        ValueError: If it does not.
    """
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise ValueError(
            f"encoding: there is no encoding {encoding!r}; usual ones are utf-8, latin-1, cp1252"
        ) from None
    return encoding


def find_files(files: Files, root: FilePath | None = None) -> dict[str, list[DataFile]]:
    """Finds the files of each split.

    Args:
        files: One path, several, or those of each split by its name; a name may have wildcards (``*``, ``?``, ``[]``).
        root: The folder or zip file that the paths start from.

    Raises:
        ValueError: If there is no such file.
    """
    by_split = files if isinstance(files, dict) else {"train": files}
    found = {}
    for split, paths in by_split.items():
        listed = paths if isinstance(paths, list) else [paths]
        found[split] = [file for path in listed for file in _matching(path, root)]
        if not found[split]:
            raise ValueError(f"files: there is none given for {split}")
    if not found:
        raise ValueError("files: there is none given")
    return found


def _matching(path: FilePath, root: FilePath | None) -> list[DataFile]:
    """Returns the files that one path stands for, in order of their names."""
    start = Path() if root is None else Path(os.fspath(root)).expanduser()
    if start.is_file():
        return _in_zip(start, os.fspath(path))
    if root is not None and not start.is_dir():
        raise ValueError(f"root: there is no folder or zip file {start}")
    relative = Path(os.fspath(path)).expanduser()
    whole = start / relative
    if whole.is_dir():
        raise ValueError(f"files: {whole} is a folder; name the files in it, as in {whole}/*.csv")
    if whole.is_file():
        return _in_zip(whole) if whole.suffix.lower() == ".zip" else [DataFile(whole)]
    base, pattern = (
        (Path(whole.anchor), whole.relative_to(whole.anchor)) if relative.is_absolute() else (start, relative)
    )
    if pattern.name and (matches := sorted(match for match in base.glob(str(pattern)) if match.is_file())):
        return [DataFile(match) for match in matches]
    folder = whole.parent
    there = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    raise ValueError(f"files: there is no file {whole.name} in {folder.absolute()}{_meant(whole.name, there)}")


def _in_zip(path: Path, pattern: str | None = None) -> list[DataFile]:
    """Returns the members of a zip file that a name stands for; without a name, the only one that it has."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/") and "__MACOSX/" not in name]
    except (OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a zip file that can be read: {error}") from error
    if pattern is None:
        if len(names) != 1:
            there = ", ".join(sorted(names)[:10]) or "none"
            raise ValueError(f"files: {path} has the files {there}; set root to it and name one")
        return [DataFile(path, names[0])]
    matches = [pattern] if pattern in names else sorted(fnmatch.filter(names, pattern))
    if not matches:
        raise ValueError(f"files: there is no file {pattern} in {path}{_meant(pattern, names)}")
    return [DataFile(path, name) for name in matches]


def _meant(name: str, there: Sequence[str]) -> str:
    """Says which of the names that there are may have been meant."""
    close = difflib.get_close_matches(name, there, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f", only {', '.join(there[:10])}{', ...' * (len(there) > 10)}" if there else ""
