"""Rows in memory, in whichever form a notebook has them."""

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset, DatasetDict
from jsonargparse import ArgumentParser

from lit_trainer.data.sources.base import Source
from lit_trainer.data.sources.memory import Table

COLUMNS = {"text": ["a", "b", None], "label": [1, 2, 3]}


@pytest.mark.parametrize(
    "rows",
    [
        COLUMNS,
        {"text": ("a", "b", None), "label": np.array([1, 2, 3])},
        [{"text": "a", "label": 1}, {"label": 2, "text": "b"}, {"label": 3}],
        pd.DataFrame(COLUMNS),
        pd.DataFrame(COLUMNS, index=[5, 5, 7]),
        Dataset.from_dict(COLUMNS),
    ],
)
def test_every_form_gives_the_same_rows(rows):
    loaded = Table(rows, test=rows).load()
    assert {split: table[:] for split, table in loaded.items()} == {"train": COLUMNS, "test": COLUMNS}


def test_a_dataset_dict_has_all_the_splits():
    dataset = DatasetDict(train=Dataset.from_dict(COLUMNS), dev=Dataset.from_dict(COLUMNS))
    assert Table(dataset).load() is dataset
    with pytest.raises(ValueError, match="no other can be given beside it"):
        Table(dataset, test=COLUMNS).load()


def test_what_is_missing_in_a_data_frame_is_missing():
    frame = pd.DataFrame(
        {"text": ["a", np.nan, None], "label": [1.0, np.nan, 0.0], "c": pd.Categorical(["x", None, "y"])}
    )
    assert Table(frame).load()["train"][:] == {
        "text": ["a", None, None],
        "label": [1.0, None, 0.0],
        "c": ["x", None, "y"],
    }


def test_text_and_numbers_in_one_column_become_text():
    frame = pd.DataFrame({"text": ["a", "b", "c", "d"], "label": ["1", 1, 1.0, None]})
    assert Table(frame).load()["train"]["label"][:] == ["1", "1", "1", None]
    assert Table({"label": [True, 1, "x"]}).load()["train"]["label"][:] == ["True", "1", "x"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("rows.csv", "train is a str, not a list of dicts"),
        ([1, 2], "train is a list, not a list of dicts"),
        ({"text": ["a"], "label": [1, 2]}, "train: the columns are of different lengths: text 1, label 2"),
        ([], "the train split has no rows"),
        ({"text": []}, "the train split has no rows"),
    ],
)
def test_other_things_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        Table(rows).load()


def test_rows_can_be_written_into_a_configuration():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--source", type=Source)
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    given = {"class_path": "lit_trainer.data.sources.memory.Table", "init_args": {"train": rows}}
    source = parser.instantiate(parser.parse_object({"source": given})).source
    assert source.load()["train"]["label"][:] == ["x", "y"]
