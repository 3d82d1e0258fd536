"""Row weights: by class, by column or by temperature."""

import numpy as np
import pytest

from lit_trainer.data.plan import StepPlan
from lit_trainer.data.sampling import WeightedSampling

NAMES = ("ham", "spam")
LABELS = np.array([0] * 70 + [1] * 30)


def share_of_spam(sampling, labels=LABELS, columns=None):
    weights = sampling.row_weights(labels, NAMES, columns or {})
    return weights[labels == 1].sum() / weights.sum()


def test_balanced_draws_every_class_equally_often():
    sampling = WeightedSampling(weights="balanced")
    assert share_of_spam(sampling) == pytest.approx(0.5)
    plan = StepPlan(100, batch_size=10, weights=sampling.row_weights(LABELS, NAMES, {}), num_draws=20_000)
    assert np.mean(LABELS[plan.epoch(0).rows]) == pytest.approx(0.5, abs=0.02)


def test_weights_by_name_are_those_of_one_row():
    assert share_of_spam(WeightedSampling(weights={"spam": 7, "ham": 3})) == pytest.approx(0.5)


@pytest.mark.parametrize(("temperature", "share"), [(1.0, 0.3), (1e9, 0.5), (2.0, 30**0.5 / (30**0.5 + 70**0.5))])
def test_temperature_goes_from_as_they_are_to_balanced(temperature, share):
    assert share_of_spam(WeightedSampling(temperature=temperature)) == pytest.approx(share)


def test_a_column_holds_the_weights():
    sampling = WeightedSampling(column="w")
    assert sampling.row_weights(None, (), {"w": ["1", "2.5"]}).tolist() == [1, 2.5]


def test_a_row_without_a_label_is_not_drawn_by_class():
    labels = np.array([0, -100, 1])
    assert WeightedSampling(weights="balanced").row_weights(labels, NAMES, {}).tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WeightedSampling(), "exactly one of weights, column and temperature, not none"),
        (lambda: WeightedSampling(weights="balanced", column="w"), "not weights and column"),
        (lambda: WeightedSampling(temperature=0), "temperature must be above 0, not 0"),
        (
            lambda: WeightedSampling(weights={"ham": 1, "smap": 2}).row_weights(LABELS, NAMES, {}),
            "no class smap; the classes are ham, spam",
        ),
        (lambda: WeightedSampling(weights={"ham": 1}).row_weights(LABELS, NAMES, {}), "no weight for spam"),
        (
            lambda: WeightedSampling(column="weight").row_weights(None, (), {"w": [1]}),
            "no column 'weight'; there are w",
        ),
        (
            lambda: WeightedSampling(weights="balanced").row_weights(np.zeros((3, 2)), NAMES, {}),
            "can only be weighted by a column",
        ),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
