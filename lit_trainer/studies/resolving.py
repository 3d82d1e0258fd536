"""All settings of runs, found in a process of its own: the one that only starts runs need not load torch."""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import yaml  # type: ignore[import-untyped]

Settings = dict[str, Any]


class Resolved(NamedTuple):
    """What the arguments of a run lead to.

    Args:
        settings: All settings, those that are left out with their defaults.
        mistake: What is wrong with them, in a line; empty where nothing is.
    """

    settings: Settings
    mistake: str = ""


def resolve(runs: Sequence[Sequence[str]]) -> list[Resolved]:
    """Finds out the settings of runs and builds their objects once, so that a mistake is told before any training.

    Args:
        runs: What would follow ``lit-trainer fit`` for each of them.
    """
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(command, input=json.dumps(list(map(list, runs))), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the settings could not be read:\n{done.stderr.strip()}")
    found = json.loads(done.stdout.rpartition("\n")[2])
    return [Resolved(yaml.safe_load(text) or {}, mistake) for text, mistake in found]


def _resolve_here(words: list[str]) -> tuple[str, str]:
    """Returns the settings as YAML, or what is wrong with them."""
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    from lit_trainer.saved_settings import settings_text
    from lit_trainer.training_cli import TrainingCLI

    try:
        run = TrainingCLI("fit", words)
    except (ValueError, MisconfigurationException) as error:
        return "", " ".join(str(error).split())
    except SystemExit:  # --help and the like
        return "", "these arguments only print something"
    return settings_text(run.parser, run.config, ckpt_path=None), ""


if __name__ == "__main__":
    print("\n" + json.dumps([_resolve_here(words) for words in json.load(sys.stdin)]), end="")
