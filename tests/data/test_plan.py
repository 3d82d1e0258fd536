"""The plan's promise: the rows of a step depend on seed and epoch alone, and every row goes to one place."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_trainer.data.plan import StepPlan, deal, evaluation_batches, micro_batches

NUM_ROWS = 1003
LENGTHS = np.random.default_rng(0).lognormal(4, 0.7, NUM_ROWS).astype(int).clip(3, 512)
WEIGHTS = np.where(np.arange(NUM_ROWS) < 100, 9.0, 1.0)

PLANS = {
    "plain": {"batch_size": 32},
    "buckets": {"batch_size": 32, "lengths": LENGTHS},
    "tokens": {"max_tokens": 4096, "lengths": LENGTHS},
    "weighted": {"batch_size": 32, "weights": WEIGHTS},
    "weighted buckets": {"batch_size": 32, "weights": WEIGHTS, "lengths": LENGTHS},
    "weighted tokens": {"max_tokens": 4096, "weights": WEIGHTS, "lengths": LENGTHS},
    "weighted once": {"batch_size": 32, "weights": WEIGHTS, "replacement": False, "num_draws": 500},
}


def steps_of(plan, epoch):
    epoch_plan = plan.epoch(epoch)
    return [epoch_plan.step(index)[0] for index in range(len(epoch_plan))]


def dealt_steps(plan, epoch, num_ranks, num_micro_batches):
    """The (row, draw) pairs of each step, gathered again from all ranks and micro-batches."""
    by_rank = [
        list(micro_batches(plan, epoch, rank=rank, num_ranks=num_ranks, num_micro_batches=num_micro_batches))
        for rank in range(num_ranks)
    ]
    assert len({len(batches) for batches in by_rank}) == 1, "every rank has as many micro-batches"
    assert len(by_rank[0]) == plan.num_steps(epoch) * num_micro_batches
    gathered = []
    for first in range(0, len(by_rank[0]), num_micro_batches):
        window = [pair for batches in by_rank for batch in batches[first : first + num_micro_batches] for pair in batch]
        gathered.append(sorted(pair for pair in window if pair[1] >= 0))
    return gathered


@pytest.mark.exact
@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize(("num_ranks", "num_micro_batches"), [(1, 4), (2, 1), (3, 1), (2, 4), (8, 3), (40, 2)])
def test_a_step_has_the_same_draws_on_any_split(kind, num_ranks, num_micro_batches):
    plan = StepPlan(NUM_ROWS, seed=3, **PLANS[kind])
    for epoch in (0, 5):
        assert dealt_steps(plan, epoch, num_ranks, num_micro_batches) == dealt_steps(plan, epoch, 1, 1)


@pytest.mark.parametrize("kind", ["plain", "buckets", "tokens"])
def test_every_row_is_drawn_once_an_epoch(kind):
    plan = StepPlan(NUM_ROWS, **PLANS[kind])
    for epoch in range(3):
        assert sorted(np.concatenate(steps_of(plan, epoch))) == list(range(NUM_ROWS))


@pytest.mark.parametrize("kind", PLANS)
def test_an_epoch_depends_on_seed_and_epoch_alone(kind):
    one, other = StepPlan(NUM_ROWS, seed=1, **PLANS[kind]), StepPlan(NUM_ROWS, seed=1, **PLANS[kind])
    other.epoch(4)
    assert np.array_equal(one.epoch(2).rows, other.epoch(2).rows)
    assert not np.array_equal(one.epoch(2).rows, one.epoch(3).rows[: len(one.epoch(2).rows)])
    assert not np.array_equal(one.epoch(2).rows, StepPlan(NUM_ROWS, seed=2, **PLANS[kind]).epoch(2).rows)


@pytest.mark.parametrize("kind", ["tokens", "weighted tokens"])
def test_a_step_stays_within_its_tokens(kind):
    plan = StepPlan(NUM_ROWS, **PLANS[kind])
    tokens = [LENGTHS[rows].sum() for rows in steps_of(plan, 1)]
    assert max(tokens) <= 4096
    assert np.mean(tokens) > 0.9 * 4096


def test_rows_of_similar_length_share_a_step():
    def padded(plan):
        return sum(LENGTHS[rows].max() * len(rows) for rows in steps_of(plan, 0)) / LENGTHS.sum()

    assert padded(StepPlan(NUM_ROWS, **PLANS["buckets"])) < 1.2
    assert padded(StepPlan(NUM_ROWS, **PLANS["plain"])) > 2


def test_weighted_draws_follow_the_weights():
    plan = StepPlan(NUM_ROWS, batch_size=32, weights=WEIGHTS, num_draws=100_000)
    share = np.mean(plan.epoch(0).rows < 100)
    assert share == pytest.approx(900 / (900 + 903), abs=0.01)


def test_weighted_draws_without_replacement_are_distinct_and_prefer_heavy_rows():
    rows = StepPlan(NUM_ROWS, **PLANS["weighted once"]).epoch(0).rows
    assert len(set(rows.tolist())) == len(rows) == 500
    assert np.mean(rows < 100) > 0.15


def test_a_row_of_weight_zero_is_never_drawn():
    weights = np.ones(10)
    weights[[0, 4, 9]] = 0
    for replacement in (True, False):
        plan = StepPlan(10, batch_size=4, weights=weights, replacement=replacement, num_draws=7)
        assert not {0, 4, 9} & {int(row) for epoch in range(50) for row in plan.epoch(epoch).rows}


def test_a_row_drawn_twice_has_two_draw_numbers():
    plan = StepPlan(3, batch_size=8, weights=[1, 1, 1], num_draws=16)
    rows, draws = plan.epoch(0).step(1)
    assert len(rows) == 8
    assert draws.tolist() == list(range(8, 16))


def test_lightning_12866_ranks_never_share_a_draw():
    plan = StepPlan(12, batch_size=4, weights=[1, 5] * 6, replacement=False)
    by_rank = [
        {pair for batch in micro_batches(plan, 1, rank=rank, num_ranks=2, num_micro_batches=1) for pair in batch}
        for rank in range(2)
    ]
    assert not by_rank[0] & by_rank[1]
    assert {row for pairs in by_rank for row, _ in pairs} == set(range(12))


def test_an_epoch_can_begin_at_any_step():
    plan = StepPlan(NUM_ROWS, **PLANS["weighted tokens"])
    whole = list(micro_batches(plan, 2, rank=1, num_ranks=2, num_micro_batches=3))
    rest = list(micro_batches(plan, 2, rank=1, num_ranks=2, num_micro_batches=3, first_step=5))
    assert rest == whole[15:]


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 500), min_size=1, max_size=60),
    num_ranks=st.integers(1, 9),
    num_micro_batches=st.integers(1, 7),
)
def test_dealing_places_each_row_once_and_evenly(lengths, num_ranks, num_micro_batches):
    hands = deal(len(lengths), num_ranks, num_micro_batches, np.array(lengths))
    assert sorted(np.concatenate([place for hand in hands for place in hand]).tolist()) == list(range(len(lengths)))
    for index in range(num_micro_batches):
        sizes = [len(hand[index]) for hand in hands]
        assert max(sizes) - min(sizes) <= 1


def test_ranks_get_similar_numbers_of_tokens():
    rng = np.random.default_rng(1)
    costs = []
    for _ in range(200):
        lengths = rng.lognormal(4, 0.7, 64).astype(int).clip(3, 512)
        costs.append([[lengths[place].sum() for place in hand] for hand in deal(64, 4, 2, lengths)])
    by_rank = np.array(costs).transpose(0, 2, 1)  # [step, micro-batch, rank]
    assert (by_rank.max(-1) / by_rank.mean(-1)).mean() < 1.06


def test_the_short_last_step_is_filled_with_rows_that_count_for_nothing():
    plan = StepPlan(5, batch_size=4)
    last = [list(micro_batches(plan, 0, rank=rank, num_ranks=2, num_micro_batches=2))[2:] for rank in range(2)]
    pairs = [pair for batches in last for batch in batches for pair in batch]
    assert sum(draw >= 0 for _, draw in pairs) == 1
    assert sum(draw == -1 for _, draw in pairs) == 3


@pytest.mark.exact
@settings(deadline=None)
@given(
    num_rows=st.integers(0, 60),
    batch_size=st.integers(1, 9),
    num_ranks=st.integers(1, 5),
    window=st.none() | st.integers(1, 20),
)
def test_evaluation_has_every_row_once_and_as_many_batches_on_each_rank(num_rows, batch_size, num_ranks, window):
    lengths = np.arange(num_rows)[::-1] % 7
    hands = evaluation_batches(num_rows, batch_size, num_ranks, lengths, window)
    assert len({len(hand) for hand in hands}) == 1
    assert sorted(row for hand in hands for batch in hand for row in batch.tolist()) == list(range(num_rows))
    assert all(len(batch) <= batch_size for hand in hands for batch in hand)


def test_evaluation_rows_of_a_window_are_done_before_the_next_begins():
    hands = evaluation_batches(100, 4, 2, np.arange(100) % 13, window=20)
    in_order = [batch for pair in zip(*hands, strict=True) for batch in pair]
    windows = [set((batch // 20).tolist()) for batch in in_order if len(batch)]
    assert [min(w) for w in windows] == sorted(min(w) for w in windows)
    assert all(len(w) == 1 for w in windows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either batch_size or max_tokens"),
        ({"batch_size": 4, "max_tokens": 8}, "either batch_size or max_tokens"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"max_tokens": 8}, "max_tokens needs the lengths"),
        ({"max_tokens": 8, "lengths": [1, 9, 1]}, "row 1 has 9 tokens, more than max_tokens=8"),
        ({"batch_size": 4, "lengths": [1, 2]}, "3 rows but lengths of shape"),
        ({"batch_size": 4, "weights": [1, -1, 1]}, "row 1 has -1"),
        ({"batch_size": 4, "weights": [1, float("nan"), 1]}, "row 1 has nan"),
        ({"batch_size": 4, "weights": [0, 0, 0]}, "all sampling weights are 0"),
        ({"batch_size": 4, "weights": [1, 0, 1], "replacement": False, "num_draws": 3}, "only the 2 rows"),
    ],
)
def test_wrong_settings_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        StepPlan(3, **arguments)


def test_no_rows_is_an_error():
    with pytest.raises(ValueError, match="no rows"):
        StepPlan(0, batch_size=4)
