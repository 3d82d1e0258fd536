"""The best checkpoint is always an evaluation, with its own step's metric and weights."""

import math
import shutil
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from lit_trainer.callbacks.best_checkpoint import BestCheckpoint
from lit_trainer.callbacks.evaluation_schedule import EvaluationSchedule
from lit_trainer.callbacks.last_checkpoint import LastCheckpoint
from tests.callbacks.tiny_task import TinyData, TinyTask, make_trainer


def names(folder: Path, kind: str = "best") -> list[str]:
    return sorted(path.name for path in folder.rglob(f"{kind}*.ckpt"))


def fit(
    folder: Path, root: Path, best: BestCheckpoint, every: int = 2, scores: Any = None, **kwargs: Any
) -> tuple[pl.Trainer, TinyTask]:
    ckpt_path, task = kwargs.pop("ckpt_path", None), TinyTask(folder, scores)
    callbacks = [*kwargs.pop("callbacks", []), EvaluationSchedule(every_n_steps=every), best]
    trainer = make_trainer(root, callbacks, **{"max_steps": 8, **kwargs})
    trainer.fit(task, TinyData(), ckpt_path=ckpt_path)
    return trainer, task


@pytest.mark.parametrize(("mode", "best_step"), [("max", 4), ("min", 6)])
def test_the_best_is_kept_with_the_metric_and_weights_of_its_step(tiny_bert, tmp_path, mode, best_step):
    weights: dict[int, torch.Tensor] = {}

    class Remember(pl.Callback):
        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            weights[trainer.global_step] = pl_module.model.classifier.weight.detach().clone()

    best = BestCheckpoint("val/f1", mode)
    scores = {2: 0.5, 4: 0.9, 6: 0.1, 8: 0.7}
    fit(tiny_bert, tmp_path, best, scores=scores, callbacks=[Remember()])
    assert names(tmp_path) == [f"best-step={best_step}.ckpt"]
    assert best.best_model_path == str(tmp_path / "checkpoints" / f"best-step={best_step}.ckpt")
    assert float(best.best_model_score) == pytest.approx(scores[best_step])
    saved = torch.load(best.best_model_path, weights_only=True)
    assert saved["global_step"] == best_step
    assert torch.equal(saved["state_dict"]["model.classifier.weight"], weights[best_step])


def test_a_best_at_the_very_end_is_found_although_no_interval_ends_there(tiny_bert, tmp_path):
    # transformers#28539: 11 steps, an evaluation every 4, the best one at 11.
    best = BestCheckpoint("val/f1", "max")
    fit(tiny_bert, tmp_path, best, every=4, scores={4: 0.2, 8: 0.3, 11: 0.9}, max_steps=11)
    assert names(tmp_path) == ["best-step=11.ckpt"]


def test_steps_between_evaluations_are_never_filed_under_the_metric_of_an_earlier_one(tiny_bert, tmp_path):
    best, last = BestCheckpoint("val/f1", "min", num_kept=9), LastCheckpoint(every_n_steps=1, num_kept=9)
    fit(tiny_bert, tmp_path, best, every=3, scores={3: 0.4, 6: 0.6, 8: 0.5}, callbacks=[last])
    assert names(tmp_path) == ["best-step=3.ckpt", "best-step=6.ckpt", "best-step=8.ckpt"]
    assert names(tmp_path, "last") == [f"last-step={step}.ckpt" for step in range(1, 9)]


def test_last_never_rotates_the_best_away(tiny_bert, tmp_path):
    best, last = BestCheckpoint("val/f1", "max"), LastCheckpoint(every_n_steps=1, num_kept=1)
    fit(tiny_bert, tmp_path, best, scores={2: 0.9, 4: 0.1, 6: 0.1, 8: 0.1}, callbacks=[last])
    assert names(tmp_path) == ["best-step=2.ckpt"]
    assert names(tmp_path, "last") == ["last-step=8.ckpt"]


