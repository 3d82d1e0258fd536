"""Differences between two models on the same rows: against known values and, where it is installed, scipy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score

from lit_trainer.decision.paired import (
    accuracy,
    f1_macro,
    f1_of_last,
    holm,
    mcnemar,
    paired_bootstrap,
    sign_test,
)

counts = st.integers(0, 60)


@given(counts, counts)
def test_the_sign_test_is_scipys(one: int, other: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binomtest(one, one + other).pvalue if one + other else 1.0
    assert sign_test(one, other) == pytest.approx(expected)


def test_mcnemar_has_the_value_of_the_books() -> None:
    """59 and 6 discordant pairs: p = 2 * P(X <= 6), X binomial of 65 and a half."""
    labels = np.ones(100, np.int64)
    first, second = np.ones((2, 1, 100), np.int64)
    first[0, :59] = 0
    second[0, 59:65] = 0
    found = mcnemar(labels, first, second)
    assert found[:2] == (6, 59)
    assert found.p == pytest.approx(sum(math.comb(65, k) for k in range(7)) * 2 / 2**65)
    assert mcnemar(labels, second, first) == (59, 6, found.p)


def test_a_row_counts_once_however_many_seeds_there_are() -> None:
    labels = np.ones(8, np.int64)
    first, second = np.zeros((1, 8), np.int64), np.ones((1, 8), np.int64)
    once, often = mcnemar(labels, first, second), mcnemar(labels, first.repeat(5, 0), second.repeat(5, 0))
    assert once == often == (0, 8, 2 / 2**8)


def test_equal_models_do_not_differ() -> None:
    labels = np.array([0, 1, 1, 0, 1])
    decided = np.array([[0, 1, 0, 0, 1], [0, 0, 0, 1, 1]])
    assert mcnemar(labels, decided, decided) == (0, 0, 1.0)
    assert paired_bootstrap(labels, decided, decided, accuracy, num_resamples=50) == (0, 0, 0, 1)


@given(st.integers(0, 10_000), st.integers(2, 4))
def test_measures_are_those_of_scikit_learn(seed: int, num_classes: int) -> None:
    random = np.random.default_rng(seed)
    labels, first, second = random.integers(0, num_classes, (3, 30))
    for measure, expected in (
        (accuracy, accuracy_score),
        (f1_macro, lambda y, d: f1_score(y, d, average="macro", zero_division=0)),
    ):
        found = paired_bootstrap(labels, first[None], second[None], measure, num_resamples=1)
        assert found.value == pytest.approx(expected(labels, second) - expected(labels, first))
    if num_classes == 2 and labels.any():
        found = paired_bootstrap(labels, first[None], second[None], f1_of_last, num_resamples=1)
        assert found.value == pytest.approx(
            f1_score(labels, second, zero_division=0) - f1_score(labels, first, zero_division=0)
        )


def test_the_interval_of_a_mean_is_that_of_the_normal_approximation() -> None:
    """Of one class the accuracy's difference is a mean over rows, whose standard error is known."""
    random = np.random.default_rng(0)
    labels = np.zeros(400, np.int64)
    first, second = (random.random((1, 400)) < 0.3).astype(np.int64), (random.random((1, 400)) < 0.2).astype(np.int64)
    gain = ((second == 0).astype(float) - (first == 0))[0]
    found = paired_bootstrap(labels, first, second, accuracy, num_resamples=4000)
    error = gain.std() / 20
    assert found.value == pytest.approx(gain.mean())
    assert found.low == pytest.approx(gain.mean() - 1.96 * error, abs=0.15 * error)
    assert found.high == pytest.approx(gain.mean() + 1.96 * error, abs=0.15 * error)


def test_without_a_difference_few_p_values_are_small() -> None:
    random = np.random.default_rng(1)
    small = 0
    for trial in range(200):
        labels = random.integers(0, 2, 150)
        first, second = (np.where(random.random((1, 150)) < 0.15, 1 - labels, labels) for _ in range(2))
        small += paired_bootstrap(labels, first, second, f1_of_last, num_resamples=300, seed=trial).p < 0.05
    assert 1 <= small <= 21, "5 % of 200, give or take"


def test_seeds_that_disagree_widen_the_interval() -> None:
    random = np.random.default_rng(2)
    labels = random.integers(0, 2, 300)
    wrong = random.random(300) < 0.1
    first = np.where(wrong, 1 - labels, labels)[None].repeat(3, 0)
    steady, shaky = first.copy(), first.copy()
    flips = np.flatnonzero(~wrong)
    steady[:, flips[:20]] ^= 1
    shaky[0, flips[:60]] ^= 1
    both = [paired_bootstrap(labels, first, second, accuracy, num_resamples=1000) for second in (steady, shaky)]
    assert both[0].value == pytest.approx(both[1].value)
    assert both[1].high - both[1].low > 1.5 * (both[0].high - both[0].low)


def test_the_same_seed_gives_the_same_interval() -> None:
    labels = np.array([0, 1] * 20)
    first, second = labels[None], np.roll(labels, 3)[None]
    runs = [paired_bootstrap(labels, first, second, f1_macro, num_resamples=700, seed=seed) for seed in (3, 3, 4)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2] or runs[0].low == runs[0].high


def test_holm_has_the_values_of_the_definition() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.2]) == [0.2]
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_lies_between_none_and_bonferroni_and_keeps_the_order(p_values: list[float]) -> None:
    corrected = holm(p_values)
    for p, after in zip(p_values, corrected, strict=True):
        assert p <= after <= min(1.0, len(p_values) * p) or after == pytest.approx(p)
    assert [p for _, p in sorted(zip(p_values, corrected, strict=True))] == sorted(corrected)
