"""The command itself: what needs no training answers without importing torch, and a mistake is told in one line."""

import gc
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from lit_trainer import __version__
from lit_trainer.cli import COMMANDS, is_mistake, main, told

HEAVY = {"torch", "lightning", "transformers", "datasets", "numpy", "jsonargparse", "yaml"}


def run_and_list_imports(*args: str) -> tuple[str, set[str]]:
    """Runs a command in a process of its own; returns what it printed and the packages it imported."""
    script = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('\\nIMPORTED', *{name.split('.')[0] for name in sys.modules}))\n"
        f"sys.argv[1:] = {list(args)!r}\n"
        "from lit_trainer.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    printed, imported = done.stdout.split("\nIMPORTED")
    return printed + done.stderr, set(imported.split())


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], "usage: lit-trainer COMMAND"),
        (["--help"], "usage: lit-trainer COMMAND"),
        (["-h"], "usage: lit-trainer COMMAND"),
        (["--version"], f"lit_trainer {__version__}"),
        (["fitt"], "lit-trainer: error: there is no command fitt; did you mean fit?"),
    ],
)
def test_what_needs_no_training_imports_no_framework(args: list[str], expected: str) -> None:
    printed, imported = run_and_list_imports(*args)
    assert expected in printed
    assert not imported & HEAVY


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lit_trainer", "--version"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, f"lit_trainer {__version__}\n")


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    printed = capsys.readouterr().out
    assert all(re.search(rf"^  {name} +\w", printed, re.MULTILINE) for name in COMMANDS)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["prdict"], "there is no command prdict; did you mean predict?"),
        (["serve"], f"there is no command serve; there are {', '.join(COMMANDS)}"),
        (
            ["--config", "x.yaml"],
            f"a command must come first, before --config; there are {', '.join(COMMANDS)}",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    args: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(args)
    captured = capsys.readouterr()
    assert end.value.code == 2
    assert (captured.out, captured.err) == ("", f"lit-trainer: error: {expected}\n")


def test_a_mistake_is_told_once_on_each_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(SystemExit) as end:
        main(["prdict"])
    assert end.value.code == 2
    assert capsys.readouterr().err == ""


def test_the_traceback_is_shown_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIT_TRAINER_TRACEBACK", "1")
    with pytest.raises(ValueError, match="there is no command prdict"):
        main(["prdict"])


def test_an_interrupt_before_training_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(given: list[str], is_process: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lit_trainer.cli._run", interrupt)
    with pytest.raises(SystemExit) as end:
        main(["fit"])
    assert end.value.code == 130


def test_without_running_a_mistake_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="there is no command prdict; did you mean predict"):
        main(["prdict"], run=False)


def raised(module: str, statement: str) -> Exception:
    """Returns the error of a statement that is run as if it stood in a module."""
    namespace = vars(types.ModuleType(module))
    exec(f"def fail():\n    {statement}", namespace)
    try:
        namespace["fail"]()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("module", "statement", "expected"),
    [
        ("lit_trainer.data.text", "raise ValueError('no column')", True),
        ("lit_trainer.data.text", "raise UnicodeError('no column')", True),
        ("lit_trainer.data.text", "raise KeyError('no column')", False),
        ("lit_trainer.data.text", "import json; json.loads('{')", False),
        ("lit_trainer_plugin.losses", "raise ValueError('mine')", False),
        ("lightning.pytorch", "raise type('MisconfigurationException', (Exception,), {})('no GPU')", True),
        ("user.callbacks", "raise type('Own', (type('MisconfigurationException', (Exception,), {}),), {})('x')", True),
    ],
)
def test_a_mistake_is_a_value_error_of_this_package(module: str, statement: str, expected: bool) -> None:
    assert is_mistake(raised(module, statement)) is expected


def test_an_error_without_a_traceback_is_no_mistake() -> None:
    assert not is_mistake(ValueError("never raised"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one  line", "one line"),
        ("a long\n   sentence\n\nof Lightning's", "a long sentence of Lightning's"),
        ("the data has 1 problem:\n- no text", "the data has 1 problem: no text"),
        ("the data has 2 problems:\n- no text\n- no label", "the data has 2 problems:\n- no text\n- no label"),
        ("", ""),
    ],
)
def test_each_mistake_is_one_line(text: str, expected: str) -> None:
    assert told(ValueError(text)) == expected


def test_the_installed_command_is_this_one() -> None:
    command = Path(sys.executable).with_name("lit-trainer")
    if not command.exists():
        pytest.skip("the package is not installed here")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert (done.returncode, done.stdout) == (0, f"lit_trainer {__version__}\n")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"GOMP_SPINCOUNT": "10000"}),
        ({"GOMP_SPINCOUNT": "5"}, {"GOMP_SPINCOUNT": "5"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
    ],
)
def test_threads_soon_sleep_while_they_wait_unless_the_user_says_otherwise(
    given: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    for name in names:
        monkeypatch.setenv(name, given.get(name, ""))
        if name not in given:
            monkeypatch.delenv(name)
    with pytest.raises(SystemExit):
        main(["fit", "--config", "nowhere.yaml"])
    assert {name: os.environ[name] for name in names if name in os.environ} == expected


def test_garbage_is_collected_again_once_libraries_are_loaded() -> None:
    for _ in range(2):
        with pytest.raises(SystemExit):
            main(["fit", "--config", "nowhere.yaml"])
        assert gc.isenabled()
