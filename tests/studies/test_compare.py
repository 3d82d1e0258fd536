"""The command: what has finished is not run again, what fails does not take the others with it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from lit_trainer.cli import main
from lit_trainer.studies import compare
from tests.documents import ROOT
from tests.studies.stub_settings import STUB, resolve_here
from tests.tiny_recipe import told, write_recipe

STUDY = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
sys.path.insert(0, {str(ROOT)!r})
from lit_trainer.studies import compare
from tests.studies import stub_settings
compare.FIT, compare.resolve = stub_settings.STUB, stub_settings.resolve_here
compare.main(sys.argv[1:])
print({{name: name in sys.modules for name in ("torch", "lightning", "transformers")}})
"""
"""The command in a process of its own, where tests have not loaded anything yet."""


@pytest.fixture
def stubbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compare, "FIT", STUB)
    monkeypatch.setattr(compare, "resolve", resolve_here)
    Path("recipe.yaml").write_text("trainer: {}")
    return tmp_path


def run(*words: str) -> dict[str, Any]:
    main(["compare", "recipe.yaml", "--seeds", "2", *words])
    return json.loads(Path("runs/compare/recipe/comparison.json").read_text())


def folders() -> set[str]:
    return {path.name for path in Path("runs/compare/recipe").iterdir() if path.is_dir()}


def versions() -> int:
    return len(list(Path("runs/compare/recipe").glob("*/version_*")))


def test_every_variant_runs_with_every_seed_and_is_compared(stubbed: Path) -> None:
    found = run("--variant", "none", "worse=model.optimizer.lr=0.4")
    assert [variant["name"] for variant in found["variants"]] == ["none", "worse"]
    assert all(list(variant["runs"]) == ["0", "1"] for variant in found["variants"])
    assert found["variants"][1]["differences"]["accuracy"]["exceeds_noise"]
    assert found["facts"]["command"] == (
        "`lit-trainer compare recipe.yaml --seeds 2 --variant none worse=model.optimizer.lr=0.4`"
    )
    assert "seed of their own, 0" in found["facts"]["splits"]
    assert not list(Path("runs").rglob("checkpoints"))


