"""Which rows make each optimizer step, and how a step is dealt to ranks and micro-batches.

The plan comes first and knows nothing of the hardware: the rows of step k are a function of the seed and the epoch.
Only then is a step dealt. Moving from one process to eight, or from one micro-batch to four, changes which rank sees a
row, never which rows make the step.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_SHUFFLE_STREAM = 1  # of an epoch's random streams, 0 draws the rows and 1 orders the steps


@dataclass(frozen=True)
class EpochPlan:
    """The rows of every optimizer step of one epoch.

    Args:
        rows: int64 ``[D]``, the row of each draw, step after step. A draw's number is its place here.
        starts: int64 ``[K + 1]``, where each of the K steps begins; the last entry is D.
    """

    rows: Ints
    starts: Ints

    def __len__(self) -> int:
        """Returns K, the number of optimizer steps."""
        return len(self.starts) - 1

    def step(self, index: int) -> tuple[Ints, Ints]:
        """Returns the rows and the draw numbers of a step, both int64 ``[n]``."""
        start, end = int(self.starts[index]), int(self.starts[index + 1])
        return self.rows[start:end], np.arange(start, end, dtype=np.int64)


class StepPlan:
    """Plans the optimizer steps of any epoch from the seed and the epoch's number alone.

    With neither weights nor lengths an epoch is a permutation of the rows, cut into steps.

    Args:
        num_rows: How many rows there are, R.
        batch_size: Rows in one optimizer step, over all ranks and micro-batches. The last step may have fewer.
        max_tokens: Instead of `batch_size`: an optimizer step takes rows as long as their real tokens fit.
        lengths: int ``[R]``, tokens of each row. Rows of similar length then share a step.
        weights: float ``[R]``, how likely each row is to be drawn, on any scale. None draws each row once.
        replacement: Whether a weighted row can be drawn more than once in an epoch. Without, rows of higher weight
            come earlier and those left over are not seen in that epoch.
        num_draws: Rows drawn in an epoch when there are weights; R if None.
        shuffle: Whether rows are permuted when there are no weights.
        bucket_steps: How many steps' worth of consecutive draws are sorted by length before they are cut into steps.
        seed: Of all draws. Another seed gives other steps.

    Raises:
        ValueError: If sizes, weights or lengths do not fit together.

    Source: weighted draws without replacement by exponential keys, Efraimidis and Spirakis 2006.
    """

    def __init__(
        self,
        num_rows: int,
        *,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        lengths: Sequence[int] | Ints | None = None,
        weights: Sequence[float] | NDArray[np.float64] | None = None,
        replacement: bool = True,
        num_draws: int | None = None,
        shuffle: bool = True,
        bucket_steps: int = 50,
        seed: int = 0,
    ) -> None:
        if (batch_size is None) == (max_tokens is None):
            raise ValueError("give either batch_size or max_tokens, and not both")
        if num_rows < 1:
            raise ValueError("there are no rows to plan for")
        for name, value in (("batch_size", batch_size), ("max_tokens", max_tokens), ("bucket_steps", bucket_steps)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self.num_rows, self.batch_size, self.max_tokens = num_rows, batch_size, max_tokens
        self.lengths = None if lengths is None else _checked_lengths(lengths, num_rows, max_tokens)
        if max_tokens is not None and self.lengths is None:
            raise ValueError("max_tokens needs the lengths of the rows")
        self.weights = None if weights is None else _checked_weights(weights, num_rows)
        self.replacement, self.shuffle, self.bucket_steps, self.seed = replacement, shuffle, bucket_steps, seed
        self.num_draws = num_rows if num_draws is None or self.weights is None else num_draws
        if self.num_draws < 1:
            raise ValueError(f"num_draws must be at least 1, not {num_draws}")
        if self.weights is not None and not replacement:
            available = int(np.count_nonzero(self.weights))
            if num_draws is not None and num_draws > available:
                raise ValueError(
                    f"num_draws is {num_draws}, but without replacement only the {available} rows with a weight "
                    "above 0 can be drawn"
                )
            self.num_draws = min(self.num_draws, available)
        self._latest: tuple[int, EpochPlan] | None = None

    def epoch(self, epoch: int) -> EpochPlan:
        """Returns the plan of an epoch; the latest one is kept."""
        if self._latest is None or self._latest[0] != epoch:
            self._latest = (epoch, self._plan(epoch))
        return self._latest[1]

    def num_steps(self, epoch: int) -> int:
        """Returns the number of optimizer steps of an epoch; with `max_tokens` it differs a little between epochs."""
        if self.batch_size is not None:
            return -(-self.num_draws // self.batch_size)
        return len(self.epoch(epoch))

    def describe(self) -> dict[str, int | None]:
        """Returns as plain data what every step follows from; two plans with the same description are equal."""
        return {
            "num_rows": self.num_rows,
            "batch_size": self.batch_size,
            "max_tokens": self.max_tokens,
            "num_draws": self.num_draws,
            "replacement": int(self.replacement),
            "shuffle": int(self.shuffle),
            "bucket_steps": self.bucket_steps,
            "seed": self.seed,
            "lengths": None if self.lengths is None else zlib.crc32(self.lengths.tobytes()),
            "weights": None if self.weights is None else zlib.crc32(self.weights.tobytes()),
        }

    def _plan(self, epoch: int) -> EpochPlan:
        rows = self._draw(np.random.Generator(np.random.Philox(key=[self.seed % 2**64, epoch])))
        if self.lengths is None:
            return EpochPlan(rows, _equal_cuts(len(rows), self._rows_per_step()))
        tokens = self.lengths[rows]
        if self.shuffle:
            window = np.arange(len(rows)) // (self._rows_per_step() * self.bucket_steps)
            order = np.lexsort((-tokens, window))
            rows, tokens = rows[order], tokens[order]
        if self.max_tokens is None:
            starts = _equal_cuts(len(rows), self._rows_per_step())
        else:
            starts = _token_cuts(tokens, self.max_tokens)
        if not self.shuffle:
            return EpochPlan(rows, starts)
        counter = [0, 0, 0, _SHUFFLE_STREAM]
        rng = np.random.Generator(np.random.Philox(key=[self.seed % 2**64, epoch], counter=counter))
        return EpochPlan(*_permuted_steps(rows, starts, rng.permutation(len(starts) - 1)))

    def _rows_per_step(self) -> int:
        if self.batch_size is not None:
            return self.batch_size
        assert self.max_tokens is not None
        assert self.lengths is not None
        return max(1, int(self.max_tokens / max(1.0, float(self.lengths.mean()))))

    def _draw(self, rng: np.random.Generator) -> Ints:
        if self.weights is None:
            return rng.permutation(self.num_rows) if self.shuffle else np.arange(self.num_rows)
        if self.replacement:
            cumulative = np.cumsum(self.weights)
            drawn: Ints = np.searchsorted(cumulative, rng.random(self.num_draws) * cumulative[-1], side="right")
            last: int = np.flatnonzero(self.weights)[-1]  # rounding must not draw a row of weight 0 behind it
            return drawn.clip(max=last)
        with np.errstate(divide="ignore"):
            keys = rng.standard_exponential(self.num_rows) / self.weights
        order: Ints = np.argsort(keys, kind="stable")
        return order[: self.num_draws]


def deal(num_rows: int, num_ranks: int, num_micro_batches: int, lengths: Ints | None = None) -> list[list[Ints]]:
    """Deals the rows of one optimizer step to ranks and micro-batches.

    Every row goes to exactly one place; places differ by at most one row within a micro-batch; rows of similar length
    share a micro-batch, and the ranks have similar numbers of tokens in each. A place may be empty where the step has
    fewer rows than there are places.

    Args:
        num_rows: Rows in the step, n.
        num_ranks: Processes, W.
        num_micro_batches: Micro-batches that a step has on each rank, A.
        lengths: int ``[n]``, tokens of each row.

    Returns:
        For each rank, for each micro-batch, the places in the step of its rows, int64.
    """
    order = np.arange(num_rows) if lengths is None else np.argsort(-lengths, kind="stable")
    if num_ranks == num_micro_batches == 1:
        return [[order]]
    hands: list[list[Ints]] = [[] for _ in range(num_ranks)]
    there_and_back = np.concatenate([np.arange(num_ranks), np.arange(num_ranks)[::-1]])
    for index, share in enumerate(np.array_split(order, num_micro_batches)):
        owner = there_and_back[(np.arange(len(share)) + index * num_ranks) % (2 * num_ranks)]
        for rank in range(num_ranks):
            hands[rank].append(share[owner == rank])
    return hands


def evaluation_batches(
    num_rows: int, batch_size: int, num_ranks: int, lengths: Ints | None = None, window: int | None = None
) -> list[list[Ints]]:
    """Cuts the rows of an evaluation into batches so that each row is in one batch of one rank.

    Every rank has the same number of batches, so that none waits for another; a batch may be empty.

    Args:
        num_rows: Rows to evaluate.
        batch_size: Rows in one batch of one rank, at most.
        num_ranks: Processes.
        lengths: int ``[num_rows]``, tokens of each row; rows of similar length then share a batch.
        window: How many consecutive rows are ordered by length together. After that many rows all of them have been
            evaluated, which lets results be written in data-set order. None orders all rows together.

    Returns:
        For each rank its batches, each the numbers of its rows, int64.
    """
    hands: list[list[Ints]] = [[] for _ in range(num_ranks)]
    for first in range(0, num_rows, window or max(1, num_rows)):
        rows = np.arange(first, min(num_rows, first + (window or num_rows)), dtype=np.int64)
        if lengths is not None:
            rows = rows[np.argsort(-lengths[rows], kind="stable")]
        size = min(batch_size, -(-len(rows) // num_ranks))
        batches = [rows[start : start + size] for start in range(0, len(rows), size)]
        batches += [rows[:0]] * (-len(batches) % num_ranks)
        for rank in range(num_ranks):
            hands[rank].extend(batches[rank::num_ranks])
    return hands


def _checked_lengths(lengths: Sequence[int] | Ints, num_rows: int, max_tokens: int | None) -> Ints:
    checked = np.asarray(lengths, dtype=np.int64)
    if checked.shape != (num_rows,):
        raise ValueError(f"there are {num_rows} rows but lengths of shape {checked.shape}")
    if max_tokens is not None and checked.max() > max_tokens:
        raise ValueError(
            f"row {int(checked.argmax())} has {int(checked.max())} tokens, more than max_tokens={max_tokens}: "
            "raise max_tokens or lower max_length"
        )
    return checked


def _checked_weights(weights: Sequence[float] | NDArray[np.float64], num_rows: int) -> NDArray[np.float64]:
    checked = np.asarray(weights, dtype=np.float64)
    if checked.shape != (num_rows,):
        raise ValueError(f"there are {num_rows} rows but weights of shape {checked.shape}")
    wrong = np.flatnonzero(~np.isfinite(checked) | (checked < 0))
    if len(wrong):
        raise ValueError(f"a sampling weight must be finite and at least 0; row {wrong[0]} has {checked[wrong[0]]}")
    if not checked.any():
        raise ValueError("all sampling weights are 0: there is no row to draw")
    return checked


def _equal_cuts(num_draws: int, size: int) -> Ints:
    return np.append(np.arange(0, num_draws, size), num_draws).astype(np.int64)


def _token_cuts(tokens: Ints, max_tokens: int) -> Ints:
    """Cuts draws into steps of as many consecutive ones as fit into `max_tokens`."""
    ends = np.cumsum(tokens)
    starts = [0]
    while starts[-1] < len(tokens):
        spent = ends[starts[-1] - 1] if starts[-1] else 0
        starts.append(int(np.searchsorted(ends, spent + max_tokens, side="right")))
    return np.asarray(starts, dtype=np.int64)


def _permuted_steps(rows: Ints, starts: Ints, order: Ints) -> tuple[Ints, Ints]:
    """Puts whole steps into another order."""
    sizes = np.diff(starts)[order]
    moved = np.append(0, np.cumsum(sizes))
    return rows[np.repeat(starts[:-1][order] - moved[:-1], sizes) + np.arange(len(rows))], moved


def micro_batches(
    plan: StepPlan, epoch: int, *, rank: int, num_ranks: int, num_micro_batches: int, first_step: int = 0
) -> Iterator[list[tuple[int, int]]]:
    """Yields this rank's micro-batches of an epoch, step after step, each a list of (row, draw).

    An empty micro-batch is filled with one row of the step whose draw is -1: it is computed so that every rank does the
    same number of passes, and counts for nothing.

    Args:
        plan: The steps.
        epoch: Which epoch's.
        rank: Whose micro-batches.
        num_ranks: Processes.
        num_micro_batches: Micro-batches of each step on each rank.
        first_step: Where to begin in the epoch.
    """
    steps = plan.epoch(epoch)
    for index in range(first_step, len(steps)):
        rows, draws = steps.step(index)
        lengths = None if plan.lengths is None else plan.lengths[rows]
        for places in deal(len(rows), num_ranks, num_micro_batches, lengths)[rank]:
            if len(places):
                yield list(zip(rows[places].tolist(), draws[places].tolist(), strict=True))
            else:
                yield [(int(rows[0]), -1)]
