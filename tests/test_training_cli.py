"""The commands that train: what they write, what they resume from, and that files and flags win."""

import csv
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
import yaml
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lit_trainer.cli import main
from lit_trainer.runtime.checkpoint_files import AtomicCheckpointIO
from lit_trainer.tasks.sequence_classification import SequenceClassification
from tests.tiny_recipe import told, write_recipe

Run = Callable[..., None]


@pytest.fixture
def recipe(tmp_path: Path, tiny_bert: Path, films: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIT_TRAINER_CACHE", str(tmp_path.parent / "cache"))
    return write_recipe(tiny_bert, films)


@pytest.fixture
def fit(recipe: Path) -> Run:
    """Runs ``fit`` with the recipe and more arguments."""

    def fit(*args: str) -> None:
        main(["fit", "--config", str(recipe), *args])

    return fit


def metrics(run: Path | str) -> list[dict[str, str]]:
    with (Path(run) / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_leaves_its_settings_metrics_and_checkpoints_in_a_folder_of_its_own(fit: Run) -> None:
    fit()
    run = Path("runs/films/version_0")
    assert {path.name for path in run.iterdir()} >= {"config.yaml", "metrics.csv", "checkpoints"}
    assert any(path.name.startswith("events.out.tfevents") for path in run.iterdir())
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"best-step=3.ckpt", "last-step=3.ckpt"}
    assert {path.name for path in Path().iterdir()} == {"films.csv", "recipe.yaml", "runs"}
    assert [path.name for path in Path("runs").iterdir()] == ["films"]


def test_fit_ends_with_a_test_of_the_best_checkpoint(fit: Run) -> None:
    fit()
    *_, last = metrics("runs/films/version_0")
    assert float(last["test/loss"]) > 0
    assert last["step"] == "3"


@pytest.mark.parametrize("args", [["--test_after_fit=false"], ["--data.splits.test=0"], ["--trainer.fast_dev_run=1"]])
def test_fit_ends_without_a_test_where_there_is_nothing_to_test(fit: Run, args: list[str]) -> None:
    fit(*args)
    for run in Path("runs/films").glob("version_*"):
        assert all(not row.get("test/loss") for row in metrics(run))


def test_a_second_run_neither_fails_nor_touches_the_first(fit: Run) -> None:
    fit()
    first = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    fit("--model.optimizer.lr=1e-4")
    assert {path: path.read_bytes() for path in first} == first
    assert {path.name for path in Path("runs/films/version_1").iterdir()} >= {"config.yaml", "metrics.csv"}


def test_the_saved_settings_make_the_same_run_again(fit: Run, tmp_path: Path) -> None:
    fit("--model.optimizer.lr=2e-3", "--trainer.max_epochs=2")
    saved = Path("runs/films/version_0/config.yaml")
    assert str(tmp_path) not in saved.read_text()
    main(["fit", "--config", str(saved)])
    again = Path("runs/films/version_1")
    assert (again / "config.yaml").read_text() == saved.read_text()
    assert metrics(again) == metrics(saved.parent)


def test_printed_settings_are_read_back_as_they_were(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--config", str(recipe), "--model.optimizer.lr=3e-3", "--trainer.callbacks+=Timer"]
    texts = []
    for given in (args, ["--config", "all.yaml"]):
        with pytest.raises(SystemExit) as end:
            main(["fit", *given, "--print_config"])
        assert end.value.code in (0, None)
        texts.append(capsys.readouterr().out)
        Path("all.yaml").write_text(texts[-1])
    assert texts[0] == texts[1]
    assert "lr: 0.003" in texts[0]
    assert "Timer" in texts[0]


def test_overlays_win_over_the_recipe_and_flags_over_both(recipe: Path) -> None:
    Path("overlay.yaml").write_text(
        "trainer:\n  max_epochs: 5\n  callbacks+:\n  - class_path: lightning.pytorch.callbacks.EarlyStopping\n"
        "    init_args: {monitor: val/loss}\nmodel:\n  init_args:\n    optimizer: {lr: 5e-3}\n"
    )
    args = ["--config", str(recipe), "--config", "overlay.yaml", "--trainer.max_epochs", "7"]
    cli = main(args, run=False)
    assert cli.trainer.max_epochs == 7
    assert cli.model.optimizer.lr == 5e-3
    names = [type(callback).__name__ for callback in cli.trainer.callbacks]
    assert {"BestCheckpoint", "LastCheckpoint", "EarlyStopping"} <= set(names)


# -- from Python -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["fit"], []])
def test_without_running_the_objects_are_returned(
    recipe: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["ipykernel", "-f", "kernel.json"])
    cli = main([*command, "--config", str(recipe), "--seed_everything=7"], run=False)
    assert isinstance(cli.trainer, pl.Trainer)
    assert isinstance(cli.model, SequenceClassification)
    assert cli.datamodule.tables["train"].num_rows == 72
    assert cli.config.trainer.max_epochs == 1
    assert os.environ["PL_GLOBAL_SEED"] == "7"
    assert sys.argv == ["ipykernel", "-f", "kernel.json"]
    assert not Path("runs").exists()
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    assert Path("runs/films/version_0/config.yaml").exists()


def test_without_running_nothing_exits(recipe: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no setting trainer.max_epoch; did you mean trainer.max_epochs\?"):
        main(["--config", str(recipe), "--trainer.max_epoch=3"], run=False)
    with pytest.raises(ValueError, match="only print something"):
        main(["fit", "--help"], run=False)


def test_there_always_is_a_seed(recipe: Path) -> None:
    main(["--config", str(recipe)], run=False)
    assert os.environ["PL_GLOBAL_SEED"] == "0"
    first = torch.rand(1)
    main(["--config", str(recipe)], run=False)
    assert torch.equal(torch.rand(1), first)


# -- loggers -----------------------------------------------------------------------------------------------------------


def test_without_a_logger_there_is_no_folder_of_a_run(fit: Run) -> None:
    fit("--trainer.logger=false")
    fit("--trainer.logger=false")
    assert not list(Path("runs/films").glob("version_*"))
    assert not list(Path("runs").rglob("config*.yaml"))


@pytest.mark.parametrize("flags", [[], ["--trainer.logger=true"]])
def test_the_usual_loggers_share_one_folder(recipe: Path, flags: list[str]) -> None:
    trainer = main(["--config", str(recipe), *flags], run=False).trainer
    tensorboard, table = trainer.loggers
    assert isinstance(tensorboard, TensorBoardLogger)
    assert isinstance(table, CSVLogger)
    assert tensorboard.log_dir == table.log_dir == trainer.log_dir == "runs/films/version_0"


def test_a_logger_that_is_given_is_left_alone(recipe: Path) -> None:
    flags = ["--trainer.logger=TensorBoardLogger", "--trainer.logger.save_dir=elsewhere", "--trainer.logger.name=x"]
    trainer = main(["--config", str(recipe), *flags], run=False).trainer
    assert trainer.log_dir == "elsewhere/x/version_0"
    assert len(trainer.loggers) == 1


class NowhereLogger(pl.loggers.Logger):
    """Writes to a service, as it were."""

    hyperparameters: dict | None = None
    name, version = "nowhere", "1"

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        pass

    def log_hyperparams(self, params: dict) -> None:
        self.hyperparameters = params


def test_a_logger_without_a_folder_gets_one_beside_it_and_is_told_the_settings(recipe: Path) -> None:
    cli = main(["--config", str(recipe), f"--trainer.logger={__name__}.NowhereLogger"], run=False)
    cli.run()
    assert [type(logger).__name__ for logger in cli.trainer.loggers] == ["RunCSVLogger", "NowhereLogger"]
    assert cli.trainer.loggers[1].hyperparameters["trainer"]["max_epochs"] == 1
    assert Path("runs/films/version_0/checkpoints").is_dir()


def test_other_settings_in_the_same_folder_get_a_file_of_their_own(fit: Run) -> None:
    logger = ["--trainer.logger=TensorBoardLogger", "--trainer.logger.save_dir=x", "--trainer.logger.version=0"]
    for lr in ("1e-3", "1e-3", "2e-3"):
        fit(*logger, f"--model.optimizer.lr={lr}")
    folder = Path("x/lightning_logs/version_0")
    assert sorted(path.name for path in folder.glob("config*")) == ["config.yaml", "config_1.yaml"]
    assert "lr: 0.002" in (folder / "config_1.yaml").read_text()


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_test_and_validate_and_predict_take_the_best_of_a_run(fit: Run) -> None:
    fit()
    run = "runs/films/version_0"
    expected = metrics(run)
    for number, (command, split) in enumerate([("test", "test"), ("validate", "val")], start=1):
        main([command, "--config", f"{run}/config.yaml", "--ckpt_path", run])
        *_, row = metrics(f"runs/films/version_{number}")
        assert row[f"{split}/loss"] == next(old[f"{split}/loss"] for old in expected if old[f"{split}/loss"])
    Path("mine.csv").write_text("text\nw1 good film\nw2 bad\n")
    main(["predict", "--config", f"{run}/config.yaml", "--ckpt_path", run, "--data.predict", "mine.csv"])
    with Path("predictions.csv").open(newline="") as file:
        assert [(row["text"], row["label"] in ("good", "bad")) for row in csv.DictReader(file)] == [
            ("w1 good film", True),
            ("w2 bad", True),
        ]


def test_fit_resumes_from_the_last_checkpoint_of_a_run(fit: Run) -> None:
    fit("--trainer.max_epochs=2")
    fit("--trainer.max_epochs=1")
    fit("--trainer.max_epochs=2", "--ckpt_path=last")
    runs = [metrics(f"runs/films/version_{number}") for number in range(3)]
    assert runs[1][0]["val/loss"] == runs[0][0]["val/loss"]
    assert runs[2] == runs[0][1:]
    assert yaml.safe_load(Path("runs/films/version_2/config.yaml").read_text())["ckpt_path"] is None


def test_flags_win_over_the_checkpoint_and_the_difference_is_said(
    fit: Run, recipe: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit()
    caplog.clear()
    flags = ["--model.optimizer.lr=0.5", "--trainer.max_epochs=2", "--data.eval_batch_size=12"]
    cli = main(["--config", str(recipe), *flags, "--ckpt_path", "runs/films/version_0"], run=False)
    cli.run()
    assert cli.trainer.optimizers[0].param_groups[0]["lr"] == 0.5
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    saved = "runs/films/version_0/config.yaml"
    assert f"model.optimizer.lr is 0.5 here, it was 0.001 in {saved}; this run's wins" in said
    assert f"data.eval_batch_size is 12 here, it was 64 in {saved}; this run's wins" in said


def test_saved_settings_that_cannot_be_read_stop_nothing(
    fit: Run, recipe: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit()
    Path("runs/films/version_0/config.yaml").write_text("trainer: [")
    fit("--ckpt_path=last")
    assert "runs/films/version_0/config.yaml cannot be read, so that nobody knows" in caplog.text


def test_an_evaluation_without_a_checkpoint_says_so(recipe: Path, caplog: pytest.LogCaptureFixture) -> None:
    main(["validate", "--config", str(recipe)])
    assert "no ckpt_path: the model is used as model.pretrained has it, without any training" in caplog.text


def test_a_checkpoint_that_is_not_there_is_told(recipe: Path, fit: Run, capsys: pytest.CaptureFixture[str]) -> None:
    test = ["test", "--config", str(recipe), "--ckpt_path"]
    nothing = "ckpt_path is best, but no run in runs/films (trainer.default_root_dir) has a checkpoint"
    assert told(capsys, *test, "best") == nothing
    assert told(capsys, *test, "gone.ckpt").startswith("ckpt_path is gone.ckpt, but there is no such file or folder")
    assert told(capsys, *test, ".") == "ckpt_path: there is no checkpoint in ."
    fit()
    assert "(those in runs/films: runs/films/version_0)" in told(capsys, *test, "gone.ckpt")


def test_a_damaged_checkpoint_is_told(recipe: Path, fit: Run, capsys: pytest.CaptureFixture[str]) -> None:
    fit()
    Path("torn.ckpt").write_bytes(Path("runs/films/version_0/checkpoints/last-step=3.ckpt").read_bytes()[:5000])
    assert "the checkpoint torn.ckpt is torn" in told(capsys, "test", "--config", str(recipe), "--ckpt_path=torn.ckpt")


def test_checkpoints_are_written_atomically_unless_a_plugin_says_how(recipe: Path) -> None:
    def io(*flags: str) -> object:
        return main(["--config", str(recipe), *flags], run=False).trainer.strategy.checkpoint_io

    assert isinstance(io(), AtomicCheckpointIO)
    assert not isinstance(io("--trainer.plugins=AsyncCheckpointIO"), AtomicCheckpointIO)


def test_a_stale_checkpoint_of_another_slurm_job_is_not_taken(fit: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    fit()
    Path("runs/films/version_0/checkpoints/last-step=3.ckpt").rename("runs/films/hpc_ckpt_1.ckpt")
    monkeypatch.setattr("lightning.pytorch.plugins.environments.SLURMEnvironment.detect", lambda: True)
    monkeypatch.setattr("lightning.fabric.plugins.environments.slurm.SLURMEnvironment.detect", lambda: True)
    monkeypatch.setenv("SLURM_JOB_NAME", "interactive")
    fit()
    assert metrics("runs/films/version_1")[0]["step"] == "2"


# -- what contradicts itself -------------------------------------------------------------------------------------------

PRECISION = "lit_trainer.runtime.precision.ScaledMixedPrecision"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            ["--trainer.precision=bf16-mixed", f"--trainer.plugins={PRECISION}"],
            f"trainer.precision bf16-mixed and {PRECISION}",
        ),
        (
            [f"--trainer.plugins=[{PRECISION}, lightning.pytorch.plugins.DoublePrecision]"],
            f"{PRECISION} and lightning.pytorch.plugins.DoublePrecision",
        ),
    ],
)
def test_two_precisions_are_refused_before_anything_is_loaded(
    recipe: Path, capsys: pytest.CaptureFixture[str], flags: list[str], expected: str
) -> None:
    Path("films.csv").unlink()
    line = told(capsys, "fit", "--config", str(recipe), *flags)
    assert line == f"precision is set more than once: {expected} (trainer.plugins); keep one"


@pytest.mark.parametrize("chosen", ["bf16-mixed", "32-true"])
def test_automatic_precision_is_that_of_the_machine(recipe: Path, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lit_trainer.training_cli.fastest_precision", lambda device: chosen)
    run = main(["--config", str(recipe), "--trainer.precision=auto"], run=False)
    assert run.trainer.precision == chosen
    assert f"{chosen} precision (auto)" in run.config_init.machine.choices(run.trainer, run.model)
    assert main(["--config", str(recipe)], run=False).trainer.precision == "32-true"


def test_a_run_says_first_what_it_is_going_to_do(fit: Run, capsys: pytest.CaptureFixture[str]) -> None:
    fit("--machine.num_threads=1", "--trainer.max_steps=1")
    printed = capsys.readouterr().out
    names = [line.split("  ")[1] for line in printed.splitlines() if line.startswith("  ")]
    assert names[:5] == ["steps", "each step", "parameters", "memory", "runs on"]
    assert "  runs on      1 CPU thread" in printed
    assert "FLOPs" not in printed


def test_a_second_run_tokenises_nothing(fit: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--trainer.max_steps=1", "--trainer.limit_val_batches=0", "--test_after_fit=false"]
    fit(*flags)

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("tokenised again")

    monkeypatch.setattr("transformers.PreTrainedTokenizerFast.__call__", refuse)
    fit(*flags)


def test_what_the_trainer_refuses_is_told(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = told(capsys, "fit", "--config", str(recipe), "--trainer.strategy=dpp")
    assert line.startswith("trainer: You selected an invalid strategy name: `strategy='dpp'`")


def test_no_folder_is_left_behind_by_a_mistake(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("films.csv").unlink()
    assert "there is no file films.csv" in told(capsys, "fit", "--config", str(recipe))
    assert not list(Path("runs").rglob("version_*"))


def test_a_barebones_trainer_gets_nothing_that_it_refuses(recipe: Path) -> None:
    settings = yaml.safe_load(recipe.read_text())
    settings["trainer"]["callbacks"] = []
    recipe.write_text(yaml.safe_dump(settings))
    trainer = main(["--config", str(recipe), "--trainer.barebones=true"], run=False).trainer
    assert trainer.barebones
    assert not trainer.loggers


def test_early_stopping_of_lightning_can_be_used(recipe: Path) -> None:
    flags = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/loss"]
    callbacks = main(["--config", str(recipe), *flags], run=False).trainer.callbacks
    assert any(isinstance(callback, EarlyStopping) for callback in callbacks)


# -- what is always there ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--trainer.enable_progress_bar=true"], ["StepProgressBar", "RunSummary"]),
        (["--trainer.enable_progress_bar=null"], ["StepProgressBar", "RunSummary"]),
        ([], ["RunSummary"]),
        (
            ["--trainer.enable_progress_bar=null", "--trainer.callbacks+=TQDMProgressBar"],
            ["TQDMProgressBar", "RunSummary"],
        ),
        (["--trainer.callbacks+=lit_trainer.callbacks.run_summary.RunSummary"], ["RunSummary"]),
    ],
)
def test_a_run_has_a_bar_and_a_summary_unless_it_brings_its_own(
    recipe: Path, flags: list[str], expected: list[str]
) -> None:
    callbacks = main(["--config", str(recipe), *flags], run=False).trainer.callbacks
    names = [type(callback).__name__ for callback in callbacks]
    assert [name for name in names if "ProgressBar" in name or "Summary" in name] == expected


def test_fit_ends_with_a_summary_and_the_next_command(fit: Run, capsys: pytest.CaptureFixture[str]) -> None:
    fit("--trainer.enable_progress_bar=true")
    printed = capsys.readouterr()
    assert "majority" in printed.out
    run = "runs/films/version_0"
    assert f"lit-trainer predict --config {run}/config.yaml --ckpt_path {run}" in printed.out
    assert "3 steps in" in printed.err
    assert "DataLoader" not in printed.out


# -- two processes -----------------------------------------------------------------------------------------------------

OVERLAYS = Path(__file__).parent.parent / "configs" / "overlays"


def run_on_two_ranks(recipe: Path, *args: str) -> tuple[int, str]:
    """Fits on two processes; returns the exit code and what all of them wrote to standard error."""
    command = [sys.executable, "-m", "lit_trainer", "fit", "--config", str(recipe)]
    overlays = [f"--config={OVERLAYS / name}.yaml" for name in ("ddp", "cpu")]
    process = subprocess.Popen(
        [*command, *overlays, *args],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, errors = process.communicate(timeout=240)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, errors


@pytest.mark.slow
def test_two_ranks_share_a_folder_and_say_things_once(recipe: Path) -> None:
    code, said = run_on_two_ranks(recipe)
    assert code == 0, said
    assert [path.name for path in Path("runs/films").iterdir()] == ["version_0"]
    files = {path.name for path in Path("runs/films/version_0").iterdir()}
    assert files >= {"config.yaml", "metrics.csv", "checkpoints"}
    assert said.count("padding-free: the model runs on real tokens only") == 1
    assert "Warning" not in said
    assert float(metrics("runs/films/version_0")[-1]["test/loss"]) > 0


@pytest.mark.slow
def test_a_mistake_on_two_ranks_is_told_once(recipe: Path) -> None:
    recipe.write_text(recipe.read_text().replace("val/loss", "val/los"))
    code, said = run_on_two_ranks(recipe)
    assert code == 2
    assert said.count("lit-trainer: error: BestCheckpoint: monitor is 'val/los'") == 1
    assert "Traceback" not in said
