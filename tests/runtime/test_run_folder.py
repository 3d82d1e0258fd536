"""Folders of runs: each belongs to one run, however many begin at once."""

import csv
import multiprocessing
import sys
from pathlib import Path

import pytest
from lightning.pytorch.utilities import rank_zero_only

from lit_trainer.runtime.run_folder import RunCSVLogger, RunFolder, RunTensorBoardLogger


def test_folders_are_numbered_and_never_taken_twice(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "root"
    assert [RunFolder(root).path.name for _ in range(3)] == ["version_0", "version_1", "version_2"]
    (root / "version_0").rmdir()
    assert RunFolder(root).path.name == "version_3"


@pytest.mark.parametrize("taken", ["version_7", "version_7.zip", "version_x", "version_07", "other"])
def test_what_else_lies_there_does_no_harm(tmp_path: Path, taken: str) -> None:
    (tmp_path / taken).touch()
    expected = {"version_7": "version_8", "version_07": "version_8"}.get(taken, "version_0")
    assert RunFolder(tmp_path).path.name == expected


def test_a_folder_is_made_when_it_is_wanted_and_stays(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "root")
    assert not folder.root.exists()
    assert folder.path is folder.path
    assert folder.path.is_dir()


def test_an_unused_folder_is_given_back_and_a_used_one_kept(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.release()
    first = folder.path
    folder.release()
    assert not first.exists()
    (folder.path / "file").touch()
    folder.release()
    assert (tmp_path / "version_0" / "file").exists()


def test_other_ranks_make_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    folder = RunFolder(tmp_path / "root")
    assert folder.path == folder.root
    folder.release()
    assert not folder.root.exists()


def test_a_root_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"trainer.default_root_dir: no folder can be made in .*file: "):
        _ = RunFolder(tmp_path / "file").path


def claim(root: Path) -> str:
    return RunFolder(root).path.name


def test_runs_that_begin_at_once_get_folders_of_their_own(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(8) as pool:
        names = pool.map(claim, [tmp_path / "root"] * 64, chunksize=1)
    assert sorted(names) == sorted(f"version_{number}" for number in range(64))


# -- SLURM -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Begins a command as a SLURM job does and returns its folder's name."""
    for name in ("ARRAY_JOB_ID", "ARRAY_TASK_ID", "STEP_ID", "RESTART_COUNT"):
        monkeypatch.delenv(f"SLURM_{name}", raising=False)

    def job(command: str = "fit", **variables: int) -> str:
        with monkeypatch.context() as context:
            context.setattr(sys, "argv", ["lit-trainer", *command.split()])
            for name, value in variables.items():
                context.setenv(f"SLURM_{name}", str(value))
            return RunFolder(tmp_path).path.name

    return job


def test_a_job_that_was_queued_again_gets_its_folder_back(job) -> None:
    assert job(JOB_ID=5) == "version_0"
    assert job(JOB_ID=6) == "version_1"
    assert job(JOB_ID=5, RESTART_COUNT=1) == "version_0"
    assert job(JOB_ID=5, RESTART_COUNT=2) == "version_0"
    assert job(JOB_ID=7, RESTART_COUNT=1) == "version_2"


def test_elements_of_an_array_keep_apart(job) -> None:
    first = {"ARRAY_JOB_ID": 9, "ARRAY_TASK_ID": 0}
    second = {"ARRAY_JOB_ID": 9, "ARRAY_TASK_ID": 1}
    assert job(JOB_ID=9, **first) == "version_0"
    assert job(JOB_ID=10, **second) == "version_1"
    assert job(JOB_ID=10, RESTART_COUNT=1, **second) == "version_1"
    assert job(JOB_ID=9, RESTART_COUNT=1, **first) == "version_0"


def test_commands_and_steps_of_one_job_keep_apart(job) -> None:
    assert job("fit --config a.yaml", JOB_ID=5) == "version_0"
    assert job("fit --config b.yaml", JOB_ID=5) == "version_1"
    assert job("fit --config b.yaml", JOB_ID=5, STEP_ID=3) == "version_2"
    assert job("fit --config b.yaml", JOB_ID=5, STEP_ID=3, RESTART_COUNT=1) == "version_2"
    assert job("fit --config b.yaml", JOB_ID=5, RESTART_COUNT=1) == "version_1"


def test_a_session_on_a_node_is_no_job_that_goes_on(job) -> None:
    assert [job(JOB_ID=5), job(JOB_ID=5), job(JOB_ID=5)] == ["version_0", "version_1", "version_2"]


# -- loggers -----------------------------------------------------------------------------------------------------------


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_both_loggers_write_to_the_one_folder_and_nothing_before_they_have_to(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "root")
    loggers = [RunTensorBoardLogger(folder), RunCSVLogger(folder)]
    assert not folder.root.exists()
    for logger in loggers:
        logger.log_metrics({"loss": 0.5}, step=1)
        logger.save()
        logger.finalize("success")
        assert Path(logger.log_dir) == folder.path
        assert (logger.name, logger.version) == ("", "version_0")
    assert {path.name.split(".")[0] for path in folder.path.iterdir()} == {"events", "metrics"}


def test_metrics_of_a_run_that_goes_on_are_added(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step, metrics in enumerate([{"loss": 0.5}, {"loss": 0.25}, {"f1": 1.0}]):
        logger = RunCSVLogger(folder)
        logger.log_metrics(metrics, step=step)
        logger.finalize("success")
    assert rows(folder.path) == [
        {"f1": "", "loss": "0.5", "step": "0"},
        {"f1": "", "loss": "0.25", "step": "1"},
        {"f1": "1.0", "loss": "", "step": "2"},
    ]


def test_an_empty_table_is_begun_anew(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (folder.path / "metrics.csv").touch()
    logger = RunCSVLogger(folder)
    logger.log_metrics({"loss": 0.5}, step=0)
    logger.finalize("success")
    assert rows(folder.path) == [{"loss": "0.5", "step": "0"}]
