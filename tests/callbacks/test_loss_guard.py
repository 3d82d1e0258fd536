"""A loss that is not finite ends the run with its rows named, or costs one step and is counted."""

import json
import math
from pathlib import Path
from typing import Any, ClassVar

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor

from lit_trainer.callbacks import loss_guard
from lit_trainer.callbacks.last_checkpoint import LastCheckpoint
from lit_trainer.callbacks.loss_guard import LossGuard
from lit_trainer.runtime.checkpoint_files import AtomicCheckpointIO
from lit_trainer.runtime.precision import ScaledMixedPrecision
from tests.callbacks.tiny_task import Batches, make_trainer
from tests.callbacks.two_ranks import run_on_two_ranks

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")

nan, inf = math.nan, math.inf


class Line(pl.LightningModule):
    """A linear model whose loss is replaced at chosen batches."""

    def __init__(self, bad: dict[int, float] | None = None, optimizer: str = "AdamW", **kwargs: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(2, 1)
        self.bad = bad or {}
        self.optimizer = optimizer
        self.kwargs = kwargs
        self.weights: list[Tensor] = []
        self.validated = 0

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss = self.layer(batch["x"]).square().mean()
        return loss * self.bad.get(batch_idx, 1.0)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated += 1

    def on_train_batch_end(self, *_: Any) -> None:
        self.weights.append(self.layer.weight.detach().clone())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return getattr(torch.optim, self.optimizer)(self.parameters(), lr=0.1, **self.kwargs)

    def batches(self) -> list[dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(1)
        rows = torch.arange(48).split(2)
        return [{"row": row, "x": torch.randn(2, 2, generator=generator)} for row in rows]

    def train_dataloader(self) -> Batches:
        return Batches(self.batches(), lambda: 0)

    def val_dataloader(self) -> Batches:
        return Batches([{}], lambda: 0)


def fit(module: Line, guard: LossGuard, root: Path, *more: pl.Callback, **kwargs: Any) -> pl.Trainer:
    settings = {"max_steps": 8, "enable_checkpointing": bool(more), "val_check_interval": 100, **kwargs}
    trainer = make_trainer(root, [guard, *more], check_val_every_n_epoch=None, **settings)
    trainer.fit(module)
    return trainer


@pytest.mark.parametrize(("value", "name"), [(nan, "nan"), (inf, "inf"), (-inf, "inf")])
def test_a_bad_loss_ends_the_run_before_its_step_and_names_the_rows(tmp_path, value, name):
    module = Line({3: value})
    with pytest.raises(FloatingPointError, match=rf"optimizer step 4 is {name}, on the micro-batch of rows 6, 7 of"):
        fit(module, LossGuard(), tmp_path)
    assert torch.equal(module.layer.weight, module.weights[2])


def test_of_accumulated_micro_batches_only_the_bad_one_is_named(tmp_path):
    with pytest.raises(FloatingPointError, match=r"optimizer step 2 is nan, on the micro-batch of rows 8, 9 of"):
        fit(Line({4: nan}), LossGuard(), tmp_path, accumulate_grad_batches=3)


def test_rows_that_only_fill_up_and_rows_beyond_twenty_are_not_listed(tmp_path):
    class Wide(Line):
        def batches(self) -> list[dict[str, Tensor]]:
            return [{"row": torch.tensor([-1, *range(23)]), "x": torch.zeros(24, 2)}]

    with pytest.raises(FloatingPointError, match=r"rows 0, 1, .*18, 19 and 3 more of the training split"):
        fit(Wide({0: nan}), LossGuard(), tmp_path)


def test_a_batch_without_row_numbers_is_reported_without(tmp_path):
    class Bare(Line):
        def batches(self) -> list[dict[str, Tensor]]:
            return [{"x": torch.zeros(2, 2)}]

    with pytest.raises(FloatingPointError, match=r"the loss of optimizer step 1 is nan$"):
        fit(Bare({0: nan}), LossGuard(), tmp_path)


class Norms(pl.Callback):
    latest: ClassVar = {"grad_norm/head": torch.tensor(2.5), "grad_norm/body": 0.125, "grad_max/head": 9.0}


def test_gradient_norms_are_given_where_they_are_measured(tmp_path):
    with pytest.raises(FloatingPointError, match=r"gradient norms when last measured: head 2\.5, body 0\.125$"):
        fit(Line({1: nan}), LossGuard(), tmp_path, Norms(), enable_checkpointing=False)


@pytest.mark.filterwarnings("ignore:skipped:")
@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        ("AdamW", {"weight_decay": 0.5}),
        ("AdamW", {"weight_decay": 0.5, "fused": True}),
        ("AdamW", {"foreach": True}),
        ("SGD", {"momentum": 0.9, "weight_decay": 0.5}),
        ("RMSprop", {"momentum": 0.9}),
    ],
)
def test_a_skipped_step_is_as_if_its_batch_had_not_been_there(tmp_path, optimizer, settings):
    class Without(Line):
        def batches(self) -> list[dict[str, Tensor]]:
            batches = super().batches()
            return batches[:2] + batches[4:]

    module, reference = Line({2: nan, 3: inf}, optimizer, **settings), Without(None, optimizer, **settings)
    guard = LossGuard("skip")
    trainer = fit(module, guard, tmp_path, max_steps=8, gradient_clip_val=1.0)
    fit(reference, LossGuard(), tmp_path, max_steps=6, gradient_clip_val=1.0)
    assert torch.equal(module.layer.weight, reference.layer.weight)
    assert guard.num_skipped_steps == 2
    assert trainer.global_step == 8


