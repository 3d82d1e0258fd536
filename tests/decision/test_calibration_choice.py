import numpy as np
import pytest

from lit_trainer.decision.calibration import IsotonicScaling, TemperatureScaling, VectorScaling
from lit_trainer.decision.calibration_choice import fit_calibration, likeliest


def gaussian(num_rows, num_classes, shift, seed=0):
    """Logits twice too large of a model that knows the classes, but for their frequencies.

    The log frequencies are subtracted ``shift`` times: once is what balanced class weights do.
    """
    random = np.random.default_rng(seed)
    prior = np.arange(1, num_classes + 1) / np.arange(1, num_classes + 1).sum()
    labels = random.choice(num_classes, p=prior, size=num_rows)
    logits = random.normal(size=(num_rows, num_classes)) + 1.5 * np.eye(num_classes)[labels]
    return 2 * (1.5 * logits + (1 - shift) * np.log(prior)), labels


def test_classes_that_class_weights_have_shifted_get_offsets():
    assert likeliest(*gaussian(2000, 4, shift=1), "multi_class") is VectorScaling


@pytest.mark.parametrize("shift", [0, 1])
def test_two_classes_always_do(shift):
    assert likeliest(*gaussian(30, 2, shift), "binary") is VectorScaling


def test_many_classes_with_few_rows_get_one_temperature():
    assert likeliest(*gaussian(100, 20, shift=0), "multi_class") is TemperatureScaling


def test_each_class_of_several_labels_can_get_its_own_offset():
    random = np.random.default_rng(0)
    labels = (random.random((1000, 3)) < [0.5, 0.2, 0.1]).astype(int)
    logits = random.normal(size=(1000, 3)) + labels * 2 - 1
    assert likeliest(logits + [0, 4, -4], labels, "multi_label") is VectorScaling


def test_what_is_ignored_has_no_say():
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, (300, 2))
    logits = random.normal(size=(300, 2)) + 2 * labels - 1 + [0, 5]
    shifted = likeliest(logits, labels, "multi_label")
    labels[:, 1] = -100
    assert (shifted, likeliest(logits, labels, "multi_label")) == (VectorScaling, TemperatureScaling)


@pytest.mark.parametrize("num_rows", [1, 2, 3])
def test_a_handful_of_rows_is_enough(num_rows):
    logits, labels = gaussian(num_rows, 3, shift=0)
    p = fit_calibration("auto", logits, labels, "multi_class").probabilities(logits, "multi_class")
    assert np.allclose(p.sum(axis=1), 1)


def test_rows_that_come_true_against_all_odds_leave_a_choice():
    labels = np.arange(30) % 3
    logits = 2000.0 * np.eye(3)[labels]
    labels[:3] = [1, 2, 0]
    assert likeliest(logits, labels, "multi_class") in (TemperatureScaling, VectorScaling)


@pytest.mark.parametrize("shift", [0, 1])
def test_auto_is_the_fit_of_the_likeliest_and_a_method_is_itself(shift):
    rows = gaussian(500, 3, shift)
    assert fit_calibration("auto", *rows, "multi_class") == likeliest(*rows, "multi_class").fit(*rows, "multi_class")
    assert fit_calibration(IsotonicScaling, *rows, "multi_class") == IsotonicScaling.fit(*rows, "multi_class")
