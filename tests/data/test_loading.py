"""The loader begins where training stands, and hands over whole optimizer steps."""

import pytest
import torch

from lit_trainer.batch import DRAW, EPOCH, LABELS, MICRO_BATCH, ROW, STEP_LABELS
from lit_trainer.data.collation import EncodedRows
from lit_trainer.data.loading import EvaluationLoader, StepLoader
from lit_trainer.data.plan import StepPlan, evaluation_batches

NUM_ROWS = 21


class Numbers(torch.utils.data.Dataset):
    """Rows that are their own number, and a label."""

    def __len__(self):
        return NUM_ROWS

    def __getitems__(self, draws):
        return {
            ROW: torch.tensor([row if draw >= 0 else -1 for row, draw in draws]),
            DRAW: torch.tensor([draw for _, draw in draws]),
            LABELS: torch.tensor([row % 3 if draw >= 0 else -100 for row, draw in draws]),
        }


def same(columns):
    return columns


def loader(position=(0, 0), rank=0, num_ranks=1, num_micro_batches=2, num_workers=0):
    plan = StepPlan(NUM_ROWS, batch_size=8, seed=1)
    return StepLoader(
        Numbers(),
        same,
        plan,
        lambda: position,
        rank=rank,
        num_ranks=num_ranks,
        num_micro_batches=num_micro_batches,
        num_workers=num_workers,
    )


def test_every_micro_batch_says_its_place_and_the_first_brings_the_labels_of_the_step():
    batches = list(loader((3, 0)))
    assert len(batches) == len(loader()) == 6
    assert [batch[MICRO_BATCH] for batch in batches] == [0, 1] * 3
    assert {batch[EPOCH] for batch in batches} == {3}
    for first, second in zip(batches[::2], batches[1::2], strict=True):
        assert torch.equal(torch.cat(first[STEP_LABELS]), torch.cat([first[LABELS], second[LABELS]]))
        assert STEP_LABELS not in second


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("done", [0, 2, 4, 6])
def test_lightning_19764_a_pass_continues_where_training_stands(done, num_workers):
    whole = [batch[ROW].tolist() for batch in loader((1, 0))]
    rest = [batch[ROW].tolist() for batch in loader((1, done), num_workers=num_workers)]
    assert rest == whole[done:]


def test_lightning_21938_every_epoch_has_its_own_order_also_with_workers():
    place = [0, 0]
    with_workers = loader(num_workers=1)
    with_workers.position = lambda: tuple(place)
    epochs = []
    for epoch in (0, 1):
        place[0] = epoch
        epochs.append([batch[ROW].tolist() for batch in with_workers])
        assert epochs[-1] == [batch[ROW].tolist() for batch in loader((epoch, 0))]
    assert epochs[0] != epochs[1]


def test_nothing_is_asked_before_the_first_batch_is_wanted():
    place = [0, 0]
    lazy = loader()
    lazy.position = lambda: tuple(place)
    batches = iter(lazy)
    place[:] = [2, 4]
    assert next(batches)[EPOCH] == 2


def test_the_middle_of_a_step_is_no_place_to_continue():
    with pytest.raises(ValueError, match="after 1 of the 2 micro-batches"):
        next(iter(loader((0, 1))))


@pytest.mark.exact
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 30])
def test_pytorch_25162_every_row_is_evaluated_once(num_ranks):
    ranks = [list(EvaluationLoader(Numbers(), same, batches)) for batches in evaluation_batches(NUM_ROWS, 4, num_ranks)]
    assert len({len(batches) for batches in ranks}) == 1
    rows = [row for batches in ranks for batch in batches for row in batch[ROW].tolist()]
    assert sorted(row for row in rows if row >= 0) == list(range(NUM_ROWS))


def test_a_loader_draws_nothing_from_the_global_generator():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    list(loader())
    list(EvaluationLoader(Numbers(), same, [[0, 1]]))
    assert torch.equal(torch.rand(1), expected)


def test_filler_rows_have_no_number():
    import numpy as np
    from datasets import Dataset

    rows = EncodedRows(Dataset.from_dict({"input_ids": [[1], [2]]}), np.array([1, 1]), np.array([0, 1]))
    assert rows.__getitems__([(1, 5), (0, -1)])[ROW].tolist() == [1, -1]
