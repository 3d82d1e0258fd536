"""The folder of a run is read as far as it is there; another folder is told in one line."""

import shutil

import pytest

from lit_trainer.reporting.run import Run
from tests.reporting.folders import make_run, make_scores


def test_what_is_there_is_read(tmp_path):
    run = Run.read(make_run(tmp_path / "films" / "version_0"))
    assert run.name == "films/version_0"
    assert run.settings["seed_everything"] == 3
    assert run.notes.step == 40
    assert run.best_step == 20
    assert run.scores.split == "test"
    assert not run.problems
    assert list(run.last("test/")) == ["f1", "loss"]


def test_the_test_comes_before_the_validation(tmp_path):
    folder = make_run(tmp_path)
    make_scores("binary", split="validation").save(folder)
    assert Run.read(folder).scores.split == "test"
    (folder / "scores" / "test.parquet").unlink()
    assert Run.read(folder).scores.split == "validation"


@pytest.mark.parametrize("kept", ["config.yaml", "metrics.csv", "run.json", "scores"])
def test_one_file_is_enough(tmp_path, kept):
    folder = make_run(tmp_path)
    for path in folder.iterdir():
        if path.name != kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert not Run.read(folder).problems


@pytest.mark.parametrize("name", ["run.json", "scores/test.parquet", "decision_rule.json"])
def test_what_cannot_be_read_is_a_problem_and_no_end(tmp_path, name):
    folder = make_run(tmp_path)
    (folder / name).write_text("{}")
    run = Run.read(folder)
    (problem,) = run.problems
    assert name in problem
    assert run.series


def test_settings_that_are_no_yaml_are_text(tmp_path):
    folder = make_run(tmp_path)
    (folder / "config.yaml").write_text("a: [1")
    run = Run.read(folder)
    assert run.settings == {}
    assert run.settings_text == "a: [1"


def test_another_folder_is_told(tmp_path):
    with pytest.raises(
        ValueError, match=r"^there is no folder .*/nowhere; give that of a run, such as runs/NAME/version"
    ):
        Run.read(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r" is not the folder of a run: it has neither config\.yaml nor metrics\.csv$"):
        Run.read(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"^there is no folder"):
        Run.read(tmp_path / "file")
    for number in (2, 10):
        make_run(tmp_path / f"version_{number}")
    with pytest.raises(ValueError, match=r" is not the folder of a run; the newest one in it is .*/version_10$"):
        Run.read(tmp_path)
