"""Loaders that hand the plan's micro-batches to Lightning and can begin at any optimizer step."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from lit_trainer.batch import EPOCH, LABELS, MICRO_BATCH, STEP_LABELS, Batch
from lit_trainer.data.plan import StepPlan, micro_batches
from lit_trainer.signals import shield_worker

Draws = list[tuple[int, int]]


class _Order:
    """A batch sampler whose order is set before each pass; the DataLoader and its workers outlive the pass."""

    def __init__(self) -> None:
        self.draws: Iterator[Draws] = iter(())

    def __iter__(self) -> Iterator[Draws]:
        return self.draws


class StepLoader:
    """Loads the micro-batches of one rank, a whole optimizer step at a time.

    Where to begin is asked anew at each pass and is Lightning's own count of what was trained, so the loader has no
    state to save: the first pass after a resume continues at the very step. Not a ``DataLoader``, so that Lightning
    leaves the order alone.

    Args:
        rows: Fetches rows by (row, draw).
        collate: Makes a batch of them.
        plan: The steps of each epoch.
        position: Returns the epoch and the number of its micro-batches that are already done.
        rank: This process.
        num_ranks: All processes.
        num_micro_batches: Micro-batches of each step on each rank.
        num_workers: Processes that load ahead; 0 loads in this one.
        pin_memory: Whether tensors go to page-locked memory, for faster transfer to a GPU.
        transform: Changes a batch of an epoch, such as by masking tokens.
    """

    def __init__(
        self,
        rows: Dataset[Any],
        collate: Callable[[Any], Batch],
        plan: StepPlan,
        position: Callable[[], tuple[int, int]],
        *,
        rank: int = 0,
        num_ranks: int = 1,
        num_micro_batches: int = 1,
        num_workers: int = 0,
        pin_memory: bool = False,
        transform: Callable[[Batch, int], Batch] | None = None,
    ) -> None:
        self.plan, self.position = plan, position
        self.rank, self.num_ranks, self.num_micro_batches = rank, num_ranks, num_micro_batches
        self._order, self._transform = _Order(), transform
        self._loader = _loader(rows, self._order, collate, num_workers, pin_memory)

    def __len__(self) -> int:
        """Returns the number of micro-batches in the current epoch."""
        return self.plan.num_steps(self.position()[0]) * self.num_micro_batches

    def longest_row(self) -> Batch:
        """Returns the longest row of the present epoch as a batch, to find out what a row takes."""
        rows = self.plan.epoch(self.position()[0]).rows
        row = int(rows[0] if self.plan.lengths is None else rows[self.plan.lengths[rows].argmax()])
        batch: Batch = self._loader.collate_fn(self._loader.dataset.__getitems__([(row, 0)]))  # type: ignore[attr-defined]
        return batch if self._transform is None else self._transform(batch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: it tells Lightning, which would warn otherwise, that the loader can be resumed."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes nothing: the position is Lightning's own."""

    def __iter__(self) -> Iterator[Batch]:
        """Yields the micro-batches that are left of the current epoch.

        A generator: the position is asked when the first batch is wanted, not when Lightning makes the iterator, which
        is before a resume has restored it.
        """
        epoch, done = self.position()
        first_step, inside = divmod(done, self.num_micro_batches)
        if inside:
            raise ValueError(
                f"training stopped after {inside} of the {self.num_micro_batches} micro-batches of an optimizer step; "
                "only a checkpoint written between two optimizer steps can be resumed from"
            )
        self._order.draws = micro_batches(
            self.plan,
            epoch,
            rank=self.rank,
            num_ranks=self.num_ranks,
            num_micro_batches=self.num_micro_batches,
            first_step=first_step,
        )
        batches = iter(self._loader)
        while window := list(islice(batches, self.num_micro_batches)):
            if self._transform is not None:
                window = [self._transform(batch, epoch) for batch in window]
            if LABELS in window[0]:
                window[0][STEP_LABELS] = [batch[LABELS] for batch in window]
            for index, batch in enumerate(window):
                yield {**batch, EPOCH: epoch, MICRO_BATCH: index}


class EvaluationLoader:
    """Loads the batches of one rank in the order given; an empty one is filled with a row that does not count.

    Not a ``DataLoader``, so that Lightning neither repeats rows to make ranks even nor reorders them.

    Args:
        rows: Fetches rows by (row, draw).
        collate: Makes a batch of them.
        batches: The row numbers of each batch.
        num_workers: Processes that load ahead; 0 loads in this one.
        pin_memory: Whether tensors go to page-locked memory, for faster transfer to a GPU.
        transform: Changes a batch, such as by masking tokens.
    """

    def __init__(
        self,
        rows: Dataset[Any],
        collate: Callable[[Any], Batch],
        batches: Sequence[Any],
        *,
        num_workers: int = 0,
        pin_memory: bool = False,
        transform: Callable[[Batch], Batch] | None = None,
    ) -> None:
        self._batches: list[Draws] = [[(int(row), int(row)) for row in batch] or [(0, -1)] for batch in batches]
        self._order, self._transform = _Order(), transform
        self._loader = _loader(rows, self._order, collate, num_workers, pin_memory)

    def __len__(self) -> int:
        """Returns the number of batches, the same on every rank."""
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches."""
        self._order.draws = iter(self._batches)
        yield from self._loader if self._transform is None else map(self._transform, self._loader)


def _loader(
    rows: Dataset[Any], order: _Order, collate: Callable[[Any], Batch], num_workers: int, pin_memory: bool
) -> DataLoader[Any]:
    return DataLoader(
        rows,
        batch_sampler=order,
        collate_fn=collate,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        pin_memory=pin_memory,
        worker_init_fn=shield_worker,
        # With its own generator a pass draws nothing from the global one, which dropout may be using.
        generator=torch.Generator(),
    )
