"""A data set of the Hugging Face Hub."""

import itertools

import datasets
from datasets import Dataset, DatasetDict, IterableDataset

from lit_trainer.data.sources.base import Source


class Hub(Source):
    """A data set of the Hugging Face Hub, downloaded once into its cache. Code that comes with one is never run.

    Args:
        path: The data set's name there, or a local folder of files that ``datasets.load_dataset`` understands.
        name: Its configuration, where it has several.
        revision: A branch, tag or commit. Name a commit to get the same rows for ever.
        splits: What to load as each split, such as ``{train: "train[:10%]", test: test}``; null for all as they are.
        streaming: Whether to fetch no more than the first `num_rows` rows of each split. They are fetched in each run.
        num_rows: The first rows of each split to take; null for all.

    Raises:
        ValueError: If rows are to be streamed without saying how many.
    """

    def __init__(
        self,
        path: str,
        name: str | None = None,
        revision: str | None = None,
        splits: dict[str, str] | None = None,
        streaming: bool = False,
        num_rows: int | None = None,
    ) -> None:
        if streaming and num_rows is None:
            raise ValueError("streaming needs num_rows to say how many rows of each split to take")
        self.path, self.name, self.revision, self.splits = path, name, revision, splits
        self.streaming, self.num_rows = streaming, num_rows

    def load(self) -> DatasetDict:
        """Returns the rows of each split."""
        try:
            found = datasets.load_dataset(
                self.path, self.name, revision=self.revision, split=self.splits, streaming=self.streaming
            )
            return DatasetDict({split: self._first_rows(rows) for split, rows in found.items()})
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ValueError(
                f"the data set {self.path!r} of the Hub cannot be loaded: {reason}; check path, name, revision and "
                "splits, and load it once where the Hub can be reached, or take a local source"
            ) from error

    def _first_rows(self, rows: Dataset | IterableDataset) -> Dataset:
        if isinstance(rows, IterableDataset):
            return Dataset.from_list(list(itertools.islice(rows, self.num_rows)), features=rows.features)
        return rows if self.num_rows is None else rows.select(range(min(self.num_rows, len(rows))))
