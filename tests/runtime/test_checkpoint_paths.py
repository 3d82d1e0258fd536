"""From best, last, a folder or a file to a checkpoint."""

import logging
import os
from pathlib import Path
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch

from lit_trainer.runtime.checkpoint_paths import ExplicitCheckpointConnector, find_checkpoint, run_of

Times = dict[str, float]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes checkpoints of a run, each newer than the one before."""
    monkeypatch.chdir(tmp_path)
    clock = iter(range(1_000_000, 2_000_000))

    def write(run: str, *names: str, best: str = "", resumable: bool = True) -> Path:
        folder = Path("runs", run, "checkpoints")
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            content = {
                "global_step": int("".join(filter(str.isdigit, name)) or 0),
                "callbacks": {"Other": 3, "BestCheckpoint{}": {"best_model_path": f"/moved/since/{best}.ckpt"}},
            }
            path = folder / f"{name}.ckpt"
            torch.save(content | ({"optimizer_states": []} if resumable else {}), path)
            now = next(clock)
            os.utime(path, (now, now))
        return folder.parent

    return write


def test_best_and_last_are_those_of_the_newest_run_that_has_any(write) -> None:
    write("version_3", "best-step=4", "last-step=8")
    write("version_1", "best-step=5", "last-step=9")
    Path("runs/version_7").mkdir()
    assert find_checkpoint("best", "last", "runs") == "runs/version_1/checkpoints/best-step=5.ckpt"
    assert find_checkpoint("last", "best", "runs") == "runs/version_1/checkpoints/last-step=9.ckpt"


@pytest.mark.parametrize("folder", ["runs/version_0", "runs/version_0/checkpoints", "runs/version_0/"])
def test_a_folder_has_both_kinds(write, folder: str) -> None:
    write("version_0", "best-step=4", "last-step=8")
    assert find_checkpoint(folder, "best", "elsewhere") == "runs/version_0/checkpoints/best-step=4.ckpt"
    assert find_checkpoint(folder, "last", "elsewhere") == "runs/version_0/checkpoints/last-step=8.ckpt"


def test_of_several_best_ones_the_best_is_taken(write) -> None:
    run = write("version_0", "best-step=4", "best-step=8", best="best-step=4")
    assert find_checkpoint(str(run), "best", "runs").endswith("best-step=4.ckpt")
    write("version_0", "best-step=12", best="best-step=12")
    assert find_checkpoint(str(run), "best", "runs").endswith("best-step=12.ckpt")
    write("version_0", "best-step=16", best="gone")
    assert find_checkpoint(str(run), "best", "runs").endswith("best-step=16.ckpt")


def test_weights_alone_are_enough_to_be_the_best_but_not_to_resume(write) -> None:
    run = write("version_0", "best-step=4", resumable=False)
    assert find_checkpoint(str(run), "best", "runs").endswith("best-step=4.ckpt")
    with pytest.raises(ValueError, match=r"none of the checkpoints in .* is whole, with all that a resume needs"):
        find_checkpoint(str(run), "last", "runs")


def test_a_damaged_last_checkpoint_is_passed_over(write) -> None:
    run = write("version_0", "last-step=4", "last-step=8")
    damaged = run / "checkpoints" / "last-step=8.ckpt"
    damaged.write_bytes(damaged.read_bytes()[:100])
    assert find_checkpoint(str(run), "last", "runs").endswith("last-step=4.ckpt")


def test_without_a_best_one_the_newest_is_taken_and_that_is_said(write, caplog: pytest.LogCaptureFixture) -> None:
    run = write("version_0", "epoch=0-step=3", "epoch=1-step=6", resumable=False)
    caplog.set_level(logging.INFO)
    assert find_checkpoint(str(run), "best", "runs").endswith("epoch=1-step=6.ckpt")
    assert "no evaluation was kept as the best" in caplog.text


def test_a_file_and_a_remote_path_are_taken_as_they_are(write) -> None:
    run = write("version_0", "last-step=4")
    file = str(run / "checkpoints" / "last-step=4.ckpt")
    assert find_checkpoint(file, "best", "runs") == file
    assert find_checkpoint("s3://bucket/x.ckpt", "best", "runs") == "s3://bucket/x.ckpt"


def test_what_is_not_there_is_told(write) -> None:
    with pytest.raises(ValueError, match=r"ckpt_path is last, but no run in runs \(trainer.default_root_dir\) has a"):
        find_checkpoint("last", "last", "runs")
    write("version_0", "last-step=4")
    with pytest.raises(ValueError, match=r"ckpt_path is lst, but .* best, last, .* \(those in runs: runs/version_0\)"):
        find_checkpoint("lst", "last", "runs")
    Path("empty").mkdir()
    with pytest.raises(ValueError, match="ckpt_path: there is no checkpoint in empty"):
        find_checkpoint("empty", "last", "runs")


def test_the_run_of_a_checkpoint_has_its_settings(write) -> None:
    run = write("version_0", "last-step=4")
    file = str(run / "checkpoints" / "last-step=4.ckpt")
    assert run_of(file) is None
    (run / "config.yaml").touch()
    assert run_of(file) == run
    assert run_of("s3://bucket/x.ckpt") is None


@pytest.mark.filterwarnings("ignore:The `srun` command is available")  # Slurm is installed, this is no job
def test_no_checkpoint_of_another_job_is_picked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = pl.Trainer(default_root_dir=tmp_path, logger=False, enable_checkpointing=False, accelerator="cpu")
    (tmp_path / "hpc_ckpt_3.ckpt").touch()
    connector = "lightning.pytorch.trainer.connectors.checkpoint_connector"
    monkeypatch.setattr(f"{connector}.SLURMEnvironment", SimpleNamespace(detect=lambda: True))
    fit = {"state_fn": SimpleNamespace(value="fit"), "ckpt_path": None, "model_provided": True, "model_connected": True}
    assert trainer._checkpoint_connector._select_ckpt_path(**fit) == str(tmp_path / "hpc_ckpt_3.ckpt")
    ExplicitCheckpointConnector.install(trainer)
    assert trainer._checkpoint_connector._select_ckpt_path(**fit) is None
