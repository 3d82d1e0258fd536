"""Evaluation counts optimizer steps, and the end of training is always evaluated, once."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lit_trainer.callbacks.evaluation_schedule import EvaluationSchedule
from tests.callbacks.tiny_task import TinyData, TinyTask, make_trainer


class Stop(pl.Callback):
    """Asks for an end after the evaluation of a step, or where there is none, after the step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        trainer.should_stop |= trainer.global_step > self.step

    def on_validation_end(self, trainer: pl.Trainer, *_: Any) -> None:
        trainer.should_stop |= trainer.global_step == self.step


def evaluated_steps(folder: Path, root: Path, schedule: EvaluationSchedule, num_batches: int = 12, **kwargs: Any):
    task = TinyTask(folder)
    callbacks = [schedule, *kwargs.pop("callbacks", [])]
    trainer = make_trainer(root, callbacks, enable_checkpointing=False, **kwargs)
    trainer.fit(task, TinyData(num_batches=num_batches))
    return task.evaluated_steps


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(
    ("every_n_steps", "max_steps", "expected"),
    [
        (4, 11, [4, 8, 11]),  # the last interval is a short one: transformers#28539
        (4, 12, [4, 8, 12]),  # the end falls on an interval: once
        (20, 3, [3]),
        (1, 3, [1, 2, 3]),
    ],
)
def test_steps_are_optimizer_steps_and_the_end_counts(
    tiny_bert, tmp_path, accumulate: int, every_n_steps: int, max_steps: int, expected: list[int]
):
    schedule = EvaluationSchedule(every_n_steps=every_n_steps)
    assert expected == evaluated_steps(
        tiny_bert, tmp_path, schedule, max_steps=max_steps, max_epochs=-1, accumulate_grad_batches=accumulate
    )


def test_intervals_run_on_over_epochs_and_the_last_epoch_ends_with_one(tiny_bert, tmp_path):
    schedule = EvaluationSchedule(every_n_steps=5)
    steps = evaluated_steps(tiny_bert, tmp_path, schedule, max_epochs=3, accumulate_grad_batches=3)
    assert steps == [5, 10, 12]


def test_without_an_interval_each_epoch_ends_with_one(tiny_bert, tmp_path):
    assert evaluated_steps(tiny_bert, tmp_path, EvaluationSchedule(), max_epochs=3, num_batches=2) == [2, 4, 6]


def test_without_an_interval_an_epoch_that_is_cut_short_ends_with_one(tiny_bert, tmp_path):
    steps = evaluated_steps(tiny_bert, tmp_path, EvaluationSchedule(), max_epochs=3, max_steps=5, num_batches=2)
    assert steps == [2, 4, 5]


def test_every_second_epoch(tiny_bert, tmp_path):
    schedule = EvaluationSchedule(every_n_epochs=2)
    assert evaluated_steps(tiny_bert, tmp_path, schedule, max_epochs=5, num_batches=2) == [4, 8, 10]


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [(0.25, [3, 6, 9, 11]), (0.5, [6, 11]), (1.0, [11]), (0.01, list(range(1, 12))), (0.4, [5, 9, 11])],
)
def test_a_fraction_is_of_the_whole_run(tiny_bert, tmp_path, fraction: float, expected: list[int]):
    schedule = EvaluationSchedule(every_fraction=fraction)
    assert evaluated_steps(tiny_bert, tmp_path, schedule, max_steps=11, max_epochs=-1, num_batches=4) == expected


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(every=st.integers(1, 9), steps=st.integers(1, 9), accumulate=st.integers(1, 3), windows=st.integers(1, 5))
def test_any_interval_evaluates_each_due_step_once(tiny_bert, tmp_path, every, steps, accumulate, windows):
    schedule = EvaluationSchedule(every_n_steps=every)
    found = evaluated_steps(
        tiny_bert,
        tmp_path,
        schedule,
        num_batches=windows * accumulate,
        max_steps=steps,
        max_epochs=-1,
        accumulate_grad_batches=accumulate,
    )
    assert found == sorted({*range(every, steps + 1, every), steps})


def test_an_epoch_that_is_limited_ends_where_the_limit_is(tiny_bert, tmp_path):
    steps = evaluated_steps(tiny_bert, tmp_path, EvaluationSchedule(), max_epochs=2, limit_train_batches=3)
    assert steps == [3, 6]


def test_stopping_before_the_fewest_epochs_are_done_is_no_end(tiny_bert, tmp_path):
    schedule = EvaluationSchedule(every_n_steps=5)
    steps = evaluated_steps(
        tiny_bert, tmp_path, schedule, max_epochs=4, min_epochs=4, num_batches=2, callbacks=[Stop(2)]
    )
    assert steps == [5, 8]


def test_no_validation_data_is_no_error(tiny_bert, tmp_path):
    assert evaluated_steps(tiny_bert, tmp_path, EvaluationSchedule(2), max_steps=3, limit_val_batches=0) == []


def test_a_dry_run_evaluates_once(tiny_bert, tmp_path):
    assert evaluated_steps(tiny_bert, tmp_path, EvaluationSchedule(every_n_steps=100), fast_dev_run=True) == [1]


def test_stopping_early_after_an_evaluation_does_not_evaluate_again(tiny_bert, tmp_path):
    schedule = EvaluationSchedule(every_n_steps=2)
    assert evaluated_steps(tiny_bert, tmp_path, schedule, max_steps=9, callbacks=[Stop(4)]) == [2, 4]


def test_a_second_schedule_is_refused(tiny_bert, tmp_path):
    with pytest.raises(ValueError, match=r"remove val_check_interval \(4\) and check_val_every_n_epoch \(1\)"):
        evaluated_steps(tiny_bert, tmp_path, EvaluationSchedule(), max_steps=3, val_check_interval=4)


@pytest.mark.parametrize(
    ("interval", "message"),
    [
        ({"every_n_steps": 0}, "every_n_steps is 0 but must be at least 1"),
        ({"every_n_epochs": -1}, "every_n_epochs is -1 but must be at least 1"),
        ({"every_fraction": 0.0}, "every_fraction is 0 but must be above 0 and at most 1"),
        ({"every_fraction": 5.0}, "every_fraction is 5 but"),
        ({"every_n_steps": 1, "every_fraction": 0.1}, "every_n_steps and every_fraction are given but only one"),
    ],
)
def test_an_interval_out_of_range_is_named(interval: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        EvaluationSchedule(**interval)
