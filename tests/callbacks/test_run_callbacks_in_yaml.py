"""What steers and watches a run can be set in YAML, and is explained by ``--help``."""

import io
from contextlib import redirect_stdout
from typing import Any

import lightning.pytorch as pl
import pytest
from jsonargparse import ArgumentParser
from lightning.pytorch.plugins import Precision

SETTINGS: dict[str, dict[str, Any]] = {
    "lit_trainer.callbacks.best_checkpoint.BestCheckpoint": {"monitor": "val/f1", "mode": "max", "num_kept": 2},
    "lit_trainer.callbacks.last_checkpoint.LastCheckpoint": {"every_n_steps": 5, "on_write_error": "raise"},
    "lit_trainer.callbacks.evaluation_schedule.EvaluationSchedule": {"every_fraction": 0.25},
    "lit_trainer.callbacks.trainable_only.TrainableOnly": {},
    "lit_trainer.callbacks.export_pretrained.ExportPretrained": {"folder": "hf", "license": "mit"},
    "lit_trainer.callbacks.progress_bar.StepProgressBar": {"refresh_seconds": 2.0},
    "lit_trainer.callbacks.run_summary.RunSummary": {"next_command": "ls {export}"},
    "lit_trainer.callbacks.loss_guard.LossGuard": {"policy": "skip", "raise_after_skipped_steps": None},
    "lit_trainer.callbacks.loss_scale_monitor.LossScaleMonitor": {},
}


def parser_of(base: type) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--it", type=base)
    return parser


@pytest.mark.parametrize(("class_path", "settings"), SETTINGS.items(), ids=lambda value: str(value).split(".")[-1])
def test_a_callback_is_made_from_plain_settings(class_path, settings):
    parser = parser_of(pl.Callback)
    found = parser.parse_object({"it": {"class_path": class_path, "init_args": settings}})
    callback = parser.instantiate(found).it
    assert f"{type(callback).__module__}.{type(callback).__name__}" == class_path
    for name, value in settings.items():
        assert getattr(callback, name, value) == value


def test_precision_is_made_from_flat_settings():
    parser = parser_of(Precision)
    class_path = "lit_trainer.runtime.precision.ScaledMixedPrecision"
    settings = {"init_scale": 1024, "growth_interval": 500, "device": "cpu"}
    plugin = parser.instantiate(parser.parse_object({"it": {"class_path": class_path, "init_args": settings}})).it
    assert plugin.scaler.get_scale() == 1024
    assert plugin.scaler.get_growth_interval() == 500


@pytest.mark.parametrize("class_path", SETTINGS)
def test_help_explains_each_argument(class_path):
    parser = parser_of(pl.Callback)
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit):
        parser.parse_args([f"--it.help={class_path}"])
    assert "(type: " in printed.getvalue() or not SETTINGS[class_path]
    assert "ARG:" not in printed.getvalue()
    for name in SETTINGS[class_path]:
        explanation = printed.getvalue().partition("\nHelp for")[2].partition(f"--it.{name} ")[2].partition("--it.")[0]
        assert len(explanation.split("(type")[0].split()) > 3, name
