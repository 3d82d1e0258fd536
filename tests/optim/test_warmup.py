import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import optimization as upstream

from lit_trainer.optim.schedules import (
    Constant,
    Cosine,
    CosineWithRestarts,
    InverseSquareRoot,
    Linear,
    OneMinusSqrt,
    Polynomial,
    WarmupStableDecay,
)
from lit_trainer.optim.warmup import count_warmup_steps, multiplier

LR = 0.5
N = 40


def rates_of_transformers(make, **kwargs):
    """The rate of each of N steps, and of the step that would follow, as Transformers' schedulers give them."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler = make(optimizer, **kwargs)
    rates = []
    for _ in range(N + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("warmup", [0, 1, 7, 39])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda w: Constant(), lambda o, w: upstream.get_constant_schedule_with_warmup(o, w)),
        (lambda w: Linear(), lambda o, w: upstream.get_linear_schedule_with_warmup(o, w, N)),
        (lambda w: Cosine(), lambda o, w: upstream.get_cosine_schedule_with_warmup(o, w, N)),
        (
            lambda w: Cosine(floor=0.1, num_cycles=1.5),
            lambda o, w: upstream.get_cosine_with_min_lr_schedule_with_warmup(o, w, N, num_cycles=1.5, min_lr_rate=0.1),
        ),
        (
            lambda w: CosineWithRestarts(num_cycles=3),
            lambda o, w: upstream.get_cosine_with_hard_restarts_schedule_with_warmup(o, w, N, num_cycles=3),
        ),
        (
            lambda w: Polynomial(power=2.5, floor=0.2),
            lambda o, w: upstream.get_polynomial_decay_schedule_with_warmup(o, w, N, lr_end=0.2 * LR, power=2.5),
        ),
        (
            lambda w: InverseSquareRoot(timescale=13 / (N - w)),
            lambda o, w: upstream.get_inverse_sqrt_schedule(o, w, timescale=13),
        ),
        *(
            (
                lambda w, decay=decay: WarmupStableDecay(
                    decay_fraction=1.0 if w == 39 else 10 / (N - w), decay=decay()
                ),
                lambda o, w, kind=kind: upstream.get_wsd_schedule(o, w, 1 if w == 39 else 10, N, decay_type=kind),
            )
            for kind, decay in (("linear", Linear), ("cosine", Cosine), ("1-sqrt", OneMinusSqrt))
        ),
    ],
)
def test_every_step_has_the_rate_that_transformers_gives_it(ours, theirs, warmup):
    expected = rates_of_transformers(lambda optimizer: theirs(optimizer, warmup))
    rates = [LR * multiplier(ours(warmup), k, N, warmup) for k in range(N + 1)]
    assert rates == pytest.approx(expected, abs=1e-12)


def test_inverse_square_root_by_default_of_transformers_is_the_first_transformers():
    expected = rates_of_transformers(upstream.get_inverse_sqrt_schedule, num_warmup_steps=10)
    ours = [LR * multiplier(InverseSquareRoot(timescale=10 / (N - 10)), k, N, 10) for k in range(N + 1)]
    assert ours == pytest.approx(expected)


def test_warmup_rises_in_a_straight_line_from_zero_to_the_start_of_the_schedule():
    assert [multiplier(Constant(), k, 8, 4) for k in range(6)] == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert [multiplier(lambda p: 2.0 - p, k, 4, 2) for k in range(5)] == [0.0, 1.0, 2.0, 1.5, 1.0]


@pytest.mark.parametrize("num_warmup_steps", [0, 3])
def test_the_rate_is_at_the_end_of_the_schedule_once_all_steps_are_done(num_warmup_steps):
    assert multiplier(Linear(), 10, 10, num_warmup_steps) == 0.0
    assert multiplier(Linear(), 9, 10, num_warmup_steps) == pytest.approx(1 / (10 - num_warmup_steps))
    assert multiplier(Linear(), 1000, 10, num_warmup_steps) == 0.0


@given(num_steps=st.integers(1, 500), num_warmup_steps=st.integers(0, 600))
def test_progress_stays_in_zero_to_one_and_never_falls(num_steps, num_warmup_steps):
    seen = []
    for step in range(num_steps + 2):
        multiplier(lambda p: seen.append(p) or 1.0, step, num_steps, num_warmup_steps)
    assert seen == sorted(seen)
    assert seen[0] == 0.0
    assert seen[-1] <= 1.0


@given(hundredths=st.integers(0, 100), num_steps=st.integers(1, 1000))
def test_a_fraction_is_rounded_up_to_a_step(hundredths, num_steps):
    exact = -(-hundredths * num_steps // 100)
    assert count_warmup_steps(num_steps, None, hundredths / 100) == exact


def test_no_warmup_is_no_steps():
    assert count_warmup_steps(100, None, None) == 0
    assert count_warmup_steps(100, 7, None) == 7
    assert count_warmup_steps(3, 100, None) == 100


@pytest.mark.parametrize(
    ("steps", "fraction", "text"),
    [
        (3, 0.1, r"give warmup_steps or warmup_fraction, not both \(warmup_steps=3, warmup_fraction=0.1\)"),
        (-1, None, "warmup_steps must be 0 or more, not -1"),
        (None, 1.5, r"warmup_fraction must be in \[0, 1\], not 1.5"),
        (None, math.nan, r"warmup_fraction must be in \[0, 1\], not nan"),
    ],
)
def test_a_warmup_that_makes_no_sense_is_refused(steps, fraction, text):
    with pytest.raises(ValueError, match=text):
        count_warmup_steps(10, steps, fraction)


def forgetful(progress):
    """A user's schedule that returns nothing."""


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (lambda p: math.nan, "lambda> returned nan at progress 0.5; a multiplier is a finite number"),
        (lambda p: -1.0, "returned -1.0"),
        (forgetful, "schedule: forgetful returned None"),
    ],
)
def test_a_schedule_that_returns_no_rate_is_refused(schedule, text):
    with pytest.raises(ValueError, match=text):
        multiplier(schedule, 5, 10)
