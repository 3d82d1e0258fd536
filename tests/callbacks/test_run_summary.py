"""What a run has led to is said once, after its test, in lines that can be copied."""

from pathlib import Path
from typing import Any

import pytest

from lit_trainer.callbacks.best_checkpoint import BestCheckpoint
from lit_trainer.callbacks.evaluation_schedule import EvaluationSchedule
from lit_trainer.callbacks.export_pretrained import ExportPretrained
from lit_trainer.callbacks.run_summary import RunSummary
from tests.callbacks.tiny_task import TinyData, TinyTask, make_trainer


def run(folder: Path, root: Path, summary: RunSummary, baseline: Any = None, export: bool = True, best: bool = True):
    task, checkpoint = TinyTask(folder), BestCheckpoint("val/f1", "max")
    task.baseline_metrics = baseline
    callbacks = [summary, EvaluationSchedule(every_n_steps=2)]
    callbacks += [checkpoint] * best + [ExportPretrained()] * export
    trainer = make_trainer(root, callbacks, max_steps=4, enable_checkpointing=best)
    trainer.fit(task, TinyData(folder))
    trainer.test(task, TinyData(folder), ckpt_path=checkpoint.best_model_path or None, verbose=False)
    return {name: f"{float(value):.4f}" for name, value in trainer.callback_metrics.items()}


def test_metrics_stand_beside_the_baseline_and_places_can_be_copied(tiny_bert, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "40")
    (tmp_path / "config.yaml").write_text("")
    metrics = run(tiny_bert, tmp_path, RunSummary(), {"test/f1": 0.25, "other": 1.0})
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines()]
    assert ["test", "model", "majority"] in rows
    assert ["f1", metrics["test/f1"], "0.2500"] in rows
    assert ["loss", metrics["test/loss"]] in rows
    assert rows.index(["f1", metrics["test/f1"], "0.2500"]) < rows.index(["loss", metrics["test/loss"]])
    assert "checkpoints/best-step=4.ckpt (the best, val/f1 0.0040)\n" in printed
    assert "  exported   export\n" in printed
    assert "  next       lit-trainer predict --config ./config.yaml --ckpt_path .\n" in printed
    assert printed.count("majority") == 1


def test_without_settings_it_suggests_the_pipeline(tiny_bert, tmp_path, capsys):
    run(tiny_bert, tmp_path, RunSummary())
    printed = capsys.readouterr().out
    assert (
        f'python -c \'from transformers import pipeline; print(pipeline(model="{tmp_path}/export")("a text"))\''
        in printed
    )
    assert "majority" not in printed


def test_the_command_can_be_given(tiny_bert, tmp_path, capsys):
    run(tiny_bert, tmp_path, RunSummary("cat {export}/README.md {checkpoint} {run} {braces}"))
    expected = f"cat {tmp_path}/export/README.md {tmp_path}/checkpoints/best-step=4.ckpt {tmp_path} {{braces}}\n"
    assert expected in capsys.readouterr().out


def test_with_nothing_but_metrics_it_prints_those(tiny_bert, tmp_path, capsys):
    metrics = run(tiny_bert, tmp_path, RunSummary(), export=False, best=False)
    printed = capsys.readouterr().out
    assert metrics["test/f1"] in printed
    assert "next" not in printed


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_nan_and_inf_are_shown(tiny_bert, tmp_path, capsys, number):
    run(tiny_bert, tmp_path, RunSummary(), {"f1": number})
    assert str(number) in capsys.readouterr().out


def test_what_a_decision_rule_changes_is_shown_with_its_interval(tiny_bert, tmp_path, capsys):
    class Decided(TinyTask):
        def on_test_epoch_end(self) -> None:
            for stage, value in (("test_rule", 0.5), ("test_default", 0.25)):
                self.log_dict({f"{stage}/f1": value, f"{stage}/f1_low": value / 2, f"{stage}/f1_high": value * 1.5})

    trainer = make_trainer(tmp_path, [RunSummary()], max_steps=1, enable_checkpointing=False)
    trainer.test(Decided(tiny_bert), TinyData(tiny_bert), verbose=False)
    printed = capsys.readouterr().out
    assert "by the decision rule" in printed
    assert "0.5000 (0.2500 to 0.7500)   0.2500 (0.1250 to 0.3750)" in printed