def test_the_best_few_are_kept_and_of_equals_the_first(tiny_bert, tmp_path):
    best = BestCheckpoint("val/f1", "max", num_kept=2)
    fit(tiny_bert, tmp_path, best, every=1, scores={1: 0.1, 2: 0.8, 3: 0.8, 4: 0.8, 5: 0.7, 6: 0.2, 7: 0.1, 8: 0.8})
    assert names(tmp_path) == ["best-step=2.ckpt", "best-step=3.ckpt"]
    assert best.best_model_path.endswith("best-step=2.ckpt")


@pytest.mark.parametrize("nan_at", [2, 4, 8])
def test_nan_is_never_the_best(tiny_bert, tmp_path, nan_at):
    best = BestCheckpoint("val/f1", "min")
    scores = {2: 0.9, 4: 0.8, 6: 0.85, 8: 0.95, nan_at: math.nan}
    fit(tiny_bert, tmp_path, best, scores=scores)
    expected = min((score, step) for step, score in scores.items() if not math.isnan(score))[1]
    assert names(tmp_path) == [f"best-step={expected}.ckpt"]


def test_all_nan_leaves_no_best(tiny_bert, tmp_path):
    best = BestCheckpoint("val/f1", "min")
    fit(tiny_bert, tmp_path, best, scores=lambda step: math.nan)
    assert best.best_model_path == ""
    assert names(tmp_path) == []


@pytest.mark.parametrize("sanity_steps", [0, 1])
def test_a_misspelt_metric_ends_the_run_at_the_first_evaluation(tiny_bert, tmp_path, sanity_steps):
    # transformers#28530: a name that is never logged turned the feature off without a word.
    task = TinyTask(tiny_bert)
    callbacks = [EvaluationSchedule(every_n_steps=2), BestCheckpoint("val/F1", "max")]
    trainer = make_trainer(tmp_path, callbacks, max_steps=8, num_sanity_val_steps=sanity_steps)
    with pytest.raises(ValueError, match=r"monitor is 'val/F1', but the evaluation logged .*val/f1, val/loss"):
        trainer.fit(task, TinyData())
    assert trainer.global_step == (0 if sanity_steps else 2)


def test_a_metric_of_training_is_not_one_of_an_evaluation(tiny_bert, tmp_path):
    with pytest.raises(ValueError, match="monitor is 'train/loss', but the evaluation logged val/f1, val/loss"):
        fit(tiny_bert, tmp_path, BestCheckpoint("train/loss", "min"))


def test_the_sanity_check_is_not_an_evaluation(tiny_bert, tmp_path):
    best = BestCheckpoint("val/f1", "max")
    fit(tiny_bert, tmp_path, best, scores={0: 1.0, 2: 0.5}, num_sanity_val_steps=1, max_steps=2)
    assert names(tmp_path) == ["best-step=2.ckpt"]


def test_a_dry_run_saves_nothing_but_checks_the_name(tiny_bert, tmp_path):
    best = BestCheckpoint("val/f1", "max")
    fit(tiny_bert, tmp_path, best, fast_dev_run=True)
    assert not list(tmp_path.rglob("*.ckpt"))
    with pytest.raises(ValueError, match="monitor is 'val/F1'"):
        fit(tiny_bert, tmp_path, BestCheckpoint("val/F1", "max"), fast_dev_run=True)


def test_files_lie_in_the_versioned_folder_of_the_logger(tiny_bert, tmp_path):
    best = BestCheckpoint("val/f1", "max")
    fit(tiny_bert, tmp_path, best, logger=pl.loggers.CSVLogger(tmp_path, "runs"))
    assert best.best_model_path == str(tmp_path / "runs" / "version_0" / "checkpoints" / "best-step=8.ckpt")


def test_weights_alone_are_enough_to_test(tiny_bert, tmp_path):
    best = BestCheckpoint("val/f1", "max", weights_only=True)
    trainer, task = fit(tiny_bert, tmp_path, best)
    assert "optimizer_states" not in torch.load(best.best_model_path, weights_only=True)
    trainer.test(task, TinyData(), ckpt_path="best", verbose=False)
    assert trainer.ckpt_path == best.best_model_path


