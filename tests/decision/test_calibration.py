import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from lit_trainer.decision.calibration import (
    MAX_TEMPERATURE,
    IsotonicScaling,
    TemperatureScaling,
    VectorScaling,
    calibration_from_dict,
)
from lit_trainer.decision.probabilities import probabilities_of

METHODS = [TemperatureScaling, VectorScaling, IsotonicScaling]
KINDS = ["binary", "multi_class", "multi_label"]


def overconfident(kind, num_rows=2000, seed=0, factor=3.0):
    """Logits that are ``factor`` times too large, and labels."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(num_rows, 2 if kind == "binary" else 3)) * 2
    p = probabilities_of(logits, kind)
    if kind == "multi_label":
        return factor * logits, (random.random(p.shape) < p).astype(int)
    return factor * logits, np.array([random.choice(len(row), p=row) for row in p])


def surprise(p, labels, kind):
    """The mean negative log-likelihood."""
    p = np.clip(p, 1e-12, 1 - 1e-12)
    if kind == "multi_label":
        return -np.where(labels == 1, np.log(p), np.log1p(-p)).mean()
    return -np.log(p[np.arange(len(p)), labels]).mean()


@pytest.mark.parametrize("kind", KINDS)
def test_temperature_finds_by_how_much_logits_are_too_large(kind):
    logits, labels = overconfident(kind)
    assert TemperatureScaling.fit(logits, labels, kind).temperature == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_temperature_is_the_most_likely_one(kind):
    logits, labels = overconfident(kind, num_rows=20_000)  # so many that the one row added hardly counts
    best = minimize(
        lambda t: surprise(probabilities_of(logits / t[0], kind), labels, kind), [2.0], method="Nelder-Mead"
    )
    assert TemperatureScaling.fit(logits, labels, kind).temperature == pytest.approx(best.x[0], rel=1e-2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_calibration_makes_fresh_rows_more_likely(method, kind):
    fitted = method.fit(*overconfident(kind, seed=0), kind)
    logits, labels = overconfident(kind, seed=1)
    before = surprise(probabilities_of(logits, kind), labels, kind)
    assert surprise(fitted.probabilities(logits, kind), labels, kind) < before - 0.05


def test_vector_scaling_of_labels_is_logistic_regression_of_each():
    logits, labels = overconfident("multi_label", num_rows=5000)
    fitted = VectorScaling.fit(logits, labels, "multi_label")
    for k in range(3):
        reference = LogisticRegression(C=np.inf, tol=1e-10).fit(logits[:, [k]], labels[:, k])
        assert fitted.factors[k] == pytest.approx(reference.coef_[0, 0], rel=5e-3)
        assert fitted.offsets[k] == pytest.approx(reference.intercept_[0], abs=5e-3)


def test_vector_scaling_of_two_classes_is_logistic_regression_of_their_difference():
    logits, labels = overconfident("binary", num_rows=5000)
    fitted = VectorScaling.fit(logits, labels, "binary")
    difference = logits[:, [1]] - logits[:, [0]]
    reference = LogisticRegression(C=np.inf, tol=1e-10).fit(difference, labels)
    assert fitted.factors == (pytest.approx(reference.coef_[0, 0], rel=5e-3),) * 2
    assert fitted.offsets[1] - fitted.offsets[0] == pytest.approx(reference.intercept_[0], abs=5e-3)
    np.testing.assert_allclose(
        fitted.probabilities(logits, "binary")[:, 1], reference.predict_proba(difference)[:, 1], atol=2e-3
    )
    assert VectorScaling.fit(logits + 7, labels, "binary").factors == pytest.approx(fitted.factors)


def test_vector_scaling_finds_factors_and_offsets():
    random = np.random.default_rng(0)
    logits = random.normal(size=(20_000, 3)) * 2
    factors, offsets = np.array([0.5, 1.0, 2.0]), np.array([1.0, 0.0, -1.0])
    p = probabilities_of(logits * factors + offsets, "multi_class")
    labels = (random.random((20_000, 1)) > p.cumsum(axis=1)).sum(axis=1)
    fitted = VectorScaling.fit(logits, labels, "multi_class")
    np.testing.assert_allclose(fitted.factors, factors, atol=0.1)
    np.testing.assert_allclose(np.diff(fitted.offsets), np.diff(offsets), atol=0.1)


def test_isotonic_scaling_of_two_classes_is_scikit_learns_curve():
    logits, labels = overconfident("binary")
    p = probabilities_of(logits, "binary")[:, 1]
    reference = IsotonicRegression(out_of_bounds="clip").fit(p, labels).predict(p)
    calibrated = IsotonicScaling.fit(logits, labels, "binary").probabilities(logits, "binary")
    np.testing.assert_allclose(calibrated[:, 1], reference, atol=1e-6)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000), st.integers(1, 12), st.sampled_from(METHODS), st.sampled_from(KINDS))
def test_calibrated_probabilities_are_probabilities_however_few_the_rows(seed, num_rows, method, kind):
    fitted = method.fit(*overconfident(kind, num_rows, seed), kind)
    p = fitted.probabilities(overconfident(kind, 50, seed + 1)[0], kind)
    assert ((p >= 0) & (p <= 1)).all()
    if kind != "multi_label":
        np.testing.assert_allclose(p.sum(axis=1), 1)


@pytest.mark.parametrize("method", [TemperatureScaling, VectorScaling])
@pytest.mark.parametrize("num_rows", [3, 30, 3000])
def test_perfect_rows_end_as_sure_as_their_number_allows(method, num_rows):
    labels = np.arange(num_rows) % 3
    logits = 10 * np.eye(3)[labels]
    p = method.fit(logits, labels, "multi_class").probabilities(logits, "multi_class")
    np.testing.assert_allclose(p[np.arange(num_rows), labels], (num_rows + 1 / 3) / (num_rows + 1), rtol=1e-3)


def test_temperature_is_bounded_where_logits_are_wrong_throughout():
    labels = np.arange(30) % 3
    fitted = TemperatureScaling.fit(-10 * np.eye(3)[labels], labels, "multi_class")
    assert fitted.temperature == pytest.approx(MAX_TEMPERATURE)


@pytest.mark.parametrize("constant", [0.0, 0.1, -7.0])
def test_temperature_stays_one_where_logits_say_nothing(constant):
    labels = np.array([0, 1, 1, 2])
    assert TemperatureScaling.fit(np.full((4, 3), constant), labels, "multi_class").temperature == 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_classes_seen", [1, 2])
def test_classes_without_rows_and_constant_logits_leave_finite_numbers(method, kind, num_classes_seen):
    num_classes = 2 if kind == "binary" else 3
    labels = np.arange(20) % num_classes_seen
    labels = np.eye(num_classes, dtype=int)[labels] if kind == "multi_label" else labels
    for logits in (np.ones((20, num_classes)), np.random.default_rng(0).normal(size=(20, num_classes))):
        p = method.fit(logits, labels, kind).probabilities(logits, kind)
        assert np.isfinite(p).all()


@pytest.mark.parametrize("method", METHODS)
def test_ignored_labels_change_nothing(method):
    logits, labels = overconfident("multi_label", num_rows=500)
    labels[::3, 0] = -100
    changed = logits.copy()
    changed[::3, 0] += 5
    first, second = (
        method.fit(z, labels, "multi_label").probabilities(logits, "multi_label") for z in (logits, changed)
    )
    np.testing.assert_allclose(first, second, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_a_calibration_reads_what_it_writes(method, kind):
    fitted = method.fit(*overconfident(kind, num_rows=100), kind)
    assert calibration_from_dict(fitted.to_dict()) == fitted


def test_vector_scaling_can_be_fitted_where_gradients_are_off():
    logits, labels = overconfident("multi_class", num_rows=200)
    expected = VectorScaling.fit(logits, labels, "multi_class")
    with torch.inference_mode():
        assert VectorScaling.fit(logits, labels, "multi_class") == expected
    with torch.no_grad():
        assert VectorScaling.fit(logits, labels, "multi_class") == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "calibration method is None; it can be temperature, vector or isotonic"),
        ({"method": "beta"}, "calibration method is 'beta'"),
        ({"method": "temperature"}, "calibration by temperature has other numbers than it takes"),
        ({"method": "temperature", "temperature": 0}, "temperature=0; it is a positive number"),
        ({"method": "temperature", "temperature": "hot"}, "has other numbers"),
        ({"method": "vector", "factors": [1], "offsets": []}, r"factors=\[1\], offsets=\[\]; they are finite"),
        ({"method": "isotonic", "curves": [{"scores": [0]}]}, "calibration by isotonic has other numbers"),
    ],
)
def test_data_that_are_no_calibration_say_so(data, message):
    with pytest.raises(ValueError, match=message):
        calibration_from_dict(data)