def test_what_has_finished_is_not_run_again_under_any_name(stubbed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--variant", "none", "other=model.optimizer.lr=0.2")
    assert versions() == 4
    found = run("--variant", "base=model.optimizer.lr=0.1", "more=model.optimizer.lr=0.3")
    assert "2 of 4 runs have finished before, or are the same" in capsys.readouterr().out
    assert versions() == 6
    assert len(found["variants"][0]["runs"]) == 2


def test_variants_with_the_same_settings_are_one_run(stubbed: Path) -> None:
    found = run("--variant", "none", "same=model.optimizer.lr=0.1")
    assert versions() == 2
    assert found["variants"][1]["differences"]["accuracy"]["p"] == 1


def test_other_settings_are_another_run(stubbed: Path) -> None:
    run("--variant", "none")
    run("--variant", "none=model.optimizer.lr=0.2")
    assert len(folders()) == 4


def test_a_run_that_fails_is_told_in_its_row_and_tried_again(stubbed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^1$"):
        run("--variant", "none", "broken=model.optimizer.lr=0.0")
    printed = capsys.readouterr().out
    assert "2 of 2 failed" in re.sub(r"\s+", " ", printed)
    assert re.search(r"failed: broken, seed 0: exit code 1: model\.optimizer\.lr is 0 \(runs/\S+/log\.txt\)", printed)
    found = json.loads(Path("runs/compare/recipe/comparison.json").read_text())
    assert len(found["variants"][0]["runs"]) == 2
    with pytest.raises(SystemExit, match=r"^1$"):
        run("--variant", "none", "broken=model.optimizer.lr=0.0")
    assert "1 of 2: broken, seed 0" in capsys.readouterr().out


def test_where_all_fail_there_is_no_table(stubbed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^1$"):
        main(["compare", "recipe.yaml", "--seeds", "1", "--variant", "broken=model.optimizer.lr=0.0"])
    assert "failed: broken, seed 0" in capsys.readouterr().out
    assert not Path("runs/compare/recipe/comparison.md").exists()


def test_the_result_can_be_saved_elsewhere_without_cost(stubbed: Path) -> None:
    main(["compare", "recipe.yaml", "--seeds", "0,5", "--variant", "none", "--save", "out/table", "--without-cost"])
    assert "memory" not in Path("out/table.md").read_text()
    assert "- seeds: 0, 5" in Path("out/table.md").read_text()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["recipe.yaml"], "--variant is missing"),
        (["--variant", "a"], "the recipe is missing: name its file first"),
        (["--config", "recip.yaml", "--variant", "a"], "recip.yaml is neither a file nor KEY=VALUE"),
        (["recipe.yaml", "--variant", "a", "--seeds", "0"], "--seeds is 0 but must be how many"),
        (["recipe.yaml", "--variant", "a", "--seeds", "1,1"], "--seeds is 1,1 but must be how many"),
        (["recipe.yaml", "--variant", "a", "--jobs", "0"], "--jobs is 0 but must be at least 1"),
        (["recip.yaml", "--variant", "a"], "recip.yaml is neither a file nor KEY=VALUE"),
        (["recipe.yaml", "--variant", "a=model.optimizer.lr=-1"], "variant a: lr is negative"),
    ],
)
def test_a_mistake_is_told_before_any_run(
    stubbed: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    assert told(capsys, "compare", *words).startswith(expected)
    assert not Path("runs").exists()


def test_a_study_does_without_torch(stubbed: Path) -> None:
    Path("study.py").write_text(STUDY)
    words = ["recipe.yaml", "--seeds", "1", "--variant", "none", "other=model.optimizer.lr=0.2"]
    done = subprocess.run([sys.executable, "study.py", *words], capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("{'torch': False, 'lightning': False, 'transformers': False}\n"), done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_the_run_and_says_how_to_go_on(stubbed: Path, number: signal.Signals) -> None:
    Path("study.py").write_text(STUDY)
    words = ["recipe.yaml", "--seeds", "1", "--variant", "none", "long=model.optimizer.lr=1.0"]
    study = subprocess.Popen([sys.executable, "study.py", *words], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not any(log.read_text() for log in Path().glob("runs/compare/recipe/long*/log.txt")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    study.send_signal(number)
    printed, _ = study.communicate(timeout=40)
    assert study.returncode == 130
    assert "Interrupted with 1 of 2 runs finished; the same command goes on with the rest" in printed
    log = next(Path().glob("runs/compare/recipe/long*/log.txt"))
    with pytest.raises(ProcessLookupError):
        os.kill(int(log.read_text().split()[0]), 0)


@pytest.mark.slow
def test_real_runs_are_compared_on_the_same_rows(
    tmp_path: Path,
    tiny_bert: Path,
    films: dict[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIT_TRAINER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    write_recipe(tiny_bert, films)
    main(["compare", "recipe.yaml", "--seeds", "1", "--variant", "none", "never=model.optimizer.lr=1e-9"])
    found = json.loads(Path("runs/compare/recipe/comparison.json").read_text())
    assert found["facts"]["test rows"] == "9"
    for variant in found["variants"]:
        cost = variant["runs"]["0"]["cost"]
        assert cost["num_steps"] == cost["num_batches"] == 3
        assert 0 < cost["train_seconds"] < 60
        assert 10**8 < cost["peak_bytes"] < 10**11
    settings = [yaml.safe_load(path.read_text()) for path in Path("runs").rglob("settings.yaml")]
    assert sorted(each["model"]["init_args"]["optimizer"]["lr"] for each in settings) == [1e-9, 1e-3]
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["compare", "recipe.yaml", "--variant", "a=model.optimiser.lr=1"])
    assert "variant a: model.optimiser.lr: SequenceClassification takes no optimiser" in capsys.readouterr().err
