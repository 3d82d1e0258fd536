"""A run is read from what it left, noted once, and known again."""

from pathlib import Path

import numpy as np
import pytest

from lit_trainer.studies.finished_run import FinishedRun, UnfinishedError, remove_weights
from tests.studies.finished_runs import write_run, write_scores

LABELS = np.array([0, 1, 1, -100])
DECIDED = np.array([0, 0, 1, 1])


def test_the_metrics_of_the_test_are_read(tmp_path: Path) -> None:
    run = write_run(tmp_path / "version_0", LABELS, DECIDED)
    assert dict(run.metrics) == {"accuracy": 0.5, "f1": 0.25, "test_rule/f1": 0.5}


def test_decisions_are_those_of_rows_with_a_label(tmp_path: Path) -> None:
    found = write_run(tmp_path / "version_0", LABELS, DECIDED).decisions()
    assert found is not None
    assert [each.tolist() for each in found] == [[0, 1, 1], [0, 0, 1]]


def test_one_logit_is_that_of_the_second_class_and_values_decide_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path / "version_0", LABELS, DECIDED)
    write_scores(run.folder, np.array([0, 1]), np.array([[-0.5], [0.0]]))
    assert [each.tolist() for each in run.decisions() or ()] == [[0, 1], [0, 1]]
    write_scores(run.folder, np.array([0.5, 1.0]), np.array([[-0.5], [0.0]]))
    assert run.decisions() is None
    write_scores(run.folder, np.array([[1.0, 0.0]]), np.array([[-0.5, 1.0]]))
    assert run.decisions() is None
    (run.folder / "scores" / "test.parquet").unlink()
    assert run.decisions() is None


def test_a_run_that_was_noted_is_known_again_without_its_weights(tmp_path: Path) -> None:
    run = write_run(tmp_path / "version_0", LABELS, DECIDED)
    assert FinishedRun.noted(tmp_path) is None
    run.note(tmp_path)
    (run.folder / "checkpoints").mkdir()
    (run.folder / "checkpoints" / "best.ckpt").touch()
    remove_weights(run.folder)
    assert not (run.folder / "checkpoints").exists()
    again = FinishedRun.noted(tmp_path)
    assert again is not None
    assert (again.metrics, again.cost) == (dict(run.metrics), dict(run.cost))
    assert again.decisions() is not None
    (tmp_path / "finished.json").write_text("{")
    assert FinishedRun.noted(tmp_path) is None


def test_a_run_that_was_not_tested_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnfinishedError, match=r"metrics\.csv is not there"):
        FinishedRun.read(tmp_path)
    (tmp_path / "metrics.csv").write_text("step,train/loss\n1,0.5\n")
    (tmp_path / "cost.json").write_text("{}")
    with pytest.raises(UnfinishedError, match="it was not tested"):
        FinishedRun.read(tmp_path)
