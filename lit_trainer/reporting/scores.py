"""What an evaluation found, row by row, as a small file in the folder of its run: a table of plain numbers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lit_trainer.decision.probabilities import Floats, Integers
from lit_trainer.decision.rule import DecisionRule

FOLDER: Final = "scores"
"""Where in the folder of a run the files are, each named after its split."""

VERSION: Final = 1
"""The version of the file. It is raised when an older reader would misread it."""

_METADATA = b"lit_trainer"


@dataclass(frozen=True)
class SplitScores:
    """The rows of a split, each once, with what the model says of them.

    Args:
        split: The name of the split.
        step: The optimizer step of the weights; None if that is not known.
        label_names: The C names in the order of the class numbers; of values that of the value.
        rule: How labels are decided; None for values.
        rows: int64 ``[N]``, the number of each row in the split.
        logits: float ``[N, C]``.
        labels: int64 ``[N]``, -100 where ignored; or float ``[N]`` or ``[N, C]``, NaN where ignored.
        texts: The texts of a few rows, to be shown, by the row's number; a pair of texts is two.
    """

    split: str
    step: int | None
    label_names: tuple[str, ...]
    rule: DecisionRule | None
    rows: Integers
    logits: Floats
    labels: NDArray[Any]
    texts: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def save(self, folder: Path) -> Path:
        """Writes the file, whole or not at all; returns its path.

        Args:
            folder: That of the run.
        """
        columns = {
            "row": pa.array(self.rows),
            "label": pa.array(self.labels) if self.labels.ndim == 1 else _lists(self.labels),
            "logits": _lists(self.logits),
            "text": pa.array([self.texts.get(row) for row in self.rows.tolist()], pa.list_(pa.string())),
        }
        about = {
            "version": VERSION,
            "split": self.split,
            "step": self.step,
            "label_names": self.label_names,
            "rule": self.rule.to_dict() if self.rule else None,
        }
        table = pa.table(columns).replace_schema_metadata({_METADATA: json.dumps(about).encode()})
        path = scores_path(folder, self.split)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        pq.write_table(table, partial)
        partial.replace(path)
        return path

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads the file.

        Raises:
            ValueError: If it holds something else, or was written by a newer version.
        """
        try:
            with pq.ParquetFile(path) as file:
                table = file.read()
            about = json.loads((table.schema.metadata or {})[_METADATA])
            version = about["version"]
            if version > VERSION:
                raise ValueError(f"its version is {version}; this lit_trainer reads up to {VERSION}")
            rows, texts = _numbers(table["row"]), table["text"].to_pylist()
            return cls(
                split=about["split"],
                step=about["step"],
                label_names=tuple(about["label_names"]),
                rule=DecisionRule.from_dict(about["rule"]) if about["rule"] else None,
                rows=rows,
                logits=_numbers(table["logits"]),
                labels=_numbers(table["label"]),
                texts={int(row): tuple(text) for row, text in zip(rows, texts, strict=True) if text is not None},
            )
        except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} holds no scores: {error}") from error


def scores_path(folder: Path, split: str) -> Path:
    """Returns where a run keeps the scores of a split.

    Args:
        folder: That of the run.
        split: The name of the split.
    """
    return folder / FOLDER / f"{split}.parquet"


def _lists(matrix: NDArray[Any]) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(matrix).reshape(-1)), matrix.shape[1])


def _numbers(column: pa.ChunkedArray) -> NDArray[Any]:
    """Returns a column as an array, with a second axis for lists; unlike `to_numpy` it does without pandas."""
    lists = pa.types.is_fixed_size_list(column.type)
    parts = [np.from_dlpack(chunk.flatten() if lists else chunk) for chunk in column.chunks]
    dtype = (column.type.value_type if lists else column.type).to_pandas_dtype()
    flat = np.concatenate([np.zeros(0, dtype), *parts])
    return flat.reshape(-1, column.type.list_size) if lists else flat
