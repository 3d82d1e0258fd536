import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from lit_trainer.losses.cross_entropy import CrossEntropy


def mean(loss, logits, labels):
    total, weight = loss(logits=logits, labels=labels)
    return total / weight


def by_hand(logits, labels, weights, smoothing):
    """An independent reference, row by row in numpy: the sum and its denominator."""
    total = weight = 0.0
    for row, label in zip(logits, labels, strict=True):
        if label == -100:
            continue
        log_p = row - row.max() - np.log(np.exp(row - row.max()).sum())
        target = np.full(len(row), smoothing / len(row))
        target[label] += 1 - smoothing
        total -= (weights * target * log_p).sum()
        weight += weights[label]
    return total, weight


@settings(deadline=None, max_examples=50)
@given(
    labels=st.lists(st.sampled_from([0, 1, 2, 3, -100]), min_size=1, max_size=9),
    smoothing=st.floats(0, 1),
    weights=st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=4, max_size=4).filter(any),
    seed=st.integers(0, 99),
)
def test_it_is_the_sum_and_the_denominator_computed_by_hand(labels, smoothing, weights, seed):
    logits = np.random.default_rng(seed).normal(scale=5, size=(len(labels), 4))
    loss = CrossEntropy(weights, smoothing)
    found = loss(logits=torch.tensor(logits), labels=torch.tensor(labels))
    np.testing.assert_allclose(found, by_hand(logits, labels, np.array(weights), smoothing), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("weights", [None, [1.0, 3.0, 0.5]])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_total_by_weight_is_torchs_mean(weights, smoothing):
    logits, labels = torch.randn(9, 3, dtype=torch.float64), torch.tensor([0, 1, 2, -100, 1, 1, 0, -100, 2])
    weight = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    expected = F.cross_entropy(logits, labels, weight, label_smoothing=smoothing)
    torch.testing.assert_close(mean(CrossEntropy(weights, smoothing), logits, labels), expected, rtol=1e-14, atol=0)


def test_tokens_are_rows():
    logits, labels = torch.randn(3, 4, 5), torch.randint(5, (3, 4))
    torch.testing.assert_close(
        CrossEntropy()(logits=logits, labels=labels),
        CrossEntropy()(logits=logits.flatten(0, 1), labels=labels.flatten()),
    )


def test_strided_logits_are_taken_as_they_are():
    logits, labels = torch.randn(3, 5, 4).transpose(1, 2), torch.randint(5, (4, 3)).T
    assert mean(CrossEntropy(), logits, labels) == pytest.approx(F.cross_entropy(logits.transpose(1, 2), labels).item())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_lightning_2468_half_logits_with_weights_one_and_three(dtype):
    logits = torch.tensor([[2e4, -2e4], [1.0, 2.0]], dtype=dtype, requires_grad=True)
    labels = torch.tensor([1, 0])
    loss = CrossEntropy([1, 3]).to(dtype)
    total, weight = loss(logits=logits, labels=labels)
    total.backward()
    expected = F.cross_entropy(logits.detach().float(), labels, torch.tensor([1.0, 3.0]), reduction="sum")
    assert total.dtype == torch.float32
    assert (total, weight) == (expected, 4)
    assert logits.grad.dtype == dtype
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_pytorch_70348_a_batch_of_ignored_labels_adds_nothing(smoothing):
    logits = torch.randn(4, 3, requires_grad=True)
    total, weight = CrossEntropy([1, 2, 3], smoothing)(logits=logits, labels=torch.full((4,), -100))
    total.backward()
    assert (total, weight) == (0, 0)
    assert not logits.grad.any()


def test_pytorch_70348_a_batch_of_classes_that_weigh_nothing_adds_nothing():
    logits = torch.randn(4, 3, requires_grad=True)
    total, weight = CrossEntropy([0, 2, 3])(logits=logits, labels=torch.zeros(4, dtype=torch.long))
    total.backward()
    assert (total, weight) == (0, 0)
    assert not logits.grad.any()


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (torch.ones(4, 1), torch.zeros(4).long(), "CrossEntropy needs two logits or more .* BinaryCrossEntropy"),
        (torch.ones(4, 3), torch.zeros(4, 3), "takes class numbers and got float32 labels; .* BinaryCrossEntropy"),
        (torch.ones(4, 3), torch.zeros(4, 1).long(), r"the labels have to be \[4\] and not \[4, 1\]"),
        (torch.ones(4, 3), torch.zeros(3).long(), r"the labels have to be \[4\] and not \[3\]"),
        (
            {"a": torch.ones(4, 3)},
            torch.zeros(4).long(),
            "takes the logits of one head and got those of a; .*MultiTask",
        ),
    ],
)
def test_what_does_not_fit_together_is_told(logits, labels, message):
    with pytest.raises(ValueError, match=message):
        CrossEntropy()(logits=logits, labels=labels)


@pytest.mark.parametrize("smoothing", [-0.1, 1.1, float("nan")])
def test_smoothing_is_a_share(smoothing):
    with pytest.raises(ValueError, match=r"label_smoothing is .*; it has to be in \[0, 1\]"):
        CrossEntropy(label_smoothing=smoothing)
