"""Decisions among C classes by what mistakes cost."""

import numpy as np

from lit_trainer.decision.probabilities import Floats, Integers


def least_cost(probabilities: Floats, costs: Floats) -> Integers:
    """Decides for the class whose expected cost is lowest.

    With cost 1 for every mistake and 0 else it is the most probable class. Ties go to the lowest class number.

    Args:
        probabilities: float64 ``[N, C]``.
        costs: float64 ``[C, C]``, rows true, columns decided.

    Returns:
        int64 ``[N]``.

    Source: C. Elkan, The foundations of cost-sensitive learning, IJCAI 2001, equation 1.
    """
    expected = np.zeros_like(probabilities)
    # Class by class instead of a matrix product, whose rounding depends on how many rows there are.
    for true, row in enumerate(costs):
        expected += probabilities[:, true, None] * row
    return np.asarray(expected.argmin(axis=1))


def threshold_of_costs(costs: Floats) -> float:
    """Returns from which probability on the second of two classes costs no more than the first, in [0, 1].

    It is 0.5 where both cost the same whatever is true.

    Args:
        costs: float64 ``[2, 2]``, rows true, columns decided.

    Source: C. Elkan, The foundations of cost-sensitive learning, IJCAI 2001, equation 2.
    """
    false_alarm, miss = costs[0, 1] - costs[0, 0], costs[1, 0] - costs[1, 1]
    return float(false_alarm / (false_alarm + miss)) if false_alarm + miss > 0 else 0.5


def costs_of_weights(weights: Floats) -> Floats:
    """Returns the costs under which deciding is ``argmax(weights * probabilities)``: a mistake costs its true class.

    Args:
        weights: float64 ``[C]``, positive.
    """
    return np.repeat(weights[:, None], len(weights), axis=1) * (1 - np.eye(len(weights)))
