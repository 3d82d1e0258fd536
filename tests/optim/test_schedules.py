import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_trainer.optim.schedules import (
    Constant,
    Cosine,
    CosineWithRestarts,
    InverseSquareRoot,
    Linear,
    OneMinusSqrt,
    Polynomial,
    Schedule,
    WarmupStableDecay,
)

SCHEDULES: list[Schedule] = [
    Constant(),
    Linear(floor=0.2),
    Cosine(),
    Cosine(floor=0.1, num_cycles=2.5),
    CosineWithRestarts(num_cycles=3),
    Polynomial(power=0.5),
    Polynomial(power=3.0, floor=0.1),
    OneMinusSqrt(floor=0.3),
    InverseSquareRoot(timescale=0.01),
    WarmupStableDecay(),
    WarmupStableDecay(decay_fraction=1.0, decay=Cosine()),
    WarmupStableDecay(decay_fraction=1e-9, decay=OneMinusSqrt()),
]
progresses = st.floats(0.0, 1.0)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_every_schedule_starts_at_one(schedule):
    assert schedule(0.0) == 1.0


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@given(progress=progresses)
def test_every_schedule_stays_between_zero_and_one(schedule, progress):
    assert 0.0 <= schedule(progress) <= 1.0 + 1e-12


@pytest.mark.parametrize("schedule", [Linear, Cosine, CosineWithRestarts, Polynomial, OneMinusSqrt, WarmupStableDecay])
def test_what_falls_ends_at_zero(schedule):
    assert schedule()(1.0) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("schedule", [Linear, Cosine, CosineWithRestarts, Polynomial, OneMinusSqrt])
def test_what_falls_ends_at_its_floor(schedule):
    assert schedule(floor=0.25)(1.0) == pytest.approx(0.25)


@given(progress=progresses)
def test_polynomial_with_power_one_is_linear(progress):
    assert Polynomial(power=1.0, floor=0.1)(progress) == Linear(floor=0.1)(progress)


@given(progress=progresses)
def test_cosine_with_one_restart_is_cosine(progress):
    assert CosineWithRestarts(num_cycles=1)(progress) == pytest.approx(Cosine()(progress), abs=1e-15)


@given(progress=progresses)
def test_a_decay_over_the_whole_run_is_the_decay_alone(progress):
    assert WarmupStableDecay(decay_fraction=1.0, decay=Cosine(floor=0.1))(progress) == Cosine(floor=0.1)(progress)


def test_stable_until_the_decay_then_linear():
    schedule = WarmupStableDecay(decay_fraction=0.25)
    assert [schedule(p) for p in (0.0, 0.5, 0.75, 0.875, 1.0)] == [1.0, 1.0, 1.0, 0.5, 0.0]


def test_inverse_square_root_has_halved_its_square_after_its_timescale():
    assert InverseSquareRoot(timescale=0.3)(0.3) == pytest.approx(1 / math.sqrt(2))


def test_cosine_with_a_whole_cycle_is_back_at_one():
    assert Cosine(num_cycles=1.0)(0.5) == pytest.approx(0.0, abs=1e-15)
    assert Cosine(num_cycles=1.0)(1.0) == 1.0


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Linear(floor=1.5), r"floor must be in \[0, 1\], not 1.5"),
        (lambda: Cosine(floor=math.nan), r"floor must be in \[0, 1\], not nan"),
        (lambda: Cosine(num_cycles=0.0), "num_cycles must be above 0, not 0.0"),
        (lambda: CosineWithRestarts(num_cycles=0), "num_cycles must be a whole number of 1 or more, not 0"),
        (lambda: CosineWithRestarts(num_cycles=1.5), "num_cycles must be a whole number of 1 or more, not 1.5"),
        (lambda: Polynomial(power=-1.0), "power must be above 0, not -1.0"),
        (lambda: InverseSquareRoot(timescale=math.inf), "timescale must be above 0, not inf"),
        (lambda: WarmupStableDecay(decay_fraction=2.0), r"decay_fraction must be in \[0, 1\], not 2.0"),
        (lambda: WarmupStableDecay(decay_fraction=0.0), "decay_fraction must be above 0, not 0.0"),
    ],
)
def test_a_value_out_of_range_is_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make()
