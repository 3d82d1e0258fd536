import time

import numpy as np
import pytest

from lit_trainer.decision.criteria import BalancedAccuracy, FBeta, YoudenJ
from lit_trainer.decision.intervals import (
    Bootstrap,
    Estimate,
    confusion_estimate,
    rows_estimate,
    threshold_estimate,
)
from lit_trainer.decision.thresholds import best_threshold


def scored(seed, num_rows, share=0.2):
    random = np.random.default_rng(seed)
    labels = (np.arange(num_rows) < share * num_rows).astype(int)
    return 1 / (1 + np.exp(-random.normal(2.0 * labels - 1, 1))), labels


def test_the_threshold_is_chosen_on_all_rows_and_again_on_every_resample():
    scores, labels = scored(0, 200)
    bootstrap = Bootstrap(num_resamples=300, seed=3)
    estimate = threshold_estimate(scores, labels, FBeta(), bootstrap)
    assert estimate.value == best_threshold(scores, labels, FBeta()).threshold

    random = np.random.default_rng(0)  # the same by a loop over resamples
    found = []
    for _ in range(300):
        rows = np.concatenate(
            [random.choice(np.flatnonzero(labels == label), (labels == label).sum()) for label in (0, 1)]
        )
        found.append(best_threshold(scores[rows], labels[rows], FBeta()).threshold)
    low, high = np.quantile(found, [0.025, 0.975])
    assert estimate.low == pytest.approx(low, abs=0.08)
    assert estimate.high == pytest.approx(high, abs=0.08)


def test_the_interval_of_the_threshold_holds_the_best_one_of_endless_rows():
    scores, labels = scored(0, 400_000)
    best = best_threshold(scores, labels, YoudenJ()).threshold
    held = 0
    for seed in range(40):
        estimate = threshold_estimate(*scored(seed, 400), YoudenJ(), Bootstrap(num_resamples=200, seed=seed))
        held += estimate.low <= best <= estimate.high
    assert held >= 34  # 38 on average


def test_the_interval_of_a_metric_holds_the_true_value_about_as_often_as_it_says():
    random = np.random.default_rng(0)
    truth = np.array([[0.9, 0.1], [0.3, 0.7]])
    held = 0
    for seed in range(200):
        confusion = np.array([random.multinomial(300, row) for row in truth]).astype(float)
        estimate = confusion_estimate(confusion, BalancedAccuracy().of_confusion, Bootstrap(300, 0.9, seed))
        held += estimate.low <= 0.8 <= estimate.high
    assert 165 <= held <= 195  # 180 on average


def test_rows_with_several_labels_are_drawn_whole():
    cells = np.ones((50, 2))
    cells[:, 1] = np.arange(50) % 2
    estimate = rows_estimate(cells, lambda sums: sums[..., 1] / sums[..., 0], Bootstrap())
    assert estimate.value == 0.5
    assert estimate.low == pytest.approx(0.5 - 1.96 * np.sqrt(0.25 / 50), abs=0.04)
    assert estimate.high == pytest.approx(0.5 + 1.96 * np.sqrt(0.25 / 50), abs=0.04)


def test_the_same_seed_gives_the_same_interval_and_another_another():
    scores, labels = scored(0, 100)
    first, again, other = (
        threshold_estimate(scores, labels, FBeta(), Bootstrap(num_resamples=50, seed=seed)) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_a_single_positive_is_in_every_resample():
    scores, labels = np.array([0.9, 0.5, 0.1]), np.array([1, 0, 0])
    estimate = threshold_estimate(scores, labels, FBeta(), Bootstrap(num_resamples=100))
    assert np.isfinite([estimate.low, estimate.high]).all()
    assert estimate.low >= 0.1


def test_certain_decisions_have_an_interval_of_no_width():
    estimate = confusion_estimate(np.diag([5.0, 3, 0]), FBeta().of_confusion, Bootstrap())
    assert estimate == Estimate(1.0, 1.0, 1.0)


def test_undefined_resamples_are_left_out():
    assert Bootstrap().interval(0.5, np.array([np.nan, 0.4, 0.4])) == Estimate(0.5, 0.4, 0.4)
    assert Bootstrap().interval(0.5, np.array([np.nan])) == Estimate(0.5, 0.5, 0.5)


def test_a_thousand_resamples_of_ten_thousand_rows_take_seconds_at_most():
    scores, labels = scored(0, 10_000)
    start = time.perf_counter()
    threshold_estimate(scores, labels, FBeta(), Bootstrap())
    assert time.perf_counter() - start < 10  # about 0.5 alone; the rest is for a busy machine


@pytest.mark.parametrize("numbers", [{"num_resamples": 0}, {"level": 1.0}, {"level": float("nan")}])
def test_a_bootstrap_that_makes_no_interval_says_so(numbers):
    with pytest.raises(ValueError, match=r"num_resamples=.*level="):
        Bootstrap(**numbers)
