import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lit_trainer.losses.binary_cross_entropy import BinaryCrossEntropy
from lit_trainer.losses.focal import FocalLoss

NAN = float("nan")


def mean(loss, logits, labels):
    total, weight = loss(logits=logits, labels=labels)
    return total / weight


@pytest.mark.parametrize("weights", [None, [1.0, 3.0, 0.5]])
def test_it_is_torchs_with_logits(weights):
    logits, labels = torch.randn(6, 3, dtype=torch.float64), torch.rand(6, 3, dtype=torch.float64)
    expected = F.binary_cross_entropy_with_logits(
        logits, labels, pos_weight=None if weights is None else torch.tensor(weights, dtype=torch.float64)
    )
    torch.testing.assert_close(mean(BinaryCrossEntropy(weights), logits, labels), expected, rtol=1e-13, atol=0)


def test_the_denominator_is_the_number_of_elements_that_count():
    labels = torch.tensor([[1.0, NAN, 0.0], [NAN, NAN, 1.0]])
    loss = BinaryCrossEntropy([5.0, 5.0, 5.0])
    assert loss.weight(labels) == 3
    logits = torch.randn(2, 3)
    expected = F.binary_cross_entropy_with_logits(logits, labels, pos_weight=torch.tensor(5.0), reduction="none")
    torch.testing.assert_close(loss(logits=logits, labels=labels)[0], expected.nansum())


def test_torchmetrics_1367_labels_may_be_integers_as_metrics_want_or_floats():
    logits, labels = torch.randn(4, 3), torch.tensor([[0, 1, 1], [1, -100, 0], [0, 0, 0], [1, 1, -100]])
    as_floats = labels.float().masked_fill(labels == -100, NAN)
    whole, floats = (BinaryCrossEntropy()(logits=logits, labels=each) for each in (labels, as_floats))
    assert whole == floats
    assert whole[1] == 10


@pytest.mark.parametrize(
    ("logits", "labels"), [((5, 1), (5,)), ((5,), (5,)), ((5,), (5, 1)), ((5, 1), (5, 1)), ((5, 1, 1), (5, 1))]
)
def test_one_logit_and_its_label_may_have_an_axis_of_one(logits, labels):
    x, y = torch.randn(5), torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0])
    expected = F.binary_cross_entropy_with_logits(x, y, pos_weight=torch.tensor(4.0))
    torch.testing.assert_close(mean(BinaryCrossEntropy([4.0]), x.view(logits), y.view(labels)).float(), expected)


def test_one_logit_per_token_takes_one_positive_weight():
    logits, labels = torch.randn(2, 3, 1), torch.ones(2, 3)
    total, weight = BinaryCrossEntropy([4.0])(logits=logits, labels=labels)
    torch.testing.assert_close(total, -4 * F.logsigmoid(logits).sum())
    assert weight == 6


def test_a_logit_and_its_negative_are_two_classes():
    """One logit x is a model with the logits 0 and x; so is its focal loss."""
    x, y = torch.randn(7, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1, 0, 1])
    for gamma in (0.0, 0.5, 2.0):
        one = BinaryCrossEntropy(gamma=gamma)(logits=x, labels=y)
        two = FocalLoss(gamma)(logits=torch.stack([0 * x, x], -1), labels=y)
        torch.testing.assert_close(one, two, rtol=1e-12, atol=0)


def test_smoothing_moves_both_targets_towards_a_half():
    logits, labels = torch.randn(5, 2, dtype=torch.float64), torch.tensor([[0.0, 1.0]] * 5, dtype=torch.float64)
    expected = F.binary_cross_entropy_with_logits(logits, labels * 0.8 + 0.1)
    torch.testing.assert_close(mean(BinaryCrossEntropy(label_smoothing=0.2), logits, labels), expected)


def test_weights_smoothing_and_gamma_compose_as_computed_by_hand():
    logits, labels = np.random.default_rng(0).normal(size=(6, 2)), np.array([[0, 1], [1, 1], [0, 0]] * 2)
    p, q, w = 1 / (1 + np.exp(-logits)), labels * 0.9 + 0.05, np.array([1.0, 4.0])
    expected = -(w * q * (1 - p) ** 1.5 * np.log(p) + (1 - q) * p**1.5 * np.log(1 - p)).sum()
    total, _ = BinaryCrossEntropy([1.0, 4.0], 0.1, 1.5)(logits=torch.tensor(logits), labels=torch.tensor(labels))
    assert total.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 0.01, 0.5, 2.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_slopes_are_finite_where_the_model_is_sure(gamma, dtype):
    logits = torch.tensor([6e4, 200.0, 20.0, -20.0, -200.0, -6e4], dtype=dtype).repeat(2, 1).requires_grad_()
    labels = torch.tensor([0, 1]).repeat_interleave(6).view(2, 6)
    BinaryCrossEntropy(gamma=gamma)(logits=logits, labels=labels)[0].backward()
    assert logits.grad.isfinite().all()


def test_balanced_gives_each_class_as_much_yes_as_no():
    loss = BinaryCrossEntropy("balanced")
    loss.fit_to_labels(["a", "b"], [2, 8], num_rows=10)
    assert loss.positive_weights.for_classes(2).tolist() == [4, 0.25]


def test_balanced_cannot_be_where_every_row_has_the_label():
    with pytest.raises(ValueError, match="positive_weights: balanced needs training rows without the label b"):
        BinaryCrossEntropy("balanced").fit_to_labels(["a", "b"], [2, 10], num_rows=10)


def test_balanced_cannot_be_where_no_row_has_the_label():
    with pytest.raises(ValueError, match="positive_weights: balanced needs training rows of every label; none of b"):
        BinaryCrossEntropy("balanced").fit_to_labels(["a", "b"], [2, 0], num_rows=10)


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (torch.ones(4, 3), torch.ones(4), r"one label for each logit: the logits are \[4, 3\] and the labels \[4\]"),
        (torch.ones(4, 1), torch.ones(4, 3), r"the logits are \[4, 1\] and the labels \[4, 3\]"),
        (torch.ones(4), torch.ones(5), r"the logits are \[4\] and the labels \[5\]"),
    ],
)
def test_shapes_that_would_be_broadcast_are_refused(logits, labels, message):
    with pytest.raises(ValueError, match=message):
        BinaryCrossEntropy()(logits=logits, labels=labels)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gamma": -1}, "gamma is -1; it has to be a finite number of at least 0"),
        ({"label_smoothing": -0.5}, r"label_smoothing is -0.5; it has to be in \[0, 1\]"),
        ({"positive_weights": [-1]}, "positive_weights takes finite numbers of at least 0, not -1"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        BinaryCrossEntropy(**arguments)


def test_a_wrong_number_of_positive_weights_is_told():
    with pytest.raises(ValueError, match="positive_weights has 2 weights, and there are 3 classes"):
        BinaryCrossEntropy([1, 2])(logits=torch.ones(2, 3), labels=torch.ones(2, 3))
