"""The bar counts optimizer steps, draws when it is time, and leaves a log file readable."""

import re
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from lit_trainer.callbacks.best_checkpoint import BestCheckpoint
from lit_trainer.callbacks.evaluation_schedule import EvaluationSchedule
from lit_trainer.callbacks.progress_bar import StepProgressBar
from tests.callbacks.tiny_task import TinyData, TinyTask, make_trainer


def run(folder: Path, root: Path, bar: StepProgressBar, task: TinyTask | None = None, **kwargs: Any) -> pl.Trainer:
    task = task or TinyTask(folder)
    callbacks = [bar, EvaluationSchedule(every_n_steps=2), BestCheckpoint("val/f1", "max")]
    settings = {"max_steps": 4, "enable_progress_bar": True, "accumulate_grad_batches": 3, **kwargs}
    trainer = make_trainer(root, callbacks, **settings)
    trainer.fit(task, TinyData())
    trainer.test(task, TinyData(), verbose=False)
    return trainer


def lines(text: str) -> list[str]:
    return [
        line for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n").splitlines() if line.strip()
    ]


def test_a_log_file_gets_a_line_now_and_then(tiny_bert, tmp_path, capsys):
    run(tiny_bert, tmp_path, StepProgressBar(line_seconds=1000))
    printed = lines(capsys.readouterr().err)
    assert [line for line in printed if not line.startswith(("INFO", "💡"))] == [
        "Training 0 of 4 (0%)",
        "step 2: val/f1 0.0020",
        "step 4: val/f1 0.0040",
        next(line for line in printed if line.startswith("Training 4 of 4 (100%)  loss ")),
        next(line for line in printed if line.startswith("4 steps in 0:")),
    ]


def test_each_step_can_have_a_line(tiny_bert, tmp_path, capsys):
    run(tiny_bert, tmp_path, StepProgressBar(line_seconds=0))
    printed = capsys.readouterr().err
    for part in ("Training 1 of 4 (25%)  loss", "Validation 3 of 3 (100%)", "Test 3 of 3 (100%)", "left"):
        assert part in printed
    assert printed.count("Training 1 of 4") == 1, "micro-batches are no steps"


def test_a_terminal_gets_bars_that_are_gone_when_they_are_done(tiny_bert, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    run(tiny_bert, tmp_path, StepProgressBar(refresh_seconds=0))
    printed = capsys.readouterr().err
    for part in ("Training", "4/4", "loss", "Validation", "3/3", "Test", "step 2: val/f1 0.0020"):
        assert part in printed
    assert printed.rstrip().endswith("\x1b[?25h") or "\x1b[?25h" in printed[-200:], "the cursor is back"


def test_standard_output_is_left_alone_when_it_is_not_the_terminal(tiny_bert, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")

    class Talkative(TinyTask):
        def on_train_start(self) -> None:
            self.print("to standard output")

    run(tiny_bert, tmp_path, StepProgressBar(), Talkative(tiny_bert))
    captured = capsys.readouterr()
    assert captured.out == "to standard output\n"
    assert "to standard output" not in captured.err


def test_the_terminal_is_given_back_after_an_error(tiny_bert, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    out, err = sys.stdout, sys.stderr

    class Failing(TinyTask):
        def validation_step(self, *_: Any) -> None:
            raise KeyError("gone wrong")

    with pytest.raises(KeyError):
        run(tiny_bert, tmp_path, StepProgressBar(), Failing(tiny_bert))
    assert (sys.stdout, sys.stderr) == (out, err)
    assert "\x1b[?25h" in capsys.readouterr().err


def test_nothing_on_the_device_is_read_between_two_drawings(tiny_bert, tmp_path, monkeypatch):
    reads: list[int] = []

    class Bar(StepProgressBar):
        def on_train_batch_end(self, *args: Any) -> None:
            item = torch.Tensor.__float__
            monkeypatch.setattr(torch.Tensor, "__float__", lambda tensor: reads.append(1) or item(tensor))
            super().on_train_batch_end(*args)
            monkeypatch.setattr(torch.Tensor, "__float__", item)

    run(tiny_bert, tmp_path, Bar(line_seconds=1000))
    assert not reads


def test_a_bar_that_is_disabled_says_nothing(tiny_bert, tmp_path, capsys):
    bar = StepProgressBar(line_seconds=0)
    bar.disable()
    run(tiny_bert, tmp_path, bar)
    assert "Training" not in capsys.readouterr().err
    bar.enable()
    bar.print("now")
    assert capsys.readouterr().out == "now\n"


@pytest.mark.parametrize("total", [None, -1, float("inf")])
def test_a_run_of_unknown_length_is_counted_all_the_same(tiny_bert, tmp_path, capsys, total):
    class Endless(TinyTask):
        num_steps_total = total

    run(tiny_bert, tmp_path, StepProgressBar(line_seconds=0), Endless(tiny_bert))
    assert re.search(r"^Training 2  loss [\d.]+  .*step", capsys.readouterr().err, re.MULTILINE)


def test_it_is_the_only_bar(tiny_bert, tmp_path):
    trainer = run(tiny_bert, tmp_path, StepProgressBar())
    assert [type(c) for c in trainer.callbacks if isinstance(c, pl.callbacks.ProgressBar)] == [StepProgressBar]
