"""Each evaluation is reported, and a trial that is worse than the others at the same point stops there."""

import json
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest

from lit_trainer.callbacks.evaluation_schedule import EvaluationSchedule
from tests.callbacks.tiny_task import QUIET, TinyData, TinyTask

optuna = pytest.importorskip("optuna")

from lit_trainer.studies import journal  # noqa: E402
from lit_trainer.studies.trial_report import TrialReport  # noqa: E402

GOOD = {2: 0.5, 4: 0.9, 6: 0.7}
BAD = {2: 0.1, 4: 0.2, 6: 0.3}


@pytest.fixture
def run(tiny_bert: Path, tmp_path: Path) -> Any:
    """Runs a trial whose metric follows a script; returns its result, the trial and the run."""
    study = journal.open_study(tmp_path, "max", {}, 0)

    def run(scores: dict[int, float], **settings: Any) -> tuple[dict[str, Any], Any, pl.Trainer]:
        number = study.ask({}).number
        report = TrialReport(**{"monitor": "val/f1", "mode": "max", **settings}, folder=str(tmp_path), number=number,
                             result=str(tmp_path))  # fmt: skip
        trainer = pl.Trainer(
            callbacks=[report, EvaluationSchedule(2)], max_steps=6, logger=False, enable_checkpointing=False, **QUIET
        )
        trainer.fit(TinyTask(tiny_bert, scores), datamodule=TinyData(tiny_bert))
        result = json.loads((tmp_path / "trial.json").read_text())
        if not result["pruned"]:
            study.tell(number, result["value"])
        return result, study.trials[number], trainer

    return run


def test_every_evaluation_is_reported_by_its_number_and_the_best_counts(run: Any) -> None:
    result, trial, _ = run(GOOD)
    assert result == {"value": pytest.approx(0.9), "pruned": False, "num_steps": 6}
    assert trial.intermediate_values == pytest.approx({1: 0.5, 2: 0.9, 3: 0.7})
    assert run(GOOD, mode="min")[0]["value"] == pytest.approx(0.5)


def test_a_trial_below_the_median_of_others_stops_unless_told_not_to(run: Any) -> None:
    for _ in range(5):
        run(GOOD)
    result, trial, trainer = run(BAD)
    assert result == {"value": pytest.approx(0.2), "pruned": True, "num_steps": 4}
    assert list(trial.intermediate_values) == [1, 2]
    assert trainer.global_step == 4
    assert run(BAD, prune=False)[0]["pruned"] is False


def test_nan_is_no_value(run: Any) -> None:
    assert run({2: float("nan"), 4: 0.3, 6: float("nan")})[0]["value"] == pytest.approx(0.3)


def test_a_metric_that_is_not_logged_is_told(run: Any) -> None:
    with pytest.raises(ValueError, match=r"monitor is 'val/f2', but the evaluation logged .*val/f1"):
        run(GOOD, monitor="val/f2")