@pytest.mark.filterwarnings("ignore:.*configured with multiple `ModelCheckpoint`")
@pytest.mark.parametrize("best_first", [True, False])
def test_best_means_the_best_in_whatever_order_the_callbacks_are(tiny_bert, tmp_path, best_first):
    best, last = BestCheckpoint("val/f1", "min"), LastCheckpoint(every_n_steps=1)
    task = TinyTask(tiny_bert)
    callbacks = [EvaluationSchedule(every_n_steps=2), *((best, last) if best_first else (last, best))]
    trainer = make_trainer(tmp_path, callbacks, max_steps=4)
    trainer.fit(task, TinyData())
    trainer.test(task, TinyData(), ckpt_path="best", verbose=False)
    assert trainer.ckpt_path == best.best_model_path == str(tmp_path / "checkpoints" / "best-step=2.ckpt")


# -- resuming ----------------------------------------------------------------------------------------------------------


def test_the_best_so_far_survives_a_resume_in_another_folder(tiny_bert, tmp_path):
    scores = {2: 0.9, 4: 0.5, 8: 0.1}
    last = LastCheckpoint(every_n_steps=4)
    fit(tiny_bert, tmp_path / "a", BestCheckpoint("val/f1", "max"), scores=scores, max_steps=4, callbacks=[last])
    resumed = {"ckpt_path": last.last_model_path, "callbacks": [last]}
    best = BestCheckpoint("val/f1", "max")
    fit(tiny_bert, tmp_path / "b", best, scores={**scores, 6: 0.8}, **resumed)
    assert best.best_model_path == str(tmp_path / "a" / "checkpoints" / "best-step=2.ckpt")
    assert names(tmp_path / "b") == []
    best = BestCheckpoint("val/f1", "max")
    fit(tiny_bert, tmp_path / "c", best, scores={**scores, 6: 0.95}, **resumed)
    assert names(tmp_path / "c") == ["best-step=6.ckpt"]
    assert names(tmp_path / "a") == ["best-step=2.ckpt"], "another run's files are not removed"


def test_the_best_so_far_is_found_beside_the_checkpoint_of_a_run_that_was_moved(tiny_bert, tmp_path):
    last = LastCheckpoint(every_n_steps=4)
    scores = {2: 0.9, 4: 0.5, 6: 0.1, 8: 0.1}
    fit(tiny_bert, tmp_path / "a", BestCheckpoint("val/f1", "max"), scores=scores, max_steps=4, callbacks=[last])
    shutil.move(tmp_path / "a", tmp_path / "moved")
    best = BestCheckpoint("val/f1", "max")
    moved = tmp_path / "moved" / "checkpoints"
    fit(
        tiny_bert,
        tmp_path / "b",
        best,
        scores=scores,
        ckpt_path=moved / Path(last.last_model_path).name,
        callbacks=[last],
    )
    assert best.best_model_path == str(moved / "best-step=2.ckpt")


def test_a_best_that_is_gone_is_said_and_replaced(tiny_bert, tmp_path):
    last, first = LastCheckpoint(every_n_steps=4), BestCheckpoint("val/f1", "max")
    scores = {2: 0.9, 4: 0.5, 6: 0.6, 8: 0.1}
    fit(tiny_bert, tmp_path / "a", first, scores=scores, max_steps=4, callbacks=[last])
    Path(first.best_model_path).unlink()
    best = BestCheckpoint("val/f1", "max")
    with pytest.warns(UserWarning, match=r"best checkpoint so far, .*best-step=2.ckpt, is gone"):
        fit(tiny_bert, tmp_path / "b", best, scores=scores, ckpt_path=last.last_model_path, callbacks=[last])
    assert names(tmp_path / "b") == ["best-step=6.ckpt"]


