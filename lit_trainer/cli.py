"""The command ``lit-trainer``: finds out what is wanted, and imports no more than that takes."""

import difflib
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from lit_trainer import __version__, signals

if TYPE_CHECKING:
    from lit_trainer.training_cli import TrainingCLI

COMMANDS = {
    "fit": "train a model, keep the best of its evaluations and test that",
    "validate": "evaluate a checkpoint on the validation split",
    "test": "evaluate a checkpoint on the test split",
    "predict": "apply a checkpoint to rows without labels",
    "report": "write a page about a run: curves, decisions, the rows that went wrong",
    "compare": "run variants of a recipe with several seeds, in one table",
    "tune": "search the settings with the best validation metric",
    "submit": "have one of these run as a job of SLURM",
    "doctor": "say what is wrong with this machine, or job, for training",
}

SHOW_TRACEBACK = "LIT_TRAINER_TRACEBACK"
"""The environment variable that has a mistake shown with the code that found it."""

_HELP = f"""usage: lit-trainer COMMAND [--config FILE ...] [--SETTING VALUE ...]

Fine-tune Hugging Face models with PyTorch Lightning.

commands:
{"".join(f"  {name:10}{purpose}{chr(10)}" for name, purpose in COMMANDS.items())}
options:
  -h, --help  show this, or after a command all of its settings
  --version   show the version

Settings come from YAML files, then from the command line; later ones win. For example:
  lit-trainer fit --config configs/recipes/sms_spam_minilm.yaml --config configs/overlays/smoke.yaml
  lit-trainer fit --config configs/recipes/sms_spam_minilm.yaml --model.optimizer.lr 3e-5 --print_config
  lit-trainer test --config runs/NAME/version_0/config.yaml --ckpt_path runs/NAME/version_0
"""


@overload
def main(args: Sequence[str] | None = None, run: Literal[True] = True) -> None: ...


@overload
def main(args: Sequence[str] | None = None, *, run: Literal[False]) -> "TrainingCLI": ...


def main(args: Sequence[str] | None = None, run: bool = True) -> "TrainingCLI | None":
    """Runs a command; the entry point of ``lit-trainer`` and ``python -m lit_trainer``.

    Args:
        args: What would stand after ``lit-trainer``; that of this process if None.
        run: Whether the command runs. Without, the objects it would work with are returned: `trainer`, `model`,
            `datamodule` and `config`; the command ``fit`` may be left out then.

    Raises:
        ValueError: With ``run=False``, for a mistake in the arguments, of which the command line prints one line.
    """
    given = list(sys.argv[1:] if args is None else args)
    if not run:
        return _prepare(given)
    try:
        _run(given, is_process=args is None)
    except Exception as error:
        if os.environ.get(SHOW_TRACEBACK) or not is_mistake(error):
            raise
        _tell(error)
        sys.exit(2)
    except KeyboardInterrupt:  # once training is under way, it ends in good order
        sys.exit(130)
    except SystemExit as end:
        if isinstance(end.__context__, KeyboardInterrupt):  # how Lightning ends what was not under way yet
            sys.exit(130)
        raise
    return None


def _run(given: list[str], is_process: bool) -> None:
    if not given or given[0] in ("-h", "--help", "help"):
        print(_HELP, end="")
    elif given[0] == "--version":
        print(f"lit_trainer {__version__}")
    else:
        command, *rest = given
        _check_is_command(command)
        if command == "report":
            from lit_trainer import report

            return report.main(rest)
        if command == "submit":
            from lit_trainer import submit

            return submit.main(rest)
        if command == "compare":
            from lit_trainer.studies import compare

            return compare.main(rest)
        if command == "tune":
            from lit_trainer.studies import tune

            return tune.main(rest)
        if command == "doctor":
            from lit_trainer import doctor

            return doctor.main(rest)
        _have_threads_sleep_soon()
        # For class paths that name a file of the user's own; last, so that it hides nothing that is installed.
        sys.path.append(str(Path.cwd()))
        # From here on, as importing takes seconds, in which a signal must not end a job either.
        with signals.watching(signals.BEFORE_TRAINING, until_exit=is_process):
            with _without_garbage_collection():
                from lit_trainer.training_cli import TrainingCLI

                cli = TrainingCLI(command, rest)
            cli.run()
    return None


def _prepare(given: list[str]) -> "TrainingCLI":
    command, *rest = given if given and not given[0].startswith("-") else ["fit", *given]
    _check_is_command(command)
    _have_threads_sleep_soon()
    try:
        with _without_garbage_collection():
            from lit_trainer.training_cli import TrainingCLI

            return TrainingCLI(command, rest)
    except SystemExit as end:  # how argparse ends after --help or --print_config
        raise ValueError("these arguments only print something, so that there is nothing to return") from end


def _have_threads_sleep_soon() -> None:
    """Has threads that wait for work spin only for a moment, where torch is yet to be loaded.

    Spinning for milliseconds, as they do else, takes the cores from whatever works beside them; to wake up after each
    small operation makes a step of a small model half as long again.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Has libraries load a fifth faster, and the many objects that they leave never looked at again."""
    was_on, is_first = gc.isenabled(), "torch" not in sys.modules
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
        if is_first:  # later on there may be a former model among what would be kept for good
            gc.freeze()


def _check_is_command(name: str) -> None:
    if name in COMMANDS:
        return
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}"
    if name.startswith("-"):
        raise ValueError(f"a command must come first, before {name}; {hint}")
    raise ValueError(f"there is no command {name}; {hint}")


def is_mistake(error: Exception) -> bool:
    """Tells whether an error is the user's mistake rather than a fault of the program.

    By convention that is a `ValueError` that this package raises itself, and what Lightning calls a misconfiguration.
    """
    if any(cls.__name__ == "MisconfigurationException" for cls in type(error).__mro__):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = str(trace.tb_frame.f_globals.get("__name__")) if trace is not None else ""
    return isinstance(error, ValueError) and module.split(".")[0] == "lit_trainer"


def _tell(error: Exception) -> None:
    """Prints a mistake, once on each machine: all its processes see the same files and settings."""
    if int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0) == 0:
        print(f"lit-trainer: error: {told(error)}", file=sys.stderr)


def told(error: Exception) -> str:
    """Returns what an error says in one line, or in one line for each of several mistakes that it lists."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    if sum(line.startswith("- ") for line in lines) > 1:
        return "\n".join(lines)
    return " ".join(line.removeprefix("- ") for line in lines)
