import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_trainer.decision.folds import fold_numbers


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=60), st.integers(2, 7), st.integers(0, 100))
def test_rows_and_classes_are_dealt_evenly(labels, folds, seed):
    labels = np.array(labels)
    if folds > len(labels):
        return
    numbers = fold_numbers(labels, folds, seed)
    for rows in (numbers, *(numbers[labels == k] for k in range(4))):
        sizes = np.bincount(rows, minlength=folds)
        assert sizes.max() - sizes.min() <= 1
    assert (numbers == fold_numbers(labels, folds, seed)).all()


def test_rows_with_several_labels_are_dealt_at_random():
    numbers = fold_numbers(np.zeros((100, 3), int), 5, seed=0)
    assert np.bincount(numbers).tolist() == [20] * 5
    assert numbers.tolist() != sorted(numbers.tolist())


@pytest.mark.parametrize("folds", [0, 1, 4])
def test_a_number_of_folds_that_cannot_be_says_which_can(folds):
    with pytest.raises(ValueError, match=f"folds={folds}; 3 rows can have from 2 to 3 folds"):
        fold_numbers(np.array([0, 1, 1]), folds, seed=0)
