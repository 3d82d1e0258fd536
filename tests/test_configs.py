"""Every recipe with every overlay is a run that can be built, and overlays do what their first line says."""

import re
from pathlib import Path

import pytest
import yaml

from lit_trainer.cli import main
from lit_trainer.runtime.precision import ScaledMixedPrecision
from lit_trainer.training_cli import TrainingCLI
from tests.tiny_recipe import write_recipe

CONFIGS = Path(__file__).parent.parent / "configs"
RECIPES = sorted((CONFIGS / "recipes").glob("*.yaml"))
OVERLAYS = sorted((CONFIGS / "overlays").glob("*.yaml"))


def name(path: Path) -> str:
    return path.stem


def overlay(name: str) -> str:
    return f"--config={CONFIGS / 'overlays' / name}.yaml"


@pytest.fixture
def recipe(tmp_path: Path, tiny_bert: Path, films: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIT_TRAINER_CACHE", str(tmp_path.parent / "cache"))
    return write_recipe(tiny_bert, films)


@pytest.fixture(scope="module")
def any_run(tmp_path_factory: pytest.TempPathFactory) -> TrainingCLI:
    """A run, for its parser."""
    return main(["--config", str(RECIPES[0])], run=False)


def test_there_are_recipes_and_overlays() -> None:
    assert RECIPES
    assert OVERLAYS


@pytest.mark.parametrize("added", OVERLAYS, ids=name)
@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_every_overlay_fits_every_recipe(any_run: TrainingCLI, path: Path, added: Path) -> None:
    settings = any_run.parser.parse_args([f"--config={path}", f"--config={added}"])
    recipe_only = any_run.parser.parse_args([f"--config={path}"])
    callbacks, before = settings.trainer.callbacks, recipe_only.trainer.callbacks
    assert callbacks[: len(before)] == before, "an overlay adds callbacks, with callbacks+:, and never takes any away"


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_every_recipe_can_be_built(path: Path) -> None:
    run = main([f"--config={path}", "--trainer.accelerator=cpu"], run=False)
    assert Path(run.config.trainer.default_root_dir) == Path("runs") / path.stem
    assert re.match(r"# \w", path.read_text())
    assert f"lit-trainer fit --config configs/recipes/{path.name}" in path.read_text(), "the header has no command"


@pytest.mark.parametrize("added", OVERLAYS, ids=name)
def test_every_overlay_can_be_built(recipe: Path, added: Path) -> None:
    if added.stem in ("wandb", "deepspeed"):
        pytest.importorskip(added.stem)
    main([f"--config={recipe}", f"--config={added}"], run=False)


@pytest.mark.parametrize("path", [*RECIPES, *OVERLAYS], ids=name)
def test_settings_are_portable(path: Path) -> None:
    settings = re.sub("#.*", "", path.read_text())
    assert not re.search(r"(^|\s)[/~]|://|password|token:|api_key", settings), "a path or a secret of one machine"


@pytest.mark.parametrize("path", OVERLAYS, ids=name)
def test_an_overlay_is_small_and_says_what_it_is_for(path: Path) -> None:
    first, *rest = path.read_text().splitlines()
    assert re.match(r"# [A-Z].*\.$", first)
    assert len(rest) < 15
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_the_last_precision_wins(recipe: Path) -> None:
    def plugin(*names: str) -> object:
        return main([f"--config={recipe}", *map(overlay, names)], run=False).trainer.precision_plugin

    for last in ("16", "bf16"):
        chosen = plugin("precision_bf16", "precision_16", f"precision_{last}")
        assert isinstance(chosen, ScaledMixedPrecision)
        assert chosen.precision == f"{last}-mixed"
    assert plugin("precision_16", "precision_32").precision == "32-true"


@pytest.mark.parametrize(
    "added", ["precision_bf16", "precision_16", "precision_32", "cpu", "gradient_checkpointing", "gradient_clipping"]
)
def test_a_run_with_the_overlay_goes_through(recipe: Path, added: str) -> None:
    run = main([f"--config={recipe}", overlay(added), "--trainer.logger=false"], run=False)
    run.run()
    assert run.trainer.global_step == 3
    assert "test/loss" in run.trainer.callback_metrics


def test_smoke_stops_after_four_steps_and_is_tested(recipe: Path) -> None:
    run = main([f"--config={recipe}", "--data.batch_size=8", overlay("smoke"), "--trainer.logger=false"], run=False)
    run.run()
    assert run.trainer.global_step == 4
    assert "test/loss" in run.trainer.callback_metrics


def test_debug_learns_one_batch_by_heart(recipe: Path) -> None:
    flags = ["--data.batch_size=4", "--model.optimizer.lr=3e-3", "--trainer.logger=false"]
    run = main([f"--config={recipe}", overlay("debug"), *flags], run=False)
    run.run()
    assert run.trainer.global_step == 50
    assert run.trainer.callback_metrics["train/loss"] < 0.1


def test_profile_prints_where_the_time_goes(recipe: Path, caplog: pytest.LogCaptureFixture) -> None:
    main(["fit", f"--config={recipe}", overlay("profile"), "--trainer.logger=false"])
    assert "run_training_batch" in caplog.text


@pytest.mark.slow
def test_wandb_gets_metrics_and_settings(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = main([f"--config={recipe}", overlay("wandb")], run=False)
    run.run()
    _, wandb = run.trainer.loggers
    assert wandb.experiment.config["trainer"]["max_epochs"] == 1
    assert wandb.experiment.summary["test/loss"] > 0
    wandb.experiment.finish()
    assert Path("runs/films/version_0/metrics.csv").exists()
    assert list(Path("runs/wandb").glob("offline-run-*"))