@pytest.mark.filterwarnings("ignore:.*exists and is not empty")
def test_a_resume_from_the_best_knows_that_it_is_the_best(tiny_bert, tmp_path):
    scores = {2: 0.1, 4: 0.9, 6: 0.5, 8: 0.2}
    first = BestCheckpoint("val/f1", "max")
    fit(tiny_bert, tmp_path, first, scores=scores, max_steps=4)
    best = BestCheckpoint("val/f1", "max")
    _, task = fit(tiny_bert, tmp_path, best, scores=scores, ckpt_path=first.best_model_path)
    assert task.evaluated_steps == [6, 8], "step 4 was evaluated before the checkpoint was written"
    assert best.best_model_path == first.best_model_path
    assert float(best.best_model_score) == pytest.approx(0.9)


def test_a_test_of_an_old_checkpoint_does_not_turn_time_back(tiny_bert, tmp_path):
    best, last = BestCheckpoint("val/f1", "max"), LastCheckpoint(every_n_steps=2, num_kept=9)
    trainer, task = fit(tiny_bert, tmp_path, best, scores={2: 0.9, 4: 0.1, 6: 0.95, 8: 0.1}, callbacks=[last])
    state = best.state_dict(), last.state_dict()
    trainer.test(task, TinyData(), ckpt_path=tmp_path / "checkpoints" / "last-step=2.ckpt", verbose=False)
    assert (best.state_dict(), last.state_dict()) == state
    assert best.best_metrics["val/f1"] == pytest.approx(0.95)


# -- what can go wrong -------------------------------------------------------------------------------------------------


class FullDisk(TorchCheckpointIO):
    """A disk that is full at chosen steps."""

    def __init__(self, steps: set[int]) -> None:
        self.steps = steps

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if checkpoint["global_step"] in self.steps:
            raise OSError(28, "No space left on device")
        super().save_checkpoint(checkpoint, path, storage_options)


def test_a_full_disk_costs_one_checkpoint_and_says_so(tiny_bert, tmp_path):
    best = BestCheckpoint("val/f1", "max")
    with pytest.warns(UserWarning, match="no checkpoint at step 6, training goes on without it: .*No space left"):
        fit(tiny_bert, tmp_path, best, scores={2: 0.1, 4: 0.5, 6: 0.9, 8: 0.6}, plugins=[FullDisk({6})])
    assert names(tmp_path) == ["best-step=8.ckpt"], "the best of those that could be written"
    assert float(best.best_model_score) == pytest.approx(0.6)


def test_a_full_disk_can_be_an_error_and_leaves_the_best_before(tiny_bert, tmp_path):
    best = BestCheckpoint("val/f1", "max", on_write_error="raise")
    with pytest.raises(OSError, match="No space left"):
        fit(tiny_bert, tmp_path, best, scores={2: 0.1, 4: 0.5, 6: 0.9}, plugins=[FullDisk({6})])
    assert names(tmp_path) == ["best-step=4.ckpt"]


def test_a_hyper_parameter_that_could_not_be_loaded_again_ends_the_run_at_the_first_save(tiny_bert, tmp_path):
    class Careless(TinyTask):
        def __init__(self, folder: Path, path: Path) -> None:
            super().__init__(folder)
            self.save_hyperparameters("path")

    callbacks = [EvaluationSchedule(every_n_steps=2), BestCheckpoint("val/f1", "max")]
    trainer = make_trainer(tmp_path, callbacks, max_steps=8)
    with pytest.raises(ValueError, match=r"could not be loaded again: hyper_parameters.path is a pathlib.PosixPath"):
        trainer.fit(Careless(tiny_bert, Path("x")), TinyData())
    assert trainer.global_step == 2


@pytest.mark.parametrize(
    ("setting", "message"),
    [({"mode": "best"}, "mode is 'best' but must be min or max"), ({"num_kept": 0}, "num_kept is 0")],
)
def test_a_setting_out_of_range_is_named(setting: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        BestCheckpoint(**{"monitor": "val/f1", "mode": "max", **setting})
