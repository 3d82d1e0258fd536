"""Parquet: columns with their types and the names that a data set gave its classes."""

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, Features, Value

from lit_trainer.data.labels import LabelMap
from lit_trainer.data.sources.parquet import Parquet


def test_columns_keep_types_and_order(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": ["a", None], "label": [1, 2], "other": [0.5, 1.5]}), path)
    assert Parquet(str(path)).load()["train"][:] == {"text": ["a", None], "label": [1, 2], "other": [0.5, 1.5]}
    assert list(Parquet(str(path), columns=["label", "text"]).load()["train"].features) == ["label", "text"]
    with pytest.raises(ValueError, match=r"columns: .* has no column labels, only text, label, other"):
        Parquet(str(path), columns=["labels"]).load()


def test_names_of_classes_survive(tmp_path):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
    path = tmp_path / "rows.parquet"
    Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features).to_parquet(path)
    dataset = Parquet({"train": str(path)}, columns=["label"]).load()
    assert LabelMap.from_dataset(dataset, "label").names == ("neg", "pos")


def test_categories_of_pandas_are_plain_values(tmp_path):
    paths = []
    for number, labels in enumerate((["x", "y"], ["y", "z"])):
        paths.append(str(tmp_path / f"{number}.parquet"))
        pd.DataFrame({"text": ["a", "b"], "label": pd.Categorical(labels)}).to_parquet(paths[-1])
    assert Parquet(paths).load()["train"]["label"][:] == ["x", "y", "y", "z"]


def test_a_file_that_is_none_is_an_error(tmp_path):
    path = tmp_path / "rows.parquet"
    path.write_text("text,label\n")
    with pytest.raises(ValueError, match=r"rows.parquet cannot be read: Parquet"):
        Parquet(str(path)).load()
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    with pytest.raises(ValueError, match="the train split has no rows"):
        Parquet(str(path)).load()


def test_files_of_other_columns_are_refused(tmp_path):
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"other": ["a"]}), tmp_path / "2.parquet")
    with pytest.raises(ValueError, match=r"2.parquet cannot be read"):
        Parquet(str(tmp_path / "*.parquet")).load()
