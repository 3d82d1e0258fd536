"""Skipped steps are known and counted, settings win over checkpoints, fused optimizers clip."""

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lit_trainer.runtime.precision import ScaledMixedPrecision

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),  # Lightning's own use of a torch function
    pytest.mark.filterwarnings("ignore:The `srun` command is available"),  # and is not needed here
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),  # a few rows in memory need none
    pytest.mark.filterwarnings("ignore:You.re resuming from a checkpoint that ended"),  # the rows do not matter here
]

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "num_sanity_val_steps": 0,
}


class Regression(pl.LightningModule):
    """A linear model whose gradients can be made to overflow at chosen batches."""

    def __init__(self, fused: bool = False, overflow_at: tuple[int, ...] = (), kind: str = "AdamW") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 1)
        self.fused = fused
        self.kind = kind
        self.overflow_at = overflow_at
        self.skipped: list[bool] = []
        self.gradients: list[Tensor] = []
        self.weights: list[Tensor] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self.linear(batch).float().square().mean()
        return loss * float("inf") if batch_idx in self.overflow_at else loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.gradients.append(self.linear.weight.grad.clone())

    def on_train_batch_end(self, *_: Any) -> None:
        self.skipped.append(getattr(self.trainer.precision_plugin, "step_skipped", False))
        self.weights.append(self.linear.weight.detach().clone())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return getattr(torch.optim, self.kind)(self.parameters(), lr=0.1, fused=self.fused)

    def train_dataloader(self) -> DataLoader:
        rows = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
        return DataLoader(rows, batch_size=4)


def fit(module: Regression, plugin: ScaledMixedPrecision | None, steps: int = 8, **kwargs: Any) -> pl.Trainer:
    ckpt_path = kwargs.pop("ckpt_path", None)
    trainer = pl.Trainer(**QUIET, max_steps=steps, plugins=plugin and [plugin], **kwargs)
    trainer.fit(module, ckpt_path=ckpt_path)
    return trainer


def test_a_skipped_step_is_known_right_after_it_and_changes_nothing():
    module, plugin = Regression(overflow_at=(1, 3, 4)), ScaledMixedPrecision(init_scale=1024.0)
    fit(module, plugin)
    assert module.skipped == [False, True, False, True, True, False, False, False]
    assert plugin.num_skipped_steps == 3
    assert plugin.num_skipped_in_a_row == 0
    assert plugin.scaler.get_scale() == 1024 / 2**3
    for step, skipped in enumerate(module.skipped[1:], start=1):
        assert torch.equal(module.weights[step], module.weights[step - 1]) == skipped


