import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from lit_trainer.decision.class_weights import best_weights
from lit_trainer.decision.costs import costs_of_weights, least_cost
from lit_trainer.decision.criteria import BalancedAccuracy, FBeta

quick = settings(deadline=None, max_examples=25)

seeds = st.integers(0, 10_000)


def drawn(seed, num_rows=60, num_classes=4):
    """Rows whose rare classes the most probable class misses."""
    random = np.random.default_rng(seed)
    shares = np.array([8.0, 4, 2, 1])[:num_classes] / sum([8, 4, 2, 1][:num_classes])
    labels = random.choice(num_classes, p=shares, size=num_rows)
    logits = random.normal(size=(num_rows, num_classes)) + 1.5 * np.eye(num_classes)[labels] + np.log(shares)
    p = np.exp(logits)
    return p / p.sum(axis=1, keepdims=True), labels


@quick
@given(seeds, st.sampled_from([FBeta(), FBeta(0.5), BalancedAccuracy()]))
def test_no_single_weight_can_be_improved(seed, criterion):
    p, labels = drawn(seed, num_rows=25, num_classes=3)

    def value(weights):
        confusion = np.zeros((3, 3))
        np.add.at(confusion, (labels, least_cost(p, costs_of_weights(weights))), 1)
        return float(criterion.of_confusion(confusion))

    weights = best_weights(p, labels, criterion)
    assert (weights > 0).all()
    assert np.isfinite(weights).all()
    assert value(weights) >= value(np.ones(3))
    for k in range(3):
        for other in np.geomspace(1e-4, 1e4, 100):
            assert value(np.where(np.arange(3) == k, other * weights, weights)) <= value(weights) + 1e-12


def test_weights_raise_macro_f1_on_other_rows_where_classes_are_rare():
    p, labels = drawn(0, num_rows=4000)
    fitted, fresh = slice(0, 2000), slice(2000, None)
    weights = best_weights(p[fitted], labels[fitted], FBeta())
    tuned = least_cost(p[fresh], costs_of_weights(weights))
    plain = p[fresh].argmax(axis=1)
    assert f1_score(labels[fresh], tuned, average="macro") > f1_score(labels[fresh], plain, average="macro") + 0.01


@pytest.mark.parametrize(
    "p",
    [
        np.full((6, 3), 1 / 3),  # nothing to choose by
        np.repeat(np.eye(3), 2, axis=0),  # zeros, and all right
        np.repeat(np.eye(3)[[1, 2, 0]], 2, axis=0),  # zeros, and all wrong
        np.tile([1.0, 0.0, 0.0], (6, 1)),  # classes that are never probable
    ],
)
@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 2, 2], [1] * 6, [0, 0, 0, 1, 1, 1]])
def test_degenerate_rows_give_positive_finite_weights(p, labels):
    weights = best_weights(p, np.array(labels), FBeta())
    assert (weights > 0).all()
    assert np.isfinite(weights).all()
    assert weights.mean() == pytest.approx(1)
