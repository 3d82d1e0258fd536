import pytest
import torch
from torch.nn import functional as F

from lit_trainer.losses.huber import Huber
from lit_trainer.losses.mean_squared_error import MeanSquaredError


def test_it_is_torchs():
    logits, labels = 3 * torch.randn(9, dtype=torch.float64), torch.randn(9, dtype=torch.float64)
    total, weight = Huber(0.7)(logits=logits, labels=labels)
    torch.testing.assert_close(total / weight, F.huber_loss(logits, labels, delta=0.7))


def test_with_a_large_delta_it_is_half_the_squared_error():
    logits, labels = torch.randn(9, 1), torch.randn(9)
    total, _ = Huber(1e6)(logits=logits, labels=labels)
    torch.testing.assert_close(total, MeanSquaredError()(logits=logits, labels=labels)[0] / 2)


def test_outliers_pull_with_a_constant_slope():
    logits = torch.tensor([10.0, 1000.0, -1000.0], requires_grad=True)
    Huber(2.0)(logits=logits, labels=torch.zeros(3))[0].backward()
    assert logits.grad.tolist() == [2, 2, -2]


@pytest.mark.parametrize("delta", [0, -1.0, float("inf"), float("nan")])
def test_delta_is_above_zero(delta):
    with pytest.raises(ValueError, match=r"delta is .*; it has to be a finite number above 0"):
        Huber(delta)


def test_integer_labels_are_refused():
    with pytest.raises(ValueError, match="Huber takes float labels"):
        Huber()(logits=torch.zeros(2, 1), labels=torch.tensor([1, 2]))
