import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, softmax

from lit_trainer.decision.probabilities import probabilities_of, read_labels, read_logits

quick = settings(deadline=None, max_examples=50)

logit = st.floats(-800, 800)


@quick
@given(st.lists(st.tuples(logit, logit, logit), min_size=1, max_size=10).map(np.array))
def test_probabilities_are_softmax_and_sigmoid_without_overflow(logits):
    np.testing.assert_allclose(probabilities_of(logits, "multi_class"), softmax(logits, axis=1), atol=1e-15)
    np.testing.assert_allclose(probabilities_of(logits, "multi_label"), expit(logits), atol=1e-15)


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_a_single_logit_is_that_of_the_second_class(shape):
    single = np.array([-2.0, 0.0, 1.0, 500.0])
    p = probabilities_of(read_logits(single.reshape(shape), "binary", 2), "binary")
    np.testing.assert_allclose(p[:, 1], expit(single))
    np.testing.assert_allclose(p.sum(axis=1), 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_tensor_reads_like_an_array_of_its_values(dtype):
    tensor = torch.tensor([[1.0, 2.0], [3.0, -4.0]], dtype=dtype, requires_grad=True)
    read = read_logits(tensor, "binary", 2)
    assert read.dtype == np.float64
    np.testing.assert_array_equal(read, [[1, 2], [3, -4]])


def test_labels_are_read_from_any_type_and_the_ignored_stay_so():
    for labels in (
        np.array([0, 1, -100]),
        np.array([0.0, 1.0, np.nan]),
        np.array([0.0, 1.0, -100.0]),
        torch.tensor([0, 1, -100], dtype=torch.int8),
        torch.tensor([0, 1, float("nan")], dtype=torch.bfloat16),
    ):
        read = read_labels(labels, "binary", 2, 3)
        assert read.dtype == np.int64
        assert read.tolist() == [0, 1, -100]
    assert read_labels(np.array([[True, False]]), "multi_label", 2, 1).tolist() == [[1, 0]]


@pytest.mark.parametrize(
    ("logits", "kind", "message"),
    [
        (np.zeros((3, 4)), "multi_class", r"shape \[3, 4\]; multi_class with 2 labels takes \[N, 2\]"),
        (np.zeros(3), "multi_class", r"shape \[3\]"),
        (np.zeros((2, 5, 2)), "multi_class", r"shape \[2, 5, 2\]"),
        (np.array([[0, 1], [np.nan, 0], [0, -np.inf]]), "binary", "logits are not finite in rows 1, 2$"),
        (np.full((30, 2), np.inf), "binary", "in rows 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 20 more"),
    ],
)
def test_logits_that_cannot_be_decided_say_why(logits, kind, message):
    with pytest.raises(ValueError, match=message):
        read_logits(logits, kind, 2)


@pytest.mark.parametrize(
    ("labels", "kind", "message"),
    [
        (np.array([0, 1]), "binary", r"labels have the shape \[2\]; these logits of binary need \[3\]"),
        (np.array([0, 1, 1]), "multi_label", r"need \[3, 2\]"),
        (np.array([0, 2, -1]), "binary", "whole numbers from 0 to 1; others are in rows 1, 2"),
        (np.array([0, 0.5, 1]), "binary", "others are in row 1"),
        (np.array([[0, 1], [1, 1], [2, 0]]), "multi_label", "from 0 to 1; others are in row 2"),
    ],
)
def test_labels_that_are_none_say_where(labels, kind, message):
    with pytest.raises(ValueError, match=message):
        read_labels(labels, kind, 2, 3)
