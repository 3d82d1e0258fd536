"""Rows that are in memory already, for notebooks and tests."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from datasets import Dataset, DatasetDict
from datasets.table import InMemoryTable

from lit_trainer.data.sources.base import Source
from lit_trainer.data.sources.tables import table_of

Rows: TypeAlias = Any
"""A list of rows, each a ``dict``; a ``dict`` of columns; a pandas ``DataFrame``; or a ``datasets.Dataset``."""


class Table(Source):
    """Rows in memory: a list of rows, a ``dict`` of columns, a pandas ``DataFrame`` or a ``Dataset``.

    Args:
        train: The rows; or a ``DatasetDict``, which has all the splits.
        validation: Rows to validate on.
        test: Rows to test on.
    """

    def __init__(self, train: Rows, validation: Rows = None, test: Rows = None) -> None:
        self.given = {"train": train, "validation": validation, "test": test}

    def load(self) -> DatasetDict:
        """Returns the rows of each split."""
        given = {split: rows for split, rows in self.given.items() if rows is not None}
        if isinstance(given.get("train"), DatasetDict):
            if len(given) > 1:
                raise ValueError("train is a DatasetDict, which has all the splits: no other can be given beside it")
            return given["train"]
        return DatasetDict({split: _dataset(split, rows) for split, rows in given.items()})


def _dataset(split: str, rows: Rows) -> Dataset:
    if isinstance(rows, Dataset):
        return rows
    if hasattr(rows, "notna"):  # a DataFrame, which has NaN where something is missing
        columns = {
            str(name): rows[name].astype(object).where(rows[name].notna(), None).tolist() for name in rows.columns
        }
    elif isinstance(rows, Mapping):
        columns = {str(name): list(values) for name, values in rows.items()}
    elif isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows):
        names = list(dict.fromkeys(name for row in rows for name in row))
        columns = {str(name): [row.get(name) for row in rows] for name in names}
    else:
        raise ValueError(
            f"{split} is a {type(rows).__name__}, not a list of dicts, a dict of lists, a DataFrame or a Dataset"
        )
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"{split}: the columns are of different lengths: {', '.join(f'{n} {k}' for n, k in lengths.items())}"
        )
    if not any(lengths.values()):
        raise ValueError(f"the {split} split has no rows")
    return Dataset(InMemoryTable(table_of(columns)))
