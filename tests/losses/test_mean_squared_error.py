import pytest
import torch
from torch.nn import functional as F

from lit_trainer.losses.mean_squared_error import MeanSquaredError

NAN = float("nan")


def test_it_is_torchs():
    logits, labels = torch.randn(5, 2, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    total, weight = MeanSquaredError()(logits=logits, labels=labels)
    torch.testing.assert_close(total / weight, F.mse_loss(logits, labels))


def test_an_axis_of_one_is_not_broadcast():
    """Predictions [B, 1] beside labels [B] make a [B, B] of differences in plain torch."""
    logits, labels = torch.randn(5, 1), torch.randn(5)
    total, weight = MeanSquaredError()(logits=logits, labels=labels)
    torch.testing.assert_close(total, ((logits[:, 0] - labels) ** 2).sum())
    assert weight == 5


def test_missing_values_are_left_out_of_total_weight_and_gradient():
    logits = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    total, weight = MeanSquaredError()(logits=logits, labels=torch.tensor([[0.0, NAN], [NAN, 1.0]]))
    total.backward()
    assert (total, weight) == (10, 2)
    assert logits.grad.tolist() == [[2, 0], [0, 6]]


def test_minus_a_hundred_is_a_value():
    assert MeanSquaredError()(logits=torch.zeros(1, 1), labels=torch.tensor([-100.0])) == (10_000, 1)


def test_integer_labels_are_refused_since_minus_a_hundred_would_be_ignored():
    with pytest.raises(ValueError, match=r"MeanSquaredError takes float labels \(NaN is ignored\) and got int64"):
        MeanSquaredError()(logits=torch.zeros(2, 1), labels=torch.tensor([1, 2]))


def test_shapes_that_do_not_fit_are_told():
    with pytest.raises(ValueError, match=r"the logits are \[4, 2\] and the labels \[4\]"):
        MeanSquaredError()(logits=torch.zeros(4, 2), labels=torch.zeros(4))
