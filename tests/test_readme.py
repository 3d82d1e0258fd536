"""What the README shows works: each command and each example, on a tiny model in a folder of its own."""

import csv
import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lit_trainer.cli import main
from tests.documents import ROOT, Block, blocks, copy_configs, shrink_recipe, write_files, write_texts

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = blocks("README.md")
CACHE = os.environ.get("LIT_TRAINER_CACHE", "")
"""Where real weights and data are kept; tests of made-up ones have a cache of their own."""

SET_UP = ("pip install", "pytest")
"""What begins a command that .ci/run runs, since it would install or test within a test."""

COMMANDS = [
    pytest.param(command, marks=[pytest.mark.skip(block.reason)] if block.reason else [], id=command)
    for block in BLOCKS
    if block.language == "bash"
    for command in block.commands
    if not command.startswith(SET_UP)
]
RUN_COMMAND = COMMANDS[0].values[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Path:
    """A checkout with a tiny recipe, the reader's own files, and the run of the first command."""
    folder = tmp_path_factory.mktemp("checkout")
    copy_configs(folder)
    shrink_recipe(folder, tiny_bert)
    write_files("README.md", folder)
    write_texts(folder / "comments.csv", "comment", "verdict", ["good", "bad"])
    write_texts(folder / "new_messages.csv", "v2", None, ["ham", "spam"], num_rows=9)
    with pytest.MonkeyPatch.context() as patch:
        enter(folder, patch)
        run(RUN_COMMAND)
    return folder


@pytest.fixture(autouse=True)
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(folder, monkeypatch)


def enter(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.chdir(folder)
    patch.setenv("LIT_TRAINER_CACHE", str(folder / "cache"))
    patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    patch.setattr(sys, "path", list(sys.path))


def run(command: str) -> None:
    """Runs a command of ours in this process, unless it starts others, and any other in a shell."""
    words = shlex.split(command)
    if words[0] == "lit-trainer" and not any("ddp" in word for word in words):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words)
            if "--print_config" in words:
                with pytest.raises(SystemExit, match=r"^0$"):
                    main(words[1:])
            else:
                main(words[1:])
    else:
        done = subprocess.run(
            command, shell=True, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_works(command: str) -> None:
    run(command)


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "python"], ids=lambda b: f"line {b.line}"
)
def test_an_example_in_python_works(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block.text, f"README.md, line {block.line}", "exec"), {"__name__": "example"})
    assert block.file_name or capsys.readouterr().out


def test_every_file_that_is_shown_is_used() -> None:
    for name in filter(None, (block.file_name for block in BLOCKS)):
        assert any(Path(name).stem in str(command.values[0]) for command in COMMANDS), f"no command uses {name}"


def test_set_up_is_what_ci_does() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    test = next(block for block in BLOCKS if "pytest" in block.text)
    assert all(re.search(rf"^\S*{re.escape(command)}", script, re.M) for command in test.commands)


def test_predictions_are_those_that_the_text_describes(caplog: pytest.LogCaptureFixture) -> None:
    run(next(str(command.values[0]) for command in COMMANDS if " predict " in str(command.values[0])))
    assert "Wrote 9 rows to predictions.csv" in caplog.text
    with Path("predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with Path("new_messages.csv").open(newline="") as file:
        assert [row["v2"] for row in rows] == [row["v2"] for row in csv.DictReader(file)]
    assert {"label", "probability_ham", "probability_spam"} <= rows[0].keys()
    assert {row["label"] for row in rows} <= {"ham", "spam"}


def test_a_run_leaves_what_the_table_lists() -> None:
    made = Path("runs/sms_spam_minilm/version_0")
    listed = re.search(r"in the folder of a run .*?\n\n", README, re.S)
    assert listed is not None
    patterns = [name for cell in re.findall(r"^\| (`.*?) \|", listed[0], re.M) for name in re.findall("`(.*?)`", cell)]
    assert len(patterns) == 9
    for pattern in patterns:
        pattern = pattern.replace("=N", "=*").rstrip("/")
        assert list(made.glob(pattern)) or list((made / "checkpoints").glob(pattern)), pattern


def test_paths_and_class_paths_are_there() -> None:
    for path in re.findall(r"`((?:lit_trainer|configs|notebooks)/[\w./]*)`", README):
        assert (ROOT / path).exists(), path
    for name in re.findall(r"`(\w+_\w+\.yaml)`", README):
        assert (ROOT / "configs" / "overlays" / name).exists(), name
    for path in set(re.findall(r"lit_trainer(?:\.[a-z_]+)+\.[A-Z]\w+", README)):
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name), path


@pytest.mark.slow
def test_the_run_command_finds_spam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fine-tunes MiniLM on the SMS collection with the settings of the recipe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIT_TRAINER_CACHE", CACHE)
    copy_configs(tmp_path)
    done = subprocess.run(
        RUN_COMMAND, shell=True, capture_output=True, text=True, timeout=1800, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    made = tmp_path / "runs" / "sms_spam_minilm" / "version_0"
    with (made / "metrics.csv").open(newline="") as file:
        scores = {name: float(value) for row in csv.DictReader(file) for name, value in row.items() if value}
    assert scores["test/f1"] > 0.9
    assert scores["test/accuracy"] > 0.97
    assert scores["test/auroc"] > 0.98
    assert re.search(r"f1 +0\.9\d+ +0\.0", done.stdout), "the summary has F1 for spam beside the majority's, 0"
    assert yaml.safe_load((made / "config.yaml").read_text())["seed_everything"] == 0

    from transformers import pipeline

    classify = pipeline("text-classification", str(made / "export"))
    spam, ham = classify(
        ["WINNER!! Claim your free prize now, call 09061701461", "are we still on for lunch tomorrow?"]
    )
    assert (spam["label"], ham["label"]) == ("spam", "ham")
