"""Saving, choosing and exporting end on all ranks alike, also when only one of them meets an error."""

import json
from pathlib import Path

import pytest

from tests.callbacks.two_ranks import run_on_two_ranks

CODE = """
import json, sys
from pathlib import Path
import torch
from lit_trainer.callbacks.best_checkpoint import BestCheckpoint
from lit_trainer.callbacks.evaluation_schedule import EvaluationSchedule
from lit_trainer.callbacks.export_pretrained import ExportPretrained
from lit_trainer.callbacks.last_checkpoint import LastCheckpoint
from tests.callbacks.test_best_checkpoint import FullDisk
from tests.callbacks.tiny_task import TinyData, TinyTask, make_trainer

folder = Path({folder!r})

class Task(TinyTask):
    # The ranks see different metrics, as they do where a metric is not reduced.
    def on_validation_epoch_end(self):
        step = self.trainer.global_step
        self.log("val/f1", torch.tensor(step if self.trainer.global_rank == 0 else -step, dtype=torch.float32))

def run(root, disk, policy, **kwargs):
    best, last, export = BestCheckpoint("val/f1", "max"), LastCheckpoint(2, on_write_error=policy), ExportPretrained()
    callbacks = [EvaluationSchedule(every_n_steps=2), export, best, last]
    trainer = make_trainer(
        root, callbacks, devices=2, strategy="ddp", max_steps=6, plugins=disk, use_distributed_sampler=False
    )
    task = Task(folder)
    trainer.fit(task, TinyData(folder), **kwargs)
    trainer.test(task, TinyData(folder), ckpt_path=best.best_model_path, verbose=False)
    return best.best_model_path, last.last_model_path

best, last = run("a", [FullDisk({{4}})], "warn")
try:
    run("b", [FullDisk({{4}})], "raise")
    error = "none"
except OSError as raised:
    error = str(raised)
resumed, _ = run("c", [FullDisk(set())], "warn", ckpt_path=last)
print("RESULT" + json.dumps([best, last, error, resumed]))
"""


@pytest.mark.slow
def test_all_ranks_end_alike(tiny_bert, tmp_path):
    first, second = (
        json.loads(output.partition("RESULT")[2])
        for output in run_on_two_ranks(CODE.format(folder=str(tiny_bert)), tmp_path)
    )
    assert Path(first[0]).name == "best-step=6.ckpt"
    assert first[0] == second[0]
    assert first[1] == second[1] == "a/checkpoints/last-step=6.ckpt"
    assert "No space left" in first[2]
    assert "another rank could not save" in second[2]
    assert first[3] == second[3] == first[0], "the resume found nothing left to do"
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.ckpt")}
    assert files == {
        "a/checkpoints/best-step=6.ckpt",
        "a/checkpoints/last-step=2.ckpt",
        "a/checkpoints/last-step=6.ckpt",
        "b/checkpoints/best-step=2.ckpt",
        "b/checkpoints/last-step=2.ckpt",
    }
    for run in ("a", "c"):
        assert (tmp_path / run / "export" / "model.safetensors").exists()
        assert "| test |" in (tmp_path / run / "export" / "README.md").read_text()