@pytest.mark.filterwarnings("ignore:skipped:")
def test_each_skipped_step_is_said_and_too_many_in_a_row_end_the_run(tmp_path):
    guard = LossGuard("skip", raise_after_skipped_steps=2)
    with (
        pytest.warns(
            UserWarning, match=r"skipped: the loss of optimizer step 3 is nan, on the micro-batch of rows 4, 5"
        ),
        pytest.raises(FloatingPointError, match=r"optimizer step 6 is nan.*the last of 2 skipped steps in a row"),
    ):
        fit(Line({2: nan, 4: nan, 5: nan}), guard, tmp_path)


@pytest.mark.filterwarnings("ignore:skipped:")
@pytest.mark.parametrize("value", [nan, inf])
def test_under_a_loss_scaler_a_skipped_step_is_counted_once(tmp_path, value):
    plugin, guard = ScaledMixedPrecision(init_scale=1.0), LossGuard("skip")
    module = Line({2: value, 5: value})
    fit(module, guard, tmp_path, plugins=[plugin])
    assert guard.num_skipped_steps + plugin.num_skipped_steps == 2
    for step in (2, 5):
        assert torch.equal(module.weights[step], module.weights[step - 1])


@pytest.mark.filterwarnings("ignore:skipped:")
def test_counts_go_on_after_a_resume(tmp_path):
    last = LastCheckpoint(every_n_steps=4)
    fit(Line({2: nan, 3: nan}), LossGuard("skip"), tmp_path, last, max_steps=4)
    guard = LossGuard("skip")
    guard.load_state_dict(torch.load(last.last_model_path, weights_only=True)["callbacks"]["LossGuard"])
    assert (guard.num_skipped_steps, guard.num_skipped_in_a_row) == (2, 2)


@pytest.mark.filterwarnings("ignore:skipped:")
def test_the_count_is_logged(tmp_path):
    fit(Line({2: nan}), LossGuard("skip"), tmp_path, logger=pl.loggers.CSVLogger(tmp_path), max_steps=4)
    (file,) = tmp_path.rglob("metrics.csv")
    assert file.read_text().split() == ["step,train/num_skipped_steps", "2,1", "3,1"]