@pytest.mark.parametrize("kind", ["AdamW", "Adam", "SGD", "Adagrad"])
@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
def test_a_fused_optimizer_clips_and_trains_like_an_unfused_one(kind: str, precision: Any):
    modules = []
    for fused in (False, True):
        module = Regression(fused=fused, kind=kind, overflow_at=(2,) if precision == "16-mixed" else ())
        fit(module, ScaledMixedPrecision(precision, init_scale=1024.0), gradient_clip_val=0.1)
        modules.append(module)
    plain, fused = modules
    assert plain.skipped == fused.skipped == [step in plain.overflow_at for step in range(8)]
    torch.testing.assert_close(plain.weights, fused.weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_that_callbacks_see_are_unscaled(fused: bool):
    reference, module = Regression(), Regression(fused=fused)
    fit(reference, None, steps=1)
    fit(module, ScaledMixedPrecision(init_scale=4096.0), steps=1)
    torch.testing.assert_close(module.gradients[0], reference.gradients[0], rtol=1e-2, atol=1e-3)


def test_with_its_defaults_it_trains_like_the_plugin_of_lightning():
    ours, theirs = Regression(), Regression()
    fit(ours, ScaledMixedPrecision())
    fit(theirs, pl.plugins.MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu")))
    assert torch.equal(ours.linear.weight, theirs.linear.weight)


def test_bf16_needs_no_scaler_and_skips_nothing():
    module, plugin = Regression(), ScaledMixedPrecision("bf16-mixed")
    fit(module, plugin)
    assert plugin.scaler is None
    assert not any(module.skipped)
    assert plugin.state_dict() == {}
    plugin.load_state_dict({"scale": 1.0})


def test_settings_win_over_the_checkpoint_and_the_scale_comes_from_it(tmp_path):
    first = ScaledMixedPrecision(init_scale=1024.0, growth_factor=3.0, backoff_factor=0.25, growth_interval=50)
    path = tmp_path / "a.ckpt"
    fit(Regression(overflow_at=(3,)), first, steps=4).save_checkpoint(path)
    second = ScaledMixedPrecision(init_scale=8.0, growth_interval=500)
    fit(Regression(), second, steps=5, ckpt_path=path)
    assert second.scaler.get_scale() == 256
    assert second.scaler.get_growth_factor() == 2
    assert second.scaler.get_backoff_factor() == 0.5
    assert second.scaler.get_growth_interval() == 500
    assert second.num_skipped_steps == 1
    assert second.num_skipped_in_a_row == 0


def test_a_shorter_growth_interval_on_resume_still_lets_the_scale_grow(tmp_path):
    path = tmp_path / "a.ckpt"
    fit(Regression(), ScaledMixedPrecision(init_scale=8.0), steps=6).save_checkpoint(path)
    plugin = ScaledMixedPrecision(growth_interval=3)
    fit(Regression(), plugin, steps=7, ckpt_path=path)
    assert plugin.scaler.get_scale() == 16


def test_steps_skipped_in_a_row_warn_then_end_the_run():
    plugin = ScaledMixedPrecision(warn_after_skipped_steps=3, raise_after_skipped_steps=5)
    module = Regression(overflow_at=tuple(range(10)))
    with (
        pytest.warns(UserWarning, match="last 3 optimizer steps were all skipped"),
        pytest.raises(FloatingPointError, match=r"last 5 optimizer steps .* loss scale is down to 2048"),
    ):
        fit(module, plugin)


def test_alarms_can_be_turned_off():
    plugin = ScaledMixedPrecision(warn_after_skipped_steps=None, raise_after_skipped_steps=None)
    fit(Regression(overflow_at=tuple(range(16))), plugin)
    assert plugin.num_skipped_in_a_row == 8


def test_a_second_run_with_the_same_plugin_counts_each_step_once():
    plugin, module = ScaledMixedPrecision(), Regression(overflow_at=(0,))
    trainer = fit(module, plugin, steps=2)
    trainer.fit_loop.epoch_loop.max_steps = 4
    trainer.fit(module)
    assert len(plugin._hooks) == 1
    assert plugin.num_skipped_steps == module.skipped.count(True)


def test_accumulated_micro_batches_count_as_one_step():
    plugin = ScaledMixedPrecision()
    fit(Regression(overflow_at=(0,)), plugin, steps=4, accumulate_grad_batches=4)
    assert plugin.num_skipped_steps == 1


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("init_scale", 0.0),
        ("growth_factor", 1.0),
        ("backoff_factor", 1.0),
        ("growth_interval", 0),
        ("warn_after_skipped_steps", 0),
        ("raise_after_skipped_steps", -1),
    ],
)
def test_a_setting_out_of_range_is_named(setting: str, value: Any):
    with pytest.raises(ValueError, match=rf"{setting} is {value} but must be"):
        ScaledMixedPrecision(**{setting: value})


def test_lbfgs_is_refused_before_the_first_batch():
    module = Regression()
    module.configure_optimizers = lambda: torch.optim.LBFGS(module.parameters())
    with pytest.raises(ValueError, match="LBFGS evaluates the loss several times"):
        fit(module, ScaledMixedPrecision())
