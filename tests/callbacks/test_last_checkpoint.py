"""A last checkpoint lies between two optimizer steps, after the evaluation of its step, and resumes exactly."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from lit_trainer.callbacks.best_checkpoint import BestCheckpoint
from lit_trainer.callbacks.evaluation_schedule import EvaluationSchedule
from lit_trainer.callbacks.last_checkpoint import LastCheckpoint
from lit_trainer.runtime.checkpoint_files import newest_valid
from tests.callbacks.test_best_checkpoint import FullDisk
from tests.callbacks.tiny_task import TinyData, TinyTask, make_trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*exists and is not empty")


class Journal(pl.Callback):
    """Counts evaluations and notes which optimizer steps had a file when."""

    def __init__(self) -> None:
        self.num_evaluations = 0

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.num_evaluations += 1

    def state_dict(self) -> dict[str, Any]:
        return {"num_evaluations": self.num_evaluations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.num_evaluations = state_dict["num_evaluations"]


def saved_steps(root: Path) -> list[int]:
    return sorted(int(path.stem.split("=")[1]) for path in root.rglob("last-step=*.ckpt"))


def fit(folder: Path, root: Path, last: LastCheckpoint, **kwargs: Any) -> tuple[pl.Trainer, TinyTask, Journal]:
    ckpt_path, num_batches = kwargs.pop("ckpt_path", None), kwargs.pop("num_batches", 12)
    schedule = kwargs.pop("schedule", EvaluationSchedule(every_n_steps=3))
    task, journal = TinyTask(folder), Journal()
    callbacks = [
        last,
        schedule,
        kwargs.pop("best", None) or BestCheckpoint("val/f1", "max"),
        journal,
        *kwargs.pop("callbacks", []),
    ]
    trainer = make_trainer(root, callbacks, **kwargs)
    trainer.fit(task, TinyData(num_batches=num_batches), ckpt_path=ckpt_path)
    return trainer, task, journal


@pytest.mark.parametrize("accumulate", [1, 3])
def test_intervals_are_optimizer_steps_and_the_end_is_saved(tiny_bert, tmp_path, accumulate):
    last = LastCheckpoint(every_n_steps=3, num_kept=99)
    fit(tiny_bert, tmp_path, last, max_steps=7, max_epochs=-1, accumulate_grad_batches=accumulate)
    assert saved_steps(tmp_path) == [3, 6, 7]
    assert last.last_model_path == str(newest_valid(tmp_path / "checkpoints"))


def test_without_an_interval_each_epoch_ends_with_one(tiny_bert, tmp_path):
    fit(tiny_bert, tmp_path, LastCheckpoint(num_kept=99), max_epochs=3, num_batches=4)
    assert saved_steps(tmp_path) == [4, 8, 12]


def test_every_second_epoch_and_the_end(tiny_bert, tmp_path):
    fit(tiny_bert, tmp_path, LastCheckpoint(every_n_epochs=2, num_kept=99), max_epochs=5, num_batches=2)
    assert saved_steps(tmp_path) == [4, 8, 10]


def test_without_validation_it_saves_all_the_same(tiny_bert, tmp_path):
    last = LastCheckpoint(every_n_steps=2, num_kept=99)
    trainer = make_trainer(tmp_path, [last], max_steps=5, limit_val_batches=0)
    trainer.fit(TinyTask(tiny_bert), TinyData())
    assert saved_steps(tmp_path) == [2, 4, 5]


def test_only_the_newest_are_kept(tiny_bert, tmp_path):
    fit(tiny_bert, tmp_path, LastCheckpoint(every_n_steps=1, num_kept=2), max_steps=6)
    assert saved_steps(tmp_path) == [5, 6]


def test_a_file_knows_of_the_evaluation_of_its_own_step(tiny_bert, tmp_path):
    fit(tiny_bert, tmp_path, LastCheckpoint(every_n_steps=1, num_kept=99), max_steps=4)
    for step, num_evaluations in ((2, 0), (3, 1), (4, 2)):
        saved = torch.load(tmp_path / "checkpoints" / f"last-step={step}.ckpt", weights_only=True)
        assert saved["callbacks"]["Journal"] == {"num_evaluations": num_evaluations}
        best = next(state for key, state in saved["callbacks"].items() if key.startswith("BestCheckpoint"))
        assert bool(best["best_model_path"]) == bool(num_evaluations)


class StopAt(pl.Callback):
    def __init__(self, step: int, hook: str) -> None:
        self.step = step
        setattr(self, hook, self.stop)

    def stop(self, trainer: pl.Trainer, *_: Any) -> None:
        trainer.should_stop |= trainer.global_step == self.step


@pytest.mark.parametrize(("step", "hook"), [(4, "on_train_batch_end"), (3, "on_validation_end")])
def test_a_run_that_is_stopped_ends_with_a_file_of_its_last_step(tiny_bert, tmp_path, step, hook):
    last = LastCheckpoint(every_n_steps=100)
    trainer, *_ = fit(tiny_bert, tmp_path, last, max_steps=9, callbacks=[StopAt(step, hook)])
    assert trainer.global_step == step
    assert saved_steps(tmp_path) == [step]


def test_a_dry_run_saves_nothing(tiny_bert, tmp_path):
    fit(tiny_bert, tmp_path, LastCheckpoint(every_n_steps=1), fast_dev_run=True)
    assert saved_steps(tmp_path) == []


def test_a_full_disk_is_tried_again_and_the_files_before_stay(tiny_bert, tmp_path):
    last = LastCheckpoint(every_n_steps=2)
    with pytest.warns(UserWarning, match="no checkpoint at step 6"):
        fit(tiny_bert, tmp_path, last, max_steps=8, plugins=[FullDisk({6})])
    assert saved_steps(tmp_path) == [4, 8]


@pytest.mark.filterwarnings("ignore:no checkpoint at step")
def test_a_disk_that_is_full_at_the_end_is_an_error_and_the_files_before_stay(tiny_bert, tmp_path):
    with pytest.raises(OSError, match="No space left"):
        fit(tiny_bert, tmp_path, LastCheckpoint(every_n_steps=2), max_steps=8, plugins=[FullDisk({5, 6, 7, 8})])
    assert saved_steps(tmp_path) == [2, 4]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"every_n_steps": 0}, "every_n_steps is 0 but must be at least 1"),
        ({"every_n_epochs": 0}, "every_n_epochs is 0 but"),
        ({"num_kept": 0}, "num_kept is 0 but"),
        ({"every_n_steps": 1, "every_n_epochs": 1}, "every_n_steps is 1 and every_n_epochs is 1: give one"),
    ],
)
def test_a_setting_out_of_range_is_named(setting: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        LastCheckpoint(**setting)


# -- resuming ----------------------------------------------------------------------------------------------------------


def resume_cases() -> Iterator[Any]:
    """Some steps of some settings, quickly, and all of all."""
    some, all_steps = (3, 5, 8), tuple(range(1, 12))
    for accumulate in (3, 1):
        for limit in ({"max_epochs": 3, "max_steps": -1}, {"max_epochs": -1, "max_steps": 11}):
            for schedule in ({"every_n_steps": 3}, {}):
                settings = {"accumulate_grad_batches": accumulate, "num_batches": 4 * accumulate, **limit}
                if accumulate == 3:
                    yield pytest.param(settings, schedule, some, id=f"some-{settings}-{schedule}")
                yield pytest.param(
                    settings, schedule, all_steps, id=f"all-{settings}-{schedule}", marks=pytest.mark.slow
                )


@pytest.mark.parametrize(("settings", "schedule", "steps"), list(resume_cases()))
def test_resumed_at_any_step_the_run_ends_as_if_never_interrupted(tiny_bert, tmp_path, settings, schedule, steps):
    def run(root: Path, **kwargs: Any) -> tuple[pl.Trainer, TinyTask, Journal, BestCheckpoint]:
        last = LastCheckpoint(every_n_steps=1, num_kept=99)
        best = BestCheckpoint("val/f1", "max", num_kept=99)  # as on the day, none is gone yet
        done = fit(tiny_bert, root, last, schedule=EvaluationSchedule(**schedule), best=best, **settings, **kwargs)
        return *done, best

    trainer, task, journal, best = run(tmp_path / "whole")
    whole = torch.load(newest_valid(tmp_path / "whole" / "checkpoints"), weights_only=True)
    for step in steps:
        ckpt_path = tmp_path / "whole" / "checkpoints" / f"last-step={step}.ckpt"
        resumed_trainer, resumed, resumed_journal, resumed_best = run(tmp_path / str(step), ckpt_path=ckpt_path)
        assert resumed_trainer.global_step == trainer.global_step
        if step < trainer.global_step:
            assert resumed_trainer.current_epoch == trainer.current_epoch
        assert resumed.trained_rows == task.trained_rows[step * trainer.accumulate_grad_batches :]
        assert resumed.evaluated_steps == [s for s in task.evaluated_steps if s > step]
        assert resumed_journal.num_evaluations == journal.num_evaluations
        assert Path(resumed_best.best_model_path).name == Path(best.best_model_path).name
        assert float(resumed_best.best_model_score) == float(best.best_model_score)
        for name, weight in task.state_dict().items():
            assert torch.equal(weight, resumed.state_dict()[name]), (step, name)
        if step < trainer.global_step:
            end = torch.load(newest_valid(tmp_path / str(step) / "checkpoints"), weights_only=True)
            torch.testing.assert_close(end["optimizer_states"], whole["optimizer_states"], rtol=0, atol=0)


class KillAt(StopAt):
    def stop(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            raise KeyboardInterrupt


def test_killed_before_the_next_file_the_best_that_the_last_file_knows_is_still_there(tiny_bert, tmp_path):
    last = LastCheckpoint(every_n_steps=5)
    every = EvaluationSchedule(every_n_steps=2)
    with pytest.raises(SystemExit):
        fit(tiny_bert, tmp_path, last, max_steps=9, schedule=every, callbacks=[KillAt(9, "on_train_batch_end")])
    assert {path.name for path in tmp_path.rglob("best*")} == {"best-step=4.ckpt", "best-step=8.ckpt"}, (
        "4 is what the last file knows, 8 the best"
    )
    fit(tiny_bert, tmp_path, LastCheckpoint(), max_steps=9, schedule=every, ckpt_path=last.last_model_path)
    assert {path.name for path in tmp_path.rglob("best*")} == {"best-step=9.ckpt"}


def test_a_finished_run_can_be_trained_further(tiny_bert, tmp_path):
    last = LastCheckpoint(every_n_steps=100)
    fit(tiny_bert, tmp_path, last, max_epochs=1, max_steps=-1, num_batches=4)
    first = last.last_model_path
    trainer, task, _ = fit(tiny_bert, tmp_path, LastCheckpoint(), max_epochs=3, num_batches=4, ckpt_path=first)
    assert trainer.global_step == 12
    assert task.trained_rows == [row for _ in range(2) for row in [[0, 1], [2, 3], [4, 5], [6, 7]]]


def test_rotation_goes_on_after_a_resume_but_spares_the_file_it_started_from(tiny_bert, tmp_path):
    last = LastCheckpoint(every_n_steps=1)
    fit(tiny_bert, tmp_path, last, max_steps=4)
    fit(tiny_bert, tmp_path, LastCheckpoint(every_n_steps=1), max_steps=8, ckpt_path=last.last_model_path)
    assert saved_steps(tmp_path) == [4, 7, 8]
