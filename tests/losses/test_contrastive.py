import math

import numpy as np
import pytest
import torch

from lit_trainer.losses.contrastive import SupervisedContrastive


def by_hand(features, labels, temperature):
    """Equation 2 of Khosla et al. 2020 in loops; ignored rows are not there at all."""
    kept = [i for i, label in enumerate(labels) if label != -100]
    z = features / np.linalg.norm(features, axis=1, keepdims=True)
    total = 0.0
    for i in kept:
        others = [a for a in kept if a != i]
        positives = [p for p in others if labels[p] == labels[i]]
        normaliser = sum(math.exp(z[i] @ z[a] / temperature) for a in others)
        for p in positives:
            total -= math.log(math.exp(z[i] @ z[p] / temperature) / normaliser) / len(positives)
    return total, len(kept)


@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 1, 2], [0, -100, 0, 1, -100, 1], [0, 1, 2, 3, 4, 5], [7] * 6])
@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_it_is_equation_two_computed_by_hand(labels, temperature):
    features = np.random.default_rng(0).normal(size=(6, 4))
    found = SupervisedContrastive(temperature)(features=torch.tensor(features), labels=torch.tensor(labels))
    np.testing.assert_allclose(found, by_hand(features, labels, temperature), rtol=1e-11, atol=1e-12)


def test_a_row_without_another_of_its_class_adds_nothing_and_counts():
    features = torch.randn(3, 4, requires_grad=True)
    total, weight = SupervisedContrastive()(features=features, labels=torch.tensor([0, 1, 2]))
    total.backward()
    assert (total, weight) == (0, 3)
    assert not features.grad.any()


@pytest.mark.parametrize("labels", [[0], [-100], [0, -100], []])
def test_too_few_rows_to_compare_give_zero_and_no_nan(labels):
    features = torch.randn(len(labels), 4, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        total, _ = SupervisedContrastive()(features=features, labels=torch.tensor(labels, dtype=torch.long))
        total.backward()
    assert total == 0
    assert not features.grad.any()


def test_two_rows_of_one_class_alone_have_nothing_to_be_told_from():
    total, _ = SupervisedContrastive()(features=torch.randn(2, 4), labels=torch.tensor([1, 1]))
    assert total == pytest.approx(0, abs=1e-6)


def test_only_directions_matter():
    features, labels = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 0, 1, 1, 2, 2])
    scaled = features * torch.rand(6, 1, dtype=torch.float64).add(0.1)
    for here, there in zip(
        SupervisedContrastive()(features=features, labels=labels),
        SupervisedContrastive()(features=scaled, labels=labels),
        strict=True,
    ):
        torch.testing.assert_close(here, there)


def test_a_feature_of_zeros_has_a_finite_slope():
    features = torch.zeros(4, 3, requires_grad=True)
    SupervisedContrastive()(features=features, labels=torch.tensor([0, 0, 1, 1]))[0].backward()
    assert features.grad.isfinite().all()


def test_products_stay_in_float32_under_autocast():
    features, labels = torch.randn(6, 64), torch.tensor([0, 0, 1, 1, 2, 2])
    outside = SupervisedContrastive(0.01)(features=features, labels=labels)
    with torch.autocast("cpu", torch.bfloat16):
        assert SupervisedContrastive(0.01)(features=features, labels=labels) == outside


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        (torch.ones(4, 2, 3), torch.zeros(4).long()),
        (torch.ones(4, 3), torch.zeros(4)),
        (torch.ones(4, 3), torch.zeros(3).long()),
    ],
)
def test_what_does_not_fit_together_is_told(features, labels):
    with pytest.raises(ValueError, match=r"SupervisedContrastive takes features \[B, D\] and class numbers \[B\]; got"):
        SupervisedContrastive()(features=features, labels=labels)


def test_a_model_without_features_is_told():
    with pytest.raises(
        ValueError, match="the loss SupervisedContrastive asks for features; a loss can ask, by name, for"
    ):
        SupervisedContrastive()(logits=torch.ones(2, 2), labels=torch.tensor([0, 1]))


@pytest.mark.parametrize("temperature", [0, -1.0, float("nan"), float("inf")])
def test_the_temperature_is_above_zero(temperature):
    with pytest.raises(ValueError, match=r"temperature is .*; it has to be a finite number above 0"):
        SupervisedContrastive(temperature)
