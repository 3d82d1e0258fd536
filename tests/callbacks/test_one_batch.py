"""One batch: what every step trains on after the first."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_trainer.callbacks.one_batch import OneBatch


def run(num_micro_batches: int, epochs: list[int], callback: OneBatch) -> list[list[int]]:
    """Returns the number of the batch that training sees at each place, by epoch."""
    trainer = SimpleNamespace(accumulate_grad_batches=num_micro_batches)
    callback.on_train_start(trainer, None)
    number, seen = 0, []
    for num_steps in epochs:
        seen.append([])
        for index in range(num_steps * num_micro_batches):
            batch = {"row": number} if number % 2 else {"row": number, "more": 1}
            callback.on_train_batch_start(trainer, None, batch, index)
            assert set(batch) == ({"row"} if batch["row"] % 2 else {"row", "more"})
            seen[-1].append(batch["row"])
            number += 1
    return seen


@given(st.integers(1, 4), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_every_step_is_the_first(num_micro_batches: int, epochs: list[int]) -> None:
    first = list(range(num_micro_batches))
    assert run(num_micro_batches, epochs, OneBatch()) == [first * num_steps for num_steps in epochs]


@pytest.mark.parametrize("before", [1, 3])
def test_another_run_begins_with_its_own_rows(before: int) -> None:
    callback = OneBatch()
    run(before, [1], callback)
    assert run(2, [2], callback) == [[0, 1, 0, 1]]
