"""Checkpoints without frozen weights are small, resume exactly, and load into the right model only."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from lit_trainer.callbacks.last_checkpoint import LastCheckpoint
from lit_trainer.callbacks.trainable_only import LEFT_OUT, TrainableOnly
from tests.callbacks.tiny_task import TinyData, TinyTask, make_trainer


class FrozenTask(TinyTask):
    """Trains the head alone, from weights that a seed decides."""

    seed = 0
    trained = ("classifier",)

    def configure_model(self) -> None:
        super().configure_model()
        generator = torch.Generator().manual_seed(self.seed)
        for name, weight in self.model.named_parameters():
            weight.data = torch.randn(weight.shape, generator=generator) / 10
            weight.requires_grad = any(part in name for part in self.trained)


def fit(task: TinyTask, root: Path, steps: int = 4, ckpt_path: Any = None, *more: pl.Callback) -> tuple[Any, str]:
    last = LastCheckpoint(every_n_steps=2)
    trainer = make_trainer(root, [*more, last], max_steps=steps, limit_val_batches=0)
    trainer.fit(task, TinyData(), ckpt_path=ckpt_path)
    return trainer, last.last_model_path


def state_of(path: str) -> dict[str, torch.Tensor]:
    return torch.load(path, weights_only=True)["state_dict"]


def test_frozen_weights_are_not_in_the_file(tiny_bert, tmp_path):
    _, small = fit(FrozenTask(tiny_bert), tmp_path / "a", 2, None, TrainableOnly())
    _, full = fit(FrozenTask(tiny_bert), tmp_path / "b", 2)
    assert Path(small).stat().st_size < Path(full).stat().st_size / 2
    names = {name for name in state_of(small) if not name.startswith(LEFT_OUT)}
    assert {"model.classifier.weight", "model.classifier.bias"} <= names
    assert not any("encoder" in name for name in names)


def test_it_resumes_exactly(tiny_bert, tmp_path):
    whole = FrozenTask(tiny_bert)
    fit(whole, tmp_path / "whole", 4)
    _, path = fit(FrozenTask(tiny_bert), tmp_path / "a", 2, None, TrainableOnly())
    resumed = FrozenTask(tiny_bert)
    _, path = fit(resumed, tmp_path / "b", 4, path, TrainableOnly())
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name])
    assert any(name.startswith(LEFT_OUT) for name in state_of(path)), "and goes on leaving them out"


def test_another_pretrained_model_is_refused(tiny_bert, tmp_path):
    _, path = fit(FrozenTask(tiny_bert), tmp_path / "a", 2, None, TrainableOnly())
    other = FrozenTask(tiny_bert)
    other.seed = 1
    with pytest.raises(ValueError, match=r"\d+ of them are not the same in this one .*model\.pretrained"):
        fit(other, tmp_path / "b", 4, path, TrainableOnly())


def test_a_weight_that_is_missing_for_another_reason_is_an_error(tiny_bert, tmp_path):
    _, path = fit(FrozenTask(tiny_bert), tmp_path / "a", 2, None, TrainableOnly())
    checkpoint = torch.load(path, weights_only=True)
    del checkpoint["state_dict"]["model.classifier.bias"]
    torch.save(checkpoint, path)
    with pytest.raises(RuntimeError, match=r"Missing key.*model\.classifier\.bias"):
        fit(FrozenTask(tiny_bert), tmp_path / "b", 4, path, TrainableOnly())


def test_without_the_callback_loading_is_an_error_that_says_what_was_left_out(tiny_bert, tmp_path):
    _, path = fit(FrozenTask(tiny_bert), tmp_path / "a", 2, None, TrainableOnly())
    checkpoint = torch.load(path, weights_only=True)
    task = FrozenTask(tiny_bert)
    task.configure_model()
    with pytest.raises(RuntimeError, match=r"left_out\.model\.bert"):
        task.load_state_dict(checkpoint["state_dict"])


def test_a_full_checkpoint_loads_and_leaves_out_only_what_is_still_pretrained(tiny_bert, tmp_path):
    task = FrozenTask(tiny_bert)
    task.trained = ("classifier", "pooler")
    _, path = fit(task, tmp_path / "a", 2)
    later = FrozenTask(tiny_bert)
    _, path = fit(later, tmp_path / "b", 4, _without_optimizer(path), TrainableOnly())
    names = set(state_of(path))
    assert "model.bert.pooler.dense.weight" in names, "frozen now, but trained before"
    assert LEFT_OUT + "model.bert.embeddings.word_embeddings.weight" in names


def _without_optimizer(path: str) -> str:
    """Has the optimizer start anew, since it has other parameters."""
    checkpoint = torch.load(path, weights_only=True)
    for state in checkpoint["optimizer_states"]:
        state["state"] = {}
        state["param_groups"][0]["params"] = [0, 1]
    torch.save(checkpoint, path)
    return path


class Release(pl.Callback):
    """Has the encoder train from a step on."""

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        pl_module.model.bert.requires_grad_(trainer.global_step >= 3)


class AllInOptimizer(FrozenTask):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


@pytest.mark.filterwarnings("ignore:.*exists and is not empty")
@pytest.mark.parametrize("stop_at", [2, 4, 6])
def test_an_early_checkpoint_loads_after_its_frozen_weights_were_trained(tiny_bert, tmp_path, stop_at):
    kept = LastCheckpoint(every_n_steps=2, num_kept=9, dirpath=str(tmp_path))
    reference = AllInOptimizer(tiny_bert)
    reference.configure_model()
    pretrained = {name: weight.clone() for name, weight in reference.state_dict().items() if "encoder" in name}
    task = AllInOptimizer(tiny_bert)
    callbacks = [Release(), TrainableOnly(), kept]
    trainer = make_trainer(tmp_path, callbacks, max_steps=stop_at, limit_val_batches=0)
    trainer.fit(task, TinyData())
    if stop_at < 6:  # the same over an interruption
        task = AllInOptimizer(tiny_bert)
        trainer = make_trainer(tmp_path, callbacks, max_steps=6, limit_val_batches=0)
        trainer.fit(task, TinyData(), ckpt_path=kept.last_model_path)
    assert not any(torch.equal(weight, pretrained[n]) for n, weight in task.state_dict().items() if n in pretrained)
    trainer.test(task, TinyData(), ckpt_path=tmp_path / "last-step=2.ckpt", verbose=False)
    assert all(torch.equal(weight, pretrained[n]) for n, weight in task.state_dict().items() if n in pretrained)


class Freeze(pl.Callback):
    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 2:
            pl_module.model.classifier.requires_grad_(False)


def test_a_weight_that_is_frozen_after_training_is_saved(tiny_bert, tmp_path):
    task = FrozenTask(tiny_bert)
    task.trained = ("classifier", "pooler")
    _, path = fit(task, tmp_path, 4, None, TrainableOnly(), Freeze())
    assert "model.classifier.weight" in state_of(path)


def test_with_nothing_frozen_it_changes_nothing(tiny_bert, tmp_path):
    _, path = fit(TinyTask(tiny_bert), tmp_path, 2, None, TrainableOnly())
    assert not any(name.startswith(LEFT_OUT) for name in state_of(path))


def test_a_test_after_training_loads_the_file(tiny_bert, tmp_path):
    task = FrozenTask(tiny_bert)
    trainer, path = fit(task, tmp_path, 4, None, TrainableOnly())
    expected = {name: weight.clone() for name, weight in task.state_dict().items()}
    trainer.test(task, TinyData(), ckpt_path=path, verbose=False)
    assert all(torch.equal(weight, expected[name]) for name, weight in task.state_dict().items())
    assert not task._load_state_dict_pre_hooks, "nothing stays behind"
