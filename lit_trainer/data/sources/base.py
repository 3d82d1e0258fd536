"""The contract of a source: the splits that there are, as tables."""

from abc import ABC, abstractmethod

from datasets import DatasetDict


class Source(ABC):
    """Where rows come from; what follows is the same whatever the source.

    A source gives the rows as they are and in one order, the same in every process. It neither checks them nor makes
    splits that are not there.
    """

    @abstractmethod
    def load(self) -> DatasetDict:
        """Returns the splits; a single one without a name is called ``train``.

        Raises:
            ValueError: If there is nothing to read or it cannot be read; one line that says where.
        """
