"""A run keeps what its report needs and ends with the page, whatever its labels are and however it ends."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.logger import DummyLogger

from lit_trainer.callbacks.best_checkpoint import BestCheckpoint
from lit_trainer.callbacks.evaluation_schedule import EvaluationSchedule
from lit_trainer.callbacks.run_report import RunReport
from lit_trainer.cli import main
from lit_trainer.reporting.notes import RunNotes
from lit_trainer.reporting.scores import SplitScores
from tests.callbacks.tiny_task import TinyData, TinyTask, make_trainer
from tests.tiny_recipe import write_recipe

RUN = Path("runs/films/version_0")


@pytest.fixture
def recipe(tmp_path: Path, tiny_bert: Path, films: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_recipe(tiny_bert, films)


def as_values(labels: list[str]) -> list[Any]:
    return [0.5 if label == "good" else -0.5 for label in labels]


def as_lists(labels: list[str]) -> list[Any]:
    return [label if index % 3 else f"{label};long" for index, label in enumerate(labels)]


def test_a_run_ends_with_its_report(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    main(["fit", "--config", str(recipe)])
    assert f"  report   {RUN}/report.html\n" in capsys.readouterr().out
    page = (RUN / "report.html").read_text()
    assert "9 rows of the test split, by the weights of step 3." in page
    assert "val/f1" not in page
    assert "w1" in page, "a text that was decided wrongly"

    notes = RunNotes.load(RUN)
    assert notes is not None
    assert (notes.status, notes.command, notes.step, notes.num_steps) == ("finished", "fit", 3, 3)
    assert notes.best == {"step": 3, "monitor": "val/loss", "score": pytest.approx(notes.best["score"])}
    assert notes.data is not None
    assert notes.data["splits"]["test"]["num_rows"] == 9
    assert notes.baseline["accuracy"] > 0.5
    assert notes.num_parameters == notes.num_trained_parameters > 1000

    test, validation = (SplitScores.load(RUN / "scores" / f"{name}.parquet") for name in ("test", "validation"))
    assert test.step == validation.step == 3
    assert (len(test.rows), test.logits.shape) == (9, (9, 2))
    with (RUN / "metrics.csv").open(newline="") as file:
        logged = {name: float(value) for line in csv.DictReader(file) for name, value in line.items() if value}
    assert ((test.logits.argmax(1) == test.labels).mean()) == pytest.approx(logged["test/accuracy"])

    images: set[str] = set()
    for file in RUN.glob("events.out.tfevents.*"):
        events = EventAccumulator(str(file)).Reload()
        images |= set(events.Tags()["images"])
    assert images >= {"report/loss", "report/confusion_matrix", "report/roc", "report/reliability"}


@pytest.mark.parametrize(
    ("kind", "labels", "shape"), [("regression", as_values, (9,)), ("multi_label", as_lists, (9, 3))]
)
def test_other_labels_have_a_report(
    recipe: Path, films: dict[str, list[str]], kind: str, labels: Any, shape: tuple[int, ...]
) -> None:
    rows = zip(films["text"], labels(films["label"]), strict=True)
    with Path("films.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    lists = ['--data.source.lists={"label": ";"}'] if kind == "multi_label" else []
    main(["fit", "--config", str(recipe), f"--data.kind={kind}", *lists])
    scores = SplitScores.load(RUN / "scores" / "test.parquet")
    assert scores.labels.shape == shape
    assert (scores.rule is None) == (kind == "regression")
    assert "9 rows of the test split" in (RUN / "report.html").read_text()


def test_each_command_reports_in_its_own_folder(recipe: Path) -> None:
    main(["fit", "--config", str(recipe), "--test_after_fit=false", "--trainer.max_epochs=2"])
    best = BestScore.of(RUN)
    for number, command in enumerate(("validate", "test"), start=1):
        main([command, "--config", str(RUN / "config.yaml"), "--ckpt_path", str(RUN)])
        folder = RUN.with_name(f"version_{number}")
        notes = RunNotes.load(folder)
        assert notes is not None
        assert (notes.command, notes.status, notes.step) == (command, "finished", None)
        split = {"validate": "validation"}.get(command, command)
        scores = SplitScores.load(folder / "scores" / f"{split}.parquet")
        assert scores.step == best.step
        assert "did not train" in (folder / "report.html").read_text()
        if command == "validate":
            np.testing.assert_array_equal(scores.logits, best.logits)


class BestScore:
    """The scores that a training kept of its best validation."""

    @staticmethod
    def of(folder: Path) -> SplitScores:
        notes = RunNotes.load(folder)
        assert notes is not None
        assert notes.best is not None
        kept = SplitScores.load(folder / "scores" / "validation.parquet")
        assert kept.step == notes.best["step"]
        return kept


# -- other tasks and ends ----------------------------------------------------------------------------------------------


def fit(folder: Path, root: Path, report: RunReport, *callbacks: Any, task: Any = None, **kwargs: Any) -> Any:
    kwargs = {"max_steps": 4, "logger": CSVLogger(root, name="", version=""), **kwargs}
    trainer = make_trainer(root, [report, EvaluationSchedule(every_n_steps=2), *callbacks], **kwargs)
    trainer.fit(task or TinyTask(folder), TinyData(folder))
    return trainer


def test_a_task_without_scores_has_a_page_of_what_it_logged(tiny_bert, tmp_path):
    report = RunReport()
    fit(tiny_bert, tmp_path, report, enable_checkpointing=False)
    assert report.written_to == tmp_path / "report.html"
    text = report.written_to.read_text()
    assert "No scores of a test or validation are in the folder" in text
    assert "4 of 4 optimizer steps" in text
    assert not (tmp_path / "scores").exists()


class StopsError(Exception):
    """Where a training breaks off."""


class Breaks(TinyTask):
    """Breaks off in the third step."""

    def __init__(self, folder: Path, error: BaseException) -> None:
        super().__init__(folder)
        self.error = error

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        if self.trainer.global_step == 3:
            raise self.error
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (StopsError("the disk\nis full"), "failed", "StopsError: the disk is full"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt"),
    ],
)
def test_a_run_that_broke_off_can_be_reported_on(tiny_bert, tmp_path, capsys, error, status, reason):
    with pytest.raises((StopsError, SystemExit)):
        fit(tiny_bert, tmp_path, RunReport(), BestCheckpoint("val/f1", "max"), task=Breaks(tiny_bert, error))
    notes = RunNotes.load(tmp_path)
    assert (notes.status, notes.reason, notes.step, notes.num_steps) == (status, reason, 3, 4)
    assert notes.best["step"] == 2
    main(["report", str(tmp_path)])
    assert capsys.readouterr().out.endswith(f"{tmp_path}/report.html\n")
    assert f"{reason}." in (tmp_path / "report.html").read_text()


def test_a_run_that_was_stopped_says_why(tiny_bert, tmp_path):
    class Stops(EvaluationSchedule):
        reason = None

        def on_train_batch_end(self, trainer, *_):
            self.reason, trainer.should_stop = "val/f1 did not improve", True

    fit(tiny_bert, tmp_path, RunReport(), Stops(every_n_steps=3), enable_checkpointing=False, max_steps=40)
    notes = RunNotes.load(tmp_path)
    assert (notes.status, notes.step, notes.num_steps) == ("finished", 1, 40)
    assert notes.reason == "Stopped early: val/f1 did not improve"


def test_a_report_that_cannot_be_written_never_ends_a_run(tiny_bert, tmp_path, monkeypatch):
    def fail(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("lit_trainer.callbacks.run_report.write_page", fail)
    report = RunReport()
    with pytest.warns(UserWarning, match="the report of the run is incomplete: OSError: no space left"):
        trainer = fit(tiny_bert, tmp_path, report, enable_checkpointing=False)
    assert trainer.global_step == 4
    assert report.written_to is None


@pytest.mark.parametrize("settings", [{"logger": False}, {"fast_dev_run": True}])
def test_without_a_folder_nothing_is_written(tiny_bert, tmp_path, settings):
    report = RunReport()
    fit(tiny_bert, tmp_path, report, enable_checkpointing=False, **settings)
    assert report.written_to is None
    assert not list(tmp_path.iterdir())


def test_a_logger_of_images_gets_the_figures(tiny_bert, tmp_path):
    class Images(DummyLogger):
        def __init__(self) -> None:
            super().__init__()
            self.images: dict[str, Any] = {}

        def log_image(self, key: str, images: list[Any]) -> None:
            self.images[key] = images

    images = Images()
    loggers = [CSVLogger(tmp_path, name="", version=""), images]
    fit(tiny_bert, tmp_path, RunReport(), logger=loggers, enable_checkpointing=False)
    assert set(images.images) == {"report/loss", "report/validation"}
    assert all(image.dtype == np.uint8 and image.shape[2] == 3 for (image,) in images.images.values())


def test_texts_need_not_be_kept(recipe: Path) -> None:
    own = "--trainer.callbacks+=lit_trainer.callbacks.run_report.RunReport"
    main(["fit", "--config", str(recipe), own, "--trainer.callbacks.keep_texts=false"])
    assert not SplitScores.load(RUN / "scores" / "test.parquet").texts
    assert "Their texts were not kept." in (RUN / "report.html").read_text()
