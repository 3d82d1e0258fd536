"""Columns of all splits: whether they are there, and which rows have the same text in them."""

import difflib
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import DatasetDict
from numpy.typing import NDArray


def require_columns(dataset: DatasetDict, columns: Sequence[str], key: str) -> None:
    """Makes sure that every split has some columns.

    Args:
        dataset: The splits.
        columns: The columns' names.
        key: The YAML key that names them.

    Raises:
        ValueError: If a split lacks one; it lists those that there are.
    """
    for split, rows in dataset.items():
        for name in columns:
            if name not in rows.column_names:
                close = difflib.get_close_matches(name, rows.column_names, n=1)
                meant = f"; did you mean {close[0]!r}?" if close else ""
                there = ", ".join(map(repr, rows.column_names))
                raise ValueError(f"{key}: the {split} split has no column {name!r}, only {there}{meant}")


def is_blank(text: Any) -> bool:
    """Tells whether a text has nothing to read in it: it is missing, empty or only white space."""
    return not text or (isinstance(text, str) and text.isspace())


def text_numbers(dataset: DatasetDict, columns: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """Numbers the texts so that exactly equal ones have the same number, in whichever splits they are.

    Args:
        dataset: The splits.
        columns: The columns that make up a text; equal texts are equal in all of them.

    Returns:
        int64 ``[R]`` for each split; -1 where every column is blank.
    """
    numbers: dict[bytes, int] = {}
    found = {}
    for split, rows in dataset.items():
        found[split] = np.empty(len(rows), np.int64)
        start = 0
        for batch in rows.select_columns(list(columns)).with_format(None).iter(10_000):
            for texts in zip(*(batch[name] for name in columns), strict=True):
                # The digest and not the text, so that the memory this takes does not grow with the texts' length.
                digest = hashlib.blake2b(repr(texts).encode(), digest_size=16).digest()
                blank = all(map(is_blank, texts))
                found[split][start] = -1 if blank else numbers.setdefault(digest, len(numbers))
                start += 1
    return found