# -- where the answer comes late, as from a GPU ------------------------------------------------------------------------


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(loss_guard._Finding):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.is_late = True

    monkeypatch.setattr(loss_guard, "_Finding", Late)


@pytest.mark.usefixtures("late")
def test_a_late_answer_ends_the_run_one_step_later_with_the_rows_of_the_step_it_is_about(tmp_path):
    module = Line({3: nan})
    with pytest.raises(FloatingPointError, match=r"optimizer step 4 is nan, on the micro-batch of rows 6, 7 of"):
        fit(module, LossGuard(), tmp_path)
    assert len(module.weights) == 4, "the next step was not made"


@pytest.mark.usefixtures("late")
def test_no_checkpoint_is_written_after_a_bad_step(tmp_path):
    last = LastCheckpoint(every_n_steps=1, num_kept=9)
    with pytest.raises(FloatingPointError, match="optimizer step 4 is nan"):
        fit(Line({3: nan}), LossGuard(), tmp_path, last, plugins=[AtomicCheckpointIO()])
    assert sorted(path.name for path in tmp_path.rglob("*.ckpt")) == [f"last-step={n}.ckpt" for n in (1, 2, 3)]


@pytest.mark.usefixtures("late")
def test_no_evaluation_begins_after_a_bad_step(tmp_path):
    module = Line({3: nan})
    with pytest.raises(FloatingPointError, match="optimizer step 4 is nan"):
        fit(module, LossGuard(), tmp_path, val_check_interval=2)
    assert module.validated == 1


@pytest.mark.usefixtures("late")
def test_the_last_step_is_not_forgotten(tmp_path):
    with pytest.raises(FloatingPointError, match="optimizer step 8 is nan"):
        fit(Line({7: nan}), LossGuard(), tmp_path)


@pytest.mark.parametrize("late_or_not", [False, True])
def test_with_finite_losses_it_changes_nothing(tmp_path, late_or_not, request):
    if late_or_not:
        request.getfixturevalue("late")
    module, reference = Line(), Line()
    fit(module, LossGuard(), tmp_path, accumulate_grad_batches=2)
    fit(reference, LossGuard("skip"), tmp_path, accumulate_grad_batches=2)
    assert torch.equal(module.layer.weight, reference.layer.weight)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"policy": "hide"}, "policy is 'hide' but must be raise or skip"),
        ({"raise_after_skipped_steps": 0}, "is 0 but"),
    ],
)
def test_a_setting_out_of_range_is_named(setting: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        LossGuard(**setting)


CODE = """
import json, warnings
from lit_trainer.callbacks.loss_guard import LossGuard
from tests.callbacks.test_loss_guard import Line, fit

class OnOneRank(Line):
    def training_step(self, batch, batch_idx):
        batch["row"] = batch["row"] + 100 * self.trainer.global_rank
        loss = self.layer(batch["x"]).square().mean()
        return loss * float("nan") if self.trainer.global_rank == 1 and batch_idx in self.bad else loss

settings = dict(devices=2, strategy="ddp", use_distributed_sampler=False)
module, guard = OnOneRank({2: 0, 5: 0}), LossGuard("skip")
fit(module, guard, ".", **settings)
try:
    fit(OnOneRank({2: 0}), LossGuard(), ".", **settings)
except FloatingPointError as error:
    print("RESULT" + json.dumps([guard.num_skipped_steps, module.layer.weight.tolist(), str(error)]))
"""


@pytest.mark.slow
def test_all_ranks_skip_and_end_alike(tmp_path):
    results = [json.loads(output.partition("RESULT")[2]) for output in run_on_two_ranks(CODE, tmp_path)]
    assert results[0] == results[1]
    skipped, weights, error = results[0]
    assert skipped == 2
    assert all(math.isfinite(weight) for weight in weights[0])
    assert "optimizer step 3 is nan" in error
