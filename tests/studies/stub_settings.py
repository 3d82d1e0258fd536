"""Stands for what finds out the settings of runs, where a test is about what is done with them."""

import sys
from collections.abc import Sequence
from pathlib import Path

from lit_trainer.studies.resolving import Resolved

STUB = (sys.executable, str(Path(__file__).with_name("stub_fit.py")))


def resolve_here(runs: Sequence[Sequence[str]]) -> list[Resolved]:
    """As `resolve` for flags of the learning rate alone."""
    found = []
    for words in runs:
        rates = [float(word.partition("=")[2]) for word in words if word.startswith("--model.optimizer.lr=")]
        settings = {
            "seed_everything": 0,
            "test_after_fit": True,
            "trainer": {"default_root_dir": "runs/x", "callbacks": None},
            "model": {"init_args": {"optimizer": {"lr": (rates or [0.1])[-1]}}},
            "data": {"init_args": {}},
        }
        mistake = "lr is negative" if rates and rates[-1] < 0 else ""
        found.append(Resolved(settings, mistake))
    return found
