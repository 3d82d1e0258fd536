import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_trainer.decision.costs import costs_of_weights, least_cost, threshold_of_costs

quick = settings(deadline=None, max_examples=25)
seeds = st.integers(0, 10_000)


@quick
@given(seeds)
def test_least_cost_is_the_brute_force_minimum(seed):
    random = np.random.default_rng(seed)
    p, costs = random.dirichlet(np.ones(3), size=20), random.random((3, 3))
    expected = [min(range(3), key=lambda j, row=row: sum(row[i] * costs[i, j] for i in range(3))) for row in p]
    assert least_cost(p, costs).tolist() == expected


@quick
@given(seeds)
def test_with_equal_costs_it_is_the_most_probable_class(seed):
    p = np.random.default_rng(seed).dirichlet(np.ones(4), size=50)
    assert (least_cost(p, 1 - np.eye(4)) == p.argmax(axis=1)).all()


@quick
@given(seeds)
def test_costs_of_weights_decide_for_the_largest_weighted_probability(seed):
    p = np.random.default_rng(seed).dirichlet(np.ones(4), size=50)
    weights = np.random.default_rng(seed).random(4) + 0.1
    assert (least_cost(p, costs_of_weights(weights)) == (weights * p).argmax(axis=1)).all()


def test_a_class_whose_misses_are_dear_is_decided_when_improbable():
    costs = np.array([[0, 1, 1], [1, 0, 1], [20, 20, 0]])
    assert least_cost(np.array([[0.55, 0.35, 0.10]]), costs).tolist() == [2]


@quick
@given(seeds)
def test_from_the_threshold_on_the_second_class_costs_less(seed):
    random = np.random.default_rng(seed)
    costs = random.random((2, 2)) + np.array([[0, 1], [1, 0]])
    second = random.random(50)
    p = np.stack([1 - second, second], axis=1)
    assert ((second >= threshold_of_costs(costs)) == (least_cost(p, costs) == 1)).all()


def test_thresholds_where_a_mistake_costs_nothing():
    assert threshold_of_costs(np.array([[0.0, 0.0], [1.0, 0.0]])) == 0, "a false alarm is free"
    assert threshold_of_costs(np.array([[0.0, 1.0], [0.0, 0.0]])) == 1, "a miss is free"
    assert threshold_of_costs(np.zeros((2, 2))) == 0.5
