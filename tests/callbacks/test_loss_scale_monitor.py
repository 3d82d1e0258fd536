"""Scale and skipped steps are logged by optimizer step, where there is a scaler."""

import csv
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from lit_trainer.callbacks.loss_scale_monitor import LossScaleMonitor
from lit_trainer.runtime.precision import ScaledMixedPrecision
from tests.callbacks.test_loss_guard import Line
from tests.callbacks.tiny_task import make_trainer


def logged(root: Path, *plugins: Any, **kwargs: Any) -> list[tuple[str, str]]:
    settings = {"max_steps": 4, "enable_checkpointing": False, "limit_val_batches": 0, **kwargs}
    trainer = make_trainer(
        root, [LossScaleMonitor()], plugins=list(plugins), logger=pl.loggers.CSVLogger(root), **settings
    )
    trainer.fit(Line({1: float("inf"), 5: float("inf")}))
    rows = [row for file in root.rglob("metrics.csv") for row in csv.DictReader(file.read_text().splitlines())]
    return [(row["amp/loss_scale"], row.get("amp/num_skipped_steps", "")) for row in rows]


def test_scale_and_skipped_steps_are_logged_after_each_step(tmp_path):
    plugin = ScaledMixedPrecision(init_scale=8.0)
    assert logged(tmp_path, plugin) == [("8.0", "0.0"), ("4.0", "1.0"), ("4.0", "1.0"), ("4.0", "1.0")]


def test_micro_batches_are_not_logged(tmp_path):
    plugin = ScaledMixedPrecision(init_scale=8.0)
    found = logged(tmp_path, plugin, accumulate_grad_batches=3)
    assert found == [("4.0", "1.0"), ("2.0", "2.0"), ("2.0", "2.0"), ("2.0", "2.0")]


def test_the_plugin_of_lightning_has_a_scale_and_counts_nothing(tmp_path):
    plugin = pl.plugins.MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=8.0))
    assert logged(tmp_path, plugin) == [("8.0", ""), ("4.0", ""), ("4.0", ""), ("4.0", "")]


@pytest.mark.parametrize("plugins", [[], [ScaledMixedPrecision("bf16-mixed")]])
def test_without_a_scaler_nothing_is_logged(tmp_path, plugins):
    assert logged(tmp_path, *plugins) == []
