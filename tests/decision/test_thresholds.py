import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, precision_recall_curve, roc_curve

from lit_trainer.decision.counts import Counts, counts_of
from lit_trainer.decision.criteria import (
    BalancedAccuracy,
    ExpectedCost,
    FBeta,
    FixedPrevalence,
    PrecisionAtRecall,
    RecallAtPrecision,
    YoudenJ,
)
from lit_trainer.decision.thresholds import best_threshold, operating_points

CRITERIA = [
    YoudenJ(),
    BalancedAccuracy(),
    FBeta(),
    FBeta(2.0),
    PrecisionAtRecall(0.7),
    RecallAtPrecision(0.7),
    ExpectedCost(((0, 1), (5, 0))),
    ExpectedCost(((0, 5), (1, 0))),
    FixedPrevalence(0.3),
]
# Few values, so that scores are often equal; also 0, 1 and neighbouring floats.
score = st.one_of(
    st.floats(0, 1),
    st.sampled_from([0.0, 5e-324, 0.25, 0.5, np.nextafter(0.5, 1), 0.75, np.nextafter(1.0, 0), 1.0]),
)
rows = st.lists(st.tuples(score, st.integers(0, 1)), min_size=2, max_size=25).filter(
    lambda pairs: len({label for _, label in pairs}) == 2
)

quick = settings(deadline=None, max_examples=60)


def counts_at(threshold, scores, labels) -> Counts:
    decided = (scores >= threshold).astype(int)
    confusion = np.zeros((2, 2))
    np.add.at(confusion, (labels, decided), 1)
    return counts_of(confusion).of_class(1)


def unzip(pairs):
    return np.array([score for score, _ in pairs]), np.array([label for _, label in pairs])


@pytest.mark.parametrize("criterion", CRITERIA, ids=repr)
@quick
@given(rows)
@example([(0.5, 0), (0.5, 1)])
@example([(1.0, 0), (1.0, 1), (0.0, 1)])
def test_no_threshold_at_all_is_better_than_the_one_found(criterion, pairs):
    scores, labels = unzip(pairs)
    found = best_threshold(scores, labels, criterion)
    got = counts_at(found.threshold, scores, labels)
    assert np.isfinite(found.threshold)
    assert found.value == pytest.approx(float(criterion.value(got)))
    assert found.reached == bool(criterion.reached(got))
    everything = [*scores, 0.0, np.nextafter(1.0, 2.0)]
    rankings = [
        tuple(round(float(goal), 12) for goal in criterion.ranking(counts_at(threshold, scores, labels)))
        for threshold in everything
    ]
    assert tuple(round(float(goal), 12) for goal in criterion.ranking(got)) == max(rankings)


@quick
@given(rows)
def test_operating_points_are_every_decision_once_and_thresholds_make_them(pairs):
    scores, labels = unzip(pairs)
    points = operating_points(scores, labels)
    assert len(points.thresholds) == len(np.unique(scores)) + 1
    assert np.isfinite(points.thresholds).all()
    assert (np.diff(points.thresholds) <= 0).all()
    for i, threshold in enumerate(points.thresholds):
        assert counts_at(threshold, scores, labels) == Counts(*(count[i] for count in points.counts))


@quick
@given(rows)
def test_operating_points_are_those_of_scikit_learns_roc_and_precision_recall_curves(pairs):
    scores, labels = unzip(pairs)
    counts = operating_points(scores, labels).counts
    false_positive_rate, true_positive_rate, _ = roc_curve(labels, scores, drop_intermediate=False)
    np.testing.assert_allclose(1 - counts.specificity, false_positive_rate)
    np.testing.assert_allclose(counts.recall, true_positive_rate)
    precision, recall, _ = precision_recall_curve(labels, scores)
    np.testing.assert_allclose(counts.precision[1:], precision[:-1][::-1])
    np.testing.assert_allclose(counts.recall[1:], recall[:-1][::-1])


def test_f1_at_the_threshold_found_is_scikit_learns():
    random = np.random.default_rng(0)
    labels = (random.random(500) < 0.1).astype(int)
    scores = np.clip(random.normal(0.3 + 0.2 * labels, 0.15), 0, 1)
    found = best_threshold(scores, labels, FBeta())
    assert found.value == pytest.approx(f1_score(labels, scores >= found.threshold))
    assert found.value > f1_score(labels, scores >= 0.5) + 0.02


