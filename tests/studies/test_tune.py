"""A search finds what is best on validation, goes on where it was, and outlives trials that fail."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from lit_trainer.cli import main
from lit_trainer.studies import journal, tune
from lit_trainer.studies.resolving import Resolved
from tests.documents import ROOT
from tests.tiny_recipe import told, write_recipe

optuna = pytest.importorskip("optuna")

STUB = (sys.executable, str(Path(__file__).with_name("stub_trial.py")))
BEST = {"class_path": "x.BestCheckpoint", "init_args": {"monitor": "val/f1", "mode": "max"}}
RATE = "model.optimizer.lr={low: 0.0, high: 0.9}"


def resolve_here(runs: Sequence[Sequence[str]]) -> list[Resolved]:
    """As `resolve` for flags of the learning rate alone."""
    found = []
    for words in runs:
        rates = [float(word.partition("=")[2]) for word in words if word.startswith("--model.optimizer.lr=")]
        callbacks = None if "--nothing=1" in words else [BEST]
        settings = {
            "trainer": {"default_root_dir": "runs/x", "callbacks": callbacks},
            "model": {"class_path": "a.B", "init_args": {"optimizer": {"lr": (rates or [0.1])[-1]}}},
        }
        found.append(Resolved(settings, "lr is negative" if rates and rates[-1] < 0 else ""))
    return found


@pytest.fixture
def stubbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tune, "FIT", STUB)
    monkeypatch.setattr(tune, "resolve", resolve_here)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    Path("recipe.yaml").write_text("trainer: {}")
    return tmp_path


def trials() -> list[dict[str, str]]:
    with Path("runs/tune/recipe/trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def search(number: int, *words: str, space: str = RATE) -> None:
    main(["tune", "--config", "recipe.yaml", "--space", space, "--trials", str(number), *words])


def test_the_best_is_written_as_an_overlay(stubbed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search(5)
    values = [float(row["val/f1"]) for row in trials() if row["state"] == "complete"]
    best = yaml.safe_load(Path("runs/tune/recipe/best.yaml").read_text())
    assert 1 - (best["model"]["init_args"]["optimizer"]["lr"] - 0.3) ** 2 == pytest.approx(max(values))
    printed = capsys.readouterr().out
    assert "lit-trainer fit --config recipe.yaml --config runs/tune/recipe/best.yaml" in printed
    assert not list(Path("runs").rglob("checkpoints"))
    given = yaml.safe_load(Path("runs/tune/recipe/trial_0/trial.yaml").read_text())
    assert given["test_after_fit"] is False


def test_a_search_goes_on_and_does_not_repeat_itself(stubbed: Path) -> None:
    search(2)
    search(4)
    rates = [row["model.optimizer.lr"] for row in trials()]
    assert len(rates) == len(set(rates)) == 4
    search(4)
    assert [row["model.optimizer.lr"] for row in trials()] == rates


def test_trials_that_fail_or_are_pruned_end_nothing(stubbed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search(3, "--seed", "1", space="model.optimizer.lr=[0.95, 0.3, 0.05]")
    while {row["state"] for row in trials()} != {"complete", "fail", "pruned"}:
        assert len(trials()) < 20
        search(len(trials()) + 3, "--seed", "1", space="model.optimizer.lr=[0.95, 0.3, 0.05]")
    printed = capsys.readouterr().out
    assert "val/f1 failed: the loss is NaN (runs/tune/recipe/trial_" in printed
    assert "stopped early at" in printed
    assert (
        yaml.safe_load(Path("runs/tune/recipe/best.yaml").read_text())["model"]["init_args"]["optimizer"]["lr"] == 0.3
    )


def test_where_all_fail_the_log_is_named(stubbed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "tune", "recipe.yaml", "--space", "model.optimizer.lr=[0.95, 0.96]", "--trials", "2") == (
        "no trial came to its end; the last one's log is runs/tune/recipe/trial_1/log.txt"
    )


def test_another_search_needs_another_folder(stubbed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search(1)
    words = ["tune", "recipe.yaml", "--space", RATE, "--trials", "1"]
    assert "searched something else" in told(capsys, *words, "--monitor", "val/loss", "--mode", "min")
    main([*words, "--monitor", "val/loss", "--mode", "min", "--folder", "other"])
    words[3] = "model.optimizer.lr=[0.1, 0.2]"
    assert "searched something else" in told(capsys, *words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--trials", "0", "--space", RATE], "--trials is 0 but must be at least 1"),
        ([], "there is nothing to search"),
        (["--space", RATE, "--monitor", "test/f1", "--mode", "max"], "monitor is test/f1 but must be a metric of val"),
        (["--space", RATE, "--monitor", "val/loss"], "--monitor and --mode are needed"),
        (["--space", RATE, "--set", "nothing=1"], "--monitor and --mode are needed"),
        (["--space", "model.optimizer.lr={low: -1, high: 1}"], "space: model.optimizer.lr cannot be -1: lr is neg"),
        (["--space", "model.lr=[1]"], "space: model.lr is not a setting by itself"),
    ],
)
def test_a_mistake_is_told_before_any_trial(
    stubbed: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    assert told(capsys, "tune", "recipe.yaml", *words).startswith(expected)
    assert not Path("runs").exists()


def test_without_optuna_a_line_says_how_to_get_it(
    stubbed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert told(capsys, "tune", "recipe.yaml", "--space", RATE) == (
        'tune needs Optuna, which is not installed: pip install "lit_trainer[tune]"'
    )


def test_an_interrupted_trial_is_tried_again(stubbed: Path) -> None:
    Path("study.py").write_text(
        f"import signal, sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored where tests run in the background
        "from lit_trainer.studies import tune\n"
        "from tests.studies.test_tune import STUB, resolve_here\n"
        "tune.FIT, tune.resolve = STUB, resolve_here\n"
        "tune.main(sys.argv[1:])\n"
    )
    words = ["recipe.yaml", "--space", "model.optimizer.lr=[0.5, 0.5000001]", "--trials", "4"]
    study = subprocess.Popen([sys.executable, "study.py", *words], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not any((log.parent / "trial.json").exists() is False and log.read_text() for log in logs()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    study.send_signal(signal.SIGINT)
    printed, _ = study.communicate(timeout=40)
    assert study.returncode == 130, printed
    assert "the same command goes on" in printed
    for log in logs():
        with pytest.raises(ProcessLookupError):
            os.kill(int(log.read_text().split()[0]), 0)
    found = journal.open_study(Path("runs/tune/recipe"), "max", json.loads(about()), 0)
    interrupted = [trial for trial in found.trials if trial.user_attrs.get("interrupted")]
    assert len(interrupted) == 1
    assert found.ask(
        {"model.optimizer.lr": optuna.distributions.CategoricalDistribution(["0.5", "0.5000001"])}
    ).params == (interrupted[0].params)


def logs() -> list[Path]:
    return sorted(Path().glob("runs/tune/recipe/trial_*/log.txt"))


def about() -> str:
    study = optuna.load_study(study_name="search", storage=journal._storage(Path("runs/tune/recipe")))
    return str(study.user_attrs["about"])


def test_a_trial_of_a_process_that_was_killed_is_tried_again(tmp_path: Path) -> None:
    space = {"x": optuna.distributions.IntDistribution(1, 10**6)}
    killed = journal.open_study(tmp_path, "max", {}, 0).ask(space)
    study = journal.open_study(tmp_path, "max", {}, 0)
    assert journal.counted(study) == []
    assert study.ask(space).params == killed.params


@pytest.mark.slow
def test_real_trials_are_chosen_by_validation_alone(
    tmp_path: Path, tiny_bert: Path, films: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIT_TRAINER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    write_recipe(tiny_bert, films)
    main(["tune", "recipe.yaml", "--space", "model.optimizer.lr=[1e-3, 1e-9]", "--trials", "1"])
    metrics = next(Path().glob("runs/tune/recipe/trial_0/version_0/metrics.csv")).read_text()
    assert "val/loss" in metrics
    assert "test/" not in metrics
    assert float(trials()[0]["val/loss"]) > 0
    assert yaml.safe_load(Path("runs/tune/recipe/best.yaml").read_text())["model"]["init_args"]["optimizer"]["lr"] > 0
