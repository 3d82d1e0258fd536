"""Rate is that of training alone, the time left has everything in it."""

import pytest

from lit_trainer.callbacks.pace import Pace, clock


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_rate_and_time_left():
    now = Clock()
    pace = Pace(10, now)
    assert (pace.rate, pace.left(50)) == ("", "")
    now.time += 5
    pace.reach(20)
    assert (pace.rate, pace.left(50)) == ("2.0 steps/s", "0:15 left")
    now.time += 40
    pace.reach(30)
    assert pace.rate == "1.1 steps/s", "half of what was, half of what is"
    assert pace.left(50) == "0:45 left"


def test_an_evaluation_does_not_slow_training_but_takes_its_time():
    now = Clock()
    pace = Pace(0, now)
    now.time += 5
    pace.pause()
    now.time += 10
    pace.resume()
    now.time += 5
    pace.reach(10)
    assert (pace.rate, pace.left(20), pace.seconds) == ("1.0 steps/s", "0:20 left", 20)


def test_slow_steps_are_told_by_their_length():
    now = Clock()
    pace = Pace(0, now)
    now.time += 30
    pace.reach(4)
    assert pace.rate == "7.5 s/step"


def test_nothing_is_left_at_the_end_or_without_one():
    now = Clock()
    pace = Pace(0, now)
    now.time += 1
    pace.reach(4)
    assert (pace.left(4), pace.left(3), pace.left(None)) == ("", "", "")


def test_no_time_at_all_is_no_rate():
    pace = Pace(0, Clock())
    pace.reach(5)
    assert (pace.rate, pace.left(10)) == ("", "")
    pace.resume()


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (65.4, "1:05"), (7209, "2:00:09"), (59.7, "1:00")])
def test_clock(seconds, text):
    assert clock(seconds) == text