def test_scikit_learn_starts_at_infinity_and_this_does_not():
    scores, labels = np.array([0.2, 0.8]), np.array([1, 0])
    assert roc_curve(labels, scores)[2][0] == np.inf
    # Youden's J is best, 0, where nothing or all is positive: the former is taken, by a number that JSON can hold.
    assert best_threshold(scores, labels, YoudenJ()).threshold == pytest.approx(0.9)
    assert best_threshold(np.array([1.0, 0.2]), np.array([0, 1]), YoudenJ()).threshold == np.nextafter(1.0, 2.0)


def test_a_threshold_lies_midway_between_the_scores_it_separates():
    assert best_threshold(np.array([0.2, 0.6]), np.array([0, 1]), FBeta()).threshold == pytest.approx(0.4)


def test_equal_scores_are_decided_alike():
    scores, labels = np.full(10, 0.5), np.array([1] * 3 + [0] * 7)
    assert best_threshold(scores, labels, FBeta()).threshold == pytest.approx(0.25)
    assert best_threshold(scores, labels, ExpectedCost(((0, 1), (1, 0)))).threshold == pytest.approx(0.75)


def test_among_equally_good_thresholds_the_highest_is_taken_though_rounding_differs():
    # J is 0.2 after 2 rows (2 of 10 positives, no negative) and after 6 (4 and 2), where floats make it a bit more.
    labels = np.array([1, 1, 0, 1, 0, 1] + [0] * 8 + [1] * 6)
    scores = np.linspace(0.95, 0.05, 20)
    j = YoudenJ().value(operating_points(scores, labels).counts)
    assert j[2] < j[6] == j.max()
    assert scores[2] < best_threshold(scores, labels, YoudenJ()).threshold < scores[1]


def test_a_precision_that_no_threshold_has_is_said_not_to_be_reached():
    scores, labels = np.array([0.9, 0.8, 0.7, 0.1]), np.array([0, 1, 1, 0])
    found = best_threshold(scores, labels, RecallAtPrecision(0.99))
    assert not found.reached
    assert found.threshold == pytest.approx(0.4)  # precision 2/3 is the highest there is
    assert best_threshold(scores, labels, RecallAtPrecision(2 / 3)).reached


def test_precision_at_recall_takes_the_higher_recall_of_equal_precisions():
    scores, labels = np.array([0.9, 0.8, 0.2]), np.array([1, 1, 0])
    assert best_threshold(scores, labels, PrecisionAtRecall(0.5)).threshold == pytest.approx(0.5)


def test_expected_cost_of_calibrated_scores_finds_elkans_threshold():
    random = np.random.default_rng(0)
    scores = random.random(200_000)
    labels = (random.random(200_000) < scores).astype(int)
    found = best_threshold(scores, labels, ExpectedCost(((0, 1), (4, 0))))
    assert found.threshold == pytest.approx(1 / (1 + 4), abs=0.02)


def test_a_fixed_prevalence_is_met_as_nearly_as_can_be():
    scores, labels = np.linspace(0, 1, 101), np.array([0] * 100 + [1])
    assert best_threshold(scores, labels, FixedPrevalence(0.25)).value == pytest.approx(0.25, abs=0.005)


def test_many_rows_take_no_quadratic_time():
    random = np.random.default_rng(0)
    scores, labels = random.random(300_000), random.integers(0, 2, 300_000)
    start = time.perf_counter()
    best_threshold(scores, labels, FBeta())
    assert time.perf_counter() - start < 10  # about 0.1 alone; the rest is for a busy machine


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([0.5, 0.2], [1, 1], "needs positive and negative rows; 2 of 2 are positive"),
        ([], [], "needs positive and negative rows; 0 of 0 are positive"),
        ([0.5], [1], "1 of 1 are positive"),
        ([0.5, np.nan, 0.1], [1, 0, 0], "scores are probabilities, from 0 to 1; others are in row 1"),
        ([0.5, 2.0, -1.0], [1, 0, 0], "others are in rows 1, 2"),
        ([0.5, 0.2, 0.1], [1, 0, -100], "labels of a threshold are 0 and 1; others are in row 2"),
    ],
)
def test_rows_that_allow_no_threshold_say_why(scores, labels, message):
    with pytest.raises(ValueError, match=message):
        best_threshold(np.array(scores), np.array(labels, int), YoudenJ())
