import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_trainer.losses.cross_entropy import CrossEntropy
from lit_trainer.losses.focal import FocalLoss

LABELS = torch.tensor([0, 1, 2, -100, 1, 1, 0, -100, 2])


@pytest.mark.parametrize("weights", [None, [1.0, 3.0, 0.0]])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_focal_with_gamma_zero_is_cross_entropy(weights, smoothing):
    logits = torch.randn(9, 3, dtype=torch.float64)
    focal = FocalLoss(0.0, weights, smoothing)(logits=logits, labels=LABELS)
    torch.testing.assert_close(
        focal, CrossEntropy(weights, smoothing)(logits=logits, labels=LABELS), rtol=1e-13, atol=0
    )


@settings(deadline=None, max_examples=50)
@given(
    labels=st.lists(st.sampled_from([0, 1, 2, -100]), min_size=1, max_size=6),
    gamma=st.floats(0, 5),
    smoothing=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_it_is_the_sum_computed_by_hand(labels, gamma, smoothing, seed):
    logits, weights = np.random.default_rng(seed).normal(size=(len(labels), 3)), [1.0, 3.0, 0.5]
    expected = 0.0
    for row, label in zip(logits, labels, strict=True):
        p = np.exp(row) / np.exp(row).sum()
        target = [(1 - smoothing) * (c == label) + smoothing / 3 for c in range(3)]
        if label != -100:
            expected -= sum(w * q * (1 - x) ** gamma * np.log(x) for w, q, x in zip(weights, target, p, strict=True))
    total, _ = FocalLoss(gamma, weights, smoothing)(logits=torch.tensor(logits), labels=torch.tensor(labels))
    assert total.item() == pytest.approx(expected, rel=1e-11)


def test_what_is_right_counts_less_the_larger_gamma_is():
    logits, labels = torch.tensor([[3.0, 0.0], [0.5, 0.0]]), torch.tensor([0, 0])
    totals = [FocalLoss(gamma)(logits=logits, labels=labels)[0] for gamma in (0.0, 0.5, 1.0, 2.0, 5.0)]
    assert totals == sorted(totals, reverse=True)


@pytest.mark.parametrize("gamma", [0.01, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_slopes_are_finite_where_the_model_is_sure(gamma, smoothing, dtype):
    for size in (1.0, 20.0, 90.0, 200.0, 6e4):
        logits = torch.tensor(
            [[size, -size, 0.0], [-size, size, 0.0], [0.0, 0.0, 0.0]], dtype=dtype, requires_grad=True
        )
        total, _ = FocalLoss(gamma, label_smoothing=smoothing)(logits=logits, labels=torch.tensor([0, 0, 2]))
        total.backward()
        assert total.isfinite()
        assert logits.grad.isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gamma": -1}, "gamma is -1; it has to be a finite number of at least 0"),
        ({"gamma": float("inf")}, "gamma is inf"),
        ({"label_smoothing": 2}, r"label_smoothing is 2; it has to be in \[0, 1\]"),
        ({"class_weights": "weights"}, "class_weights is 'weights'; it takes balanced"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        FocalLoss(**arguments)


def test_one_logit_is_sent_to_binary_cross_entropy():
    with pytest.raises(ValueError, match=r"FocalLoss needs two logits or more .* BinaryCrossEntropy"):
        FocalLoss()(logits=torch.ones(2, 1), labels=torch.tensor([0, 0]))


def test_weights_for_another_number_of_classes_are_refused():
    with pytest.raises(ValueError, match="class_weights has 2 weights, and there are 3 classes"):
        FocalLoss(class_weights=[1, 2])(logits=torch.ones(2, 3), labels=torch.tensor([0, 1]))
