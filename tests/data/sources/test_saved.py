"""What save_to_disk has written comes back."""

import pytest
from datasets import Dataset, DatasetDict

from lit_trainer.data.sources.saved import SavedDataset


def test_one_table_is_the_training_split_and_splits_stay(tmp_path):
    rows = Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    rows.save_to_disk(tmp_path / "one")
    DatasetDict(train=rows, dev=rows.select([0])).save_to_disk(tmp_path / "two")
    assert SavedDataset(str(tmp_path / "one")).load()["train"][:] == rows[:]
    loaded = SavedDataset(str(tmp_path / "two")).load()
    assert {split: len(table) for split, table in loaded.items()} == {"train": 2, "dev": 1}


def test_another_folder_is_an_error(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match=f"folder: {path} is no folder that save_to_disk has written"):
            SavedDataset(str(path)).load()
