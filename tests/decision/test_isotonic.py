import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from lit_trainer.decision.isotonic import RisingCurve, fit_rising_curve

score = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.3, 0.5, 1.0]))
rows = st.lists(st.tuples(score, st.integers(0, 1)), min_size=1, max_size=40)


@settings(deadline=None, max_examples=100)
@given(rows, st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_the_curve_is_scikit_learns(pairs, queries):
    scores, labels = np.array([p[0] for p in pairs]), np.array([float(p[1]) for p in pairs])
    # scikit-learn holds scores closer than its resolution for equal; on this grid there are none.
    scores, queries = np.round(scores, 6), np.round(queries, 6)
    reference = IsotonicRegression(out_of_bounds="clip", y_min=0, y_max=1).fit(scores, labels)
    np.testing.assert_allclose(fit_rising_curve(scores, labels)(queries), reference.predict(queries), atol=1e-9)


def test_many_rows_agree_too_and_few_knots_remain():
    random = np.random.default_rng(0)
    scores = random.random(5000)
    labels = (random.random(5000) < scores**2).astype(float)
    curve = fit_rising_curve(scores, labels)
    reference = IsotonicRegression(out_of_bounds="clip").fit(scores, labels)
    np.testing.assert_allclose(curve(scores), reference.predict(scores), atol=1e-12)
    assert len(curve.scores) < 300


@pytest.mark.parametrize(
    ("scores", "values"), [((), ()), ((0.1, 0.1), (0, 1)), ((0, 1), (0.5, 0.4)), ((0, 1), (0, 2)), ((0,), (0, 1))]
)
def test_knots_that_do_not_rise_are_refused(scores, values):
    with pytest.raises(ValueError, match="scores and values of a curve rise"):
        RisingCurve(scores, values)
