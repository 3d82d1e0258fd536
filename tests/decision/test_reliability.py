import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

from lit_trainer.decision.reliability import brier_score, reliability

quick = settings(deadline=None, max_examples=50)
pairs = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 1)), min_size=1, max_size=60)


def two_columns(rows):
    p = np.array([row[0] for row in rows])
    return np.stack([1 - p, p], axis=1), np.array([row[1] for row in rows])


@quick
@given(pairs)
def test_brier_score_of_two_classes_is_scikit_learns(rows):
    p, labels = two_columns(rows)
    assert brier_score(p, labels, "binary") == pytest.approx(brier_score_loss(labels, p[:, 1], pos_label=1))


@quick
@given(st.integers(0, 1000))
def test_brier_score_of_c_classes_is_scikit_learns(seed):
    random = np.random.default_rng(seed)
    p, labels = random.dirichlet(np.ones(4), size=20), random.integers(0, 4, 20)
    expected = brier_score_loss(labels, p, labels=range(4), scale_by_half=False)
    assert brier_score(p, labels, "multi_class") == pytest.approx(expected)


def test_several_labels_count_one_by_one_and_the_ignored_do_not():
    p, labels = np.array([[0.9, 0.2], [0.4, 0.7]]), np.array([[1, -100], [0, 0]])
    assert brier_score(p, labels, "multi_label") == pytest.approx((0.01 + 0.16 + 0.49) / 3)
    table = reliability(p, labels, "multi_label", num_bins=1)
    assert table.num_rows.tolist() == [3]
    assert table.confidence[0] == pytest.approx(2 / 3)
    assert table.frequency[0] == pytest.approx(1 / 3)


def test_the_table_of_distinct_scores_is_scikit_learns_with_quantiles():
    random = np.random.default_rng(0)
    p = random.random(1000)
    labels = (random.random(1000) < p).astype(int)
    table = reliability(np.stack([1 - p, p], axis=1), labels, "binary", num_bins=10)
    frequency, confidence = calibration_curve(labels, p, n_bins=10, strategy="quantile")
    assert table.num_rows.tolist() == [100] * 10
    np.testing.assert_allclose(table.confidence, confidence)
    np.testing.assert_allclose(table.frequency, frequency)
    assert table.calibration_error == pytest.approx(np.abs(frequency - confidence).mean())


@quick
@given(pairs, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter_and_every_row_counts_once(rows, random):
    table = reliability(*two_columns(rows), "binary")
    random.shuffle(rows)
    again = reliability(*two_columns(rows), "binary")
    assert table.num_rows.tolist() == again.num_rows.tolist()
    assert table.calibration_error == pytest.approx(again.calibration_error)
    assert table.num_rows.sum() == len(rows)
    assert (np.diff(table.confidence) >= 0).all()


def test_equal_scores_share_a_bin():
    p = np.full((10, 2), 0.5)
    table = reliability(p, np.array([1, 0] * 5), "binary")
    assert table.num_rows.tolist() == [10]
    assert table.calibration_error == 0


def test_c_classes_are_judged_by_the_most_probable():
    p = np.array([[0.8, 0.1, 0.1], [0.2, 0.2, 0.6]])
    table = reliability(p, np.array([0, 1]), "multi_class", num_bins=1)
    assert table.confidence[0] == pytest.approx(0.7)
    assert table.frequency[0] == pytest.approx(0.5)


def test_calibrated_scores_have_a_small_error_and_sure_wrong_ones_a_large():
    random = np.random.default_rng(0)
    p = random.random(20_000)
    labels = (random.random(20_000) < p).astype(int)
    assert reliability(np.stack([1 - p, p], axis=1), labels, "binary").calibration_error < 0.02
    assert reliability(np.array([[0.0, 1.0]] * 4), np.zeros(4, int), "binary").calibration_error == 1


@pytest.mark.parametrize("kind", ["binary", "multi_class"])
def test_no_rows_have_no_error(kind):
    assert reliability(np.zeros((0, 2)), np.zeros(0, int), kind).calibration_error == 0
    assert brier_score(np.zeros((0, 2)), np.zeros(0, int), kind) == 0


def test_no_bins_are_refused():
    with pytest.raises(ValueError, match="num_bins=0; it takes a number from 1"):
        reliability(np.ones((1, 2)), np.zeros(1, int), "binary", num_bins=0)
