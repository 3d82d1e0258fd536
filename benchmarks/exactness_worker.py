"""One process of a measurement: `exactness.py` starts one for each rank.

Usage: exactness_worker.py SETTINGS, a JSON object; writes what it found to ``<settings["out"]>.<rank>``.
"""

import json
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import exactness_lightning
import exactness_ours
import exactness_transformers
import torch
from exactness_cases import CASES, SPLITS, direct_gradient, this_rank
from transformers.utils import logging as transformers_logging

OURS, LIGHTNING, MEAN, COUNTED = "lit_trainer", "Lightning", "Trainer, mean", "Trainer, counted"
TRAINER, IN_BATCHES = "Trainer", "Lightning, in a batch sampler"


def _found(function: Callable[[], Any]) -> Any:
    """Calls it, and says why where a system cannot do it."""
    try:
        return function()
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def gradients(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the gradients of the last step by split, loss and system, of the splits with so many ranks."""
    folder, scratch = settings["folder"], Path(settings["scratch"])
    found: dict[str, Any] = {}
    for split in SPLITS:
        if split.ranks != settings["ranks"] or split.name not in settings["splits"]:
            continue
        for case in CASES:
            if case.name not in settings["cases"]:
                continue
            own = {
                OURS: lambda case=case, split=split: exactness_ours.gradient(folder, case, split),
                LIGHTNING: lambda case=case, split=split: exactness_lightning.gradient(folder, case, split),
                MEAN: lambda case=case, split=split: exactness_transformers.gradient(
                    folder, scratch, case, split, "mean"
                ),
            }
            if case.passes == 1:
                own[COUNTED] = lambda case=case, split=split: exactness_transformers.gradient(
                    folder, scratch, case, split, "counted"
                )
            gradients = {system: _found(function) for system, function in own.items()}
            if case.dropout == 0 and settings["ranks"] == 1:
                gradients["direct"] = direct_gradient(folder, case, split)
            found.setdefault(split.name, {})[case.name] = gradients
    return found


def evaluations(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the rows that were scored and the loss by number of rows and system."""
    folder, scratch, ranks = settings["folder"], Path(settings["scratch"]), settings["ranks"]
    return {
        str(num_rows): {
            OURS: _found(lambda n=num_rows: exactness_ours.evaluation(folder, n, ranks)),
            LIGHTNING: _found(lambda n=num_rows: exactness_lightning.evaluation(folder, n, ranks)),
            TRAINER: _found(lambda n=num_rows: exactness_transformers.evaluation(folder, scratch, n, ranks)),
        }
        for num_rows in settings["num_rows"]
    }


def resumes(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns by system and kill point how far the final weights are from those of the run without a kill."""
    folder, steps = settings["folder"], settings["kill_at"]
    systems: dict[str, Any] = {
        OURS: exactness_ours.final_weights,
        LIGHTNING: exactness_lightning.final_weights,
        TRAINER: exactness_transformers.final_weights,
    }
    found: dict[str, Any] = {}
    for system, final_weights in systems.items():
        run = Path(settings["scratch"]) / f"kill_{system}"
        whole = final_weights(folder, run, steps, None)
        found[system] = {
            str(step): _found(
                lambda step=step, run=run, whole=whole, train=final_weights: float(
                    (train(folder, run, steps, step) - whole).abs().max()
                )
            )
            for step in steps
        }
    return found


def draws(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the rows that this rank trained on by system, with and without replacement."""
    folder, scratch, weights, number = (settings[key] for key in ("folder", "scratch", "weights", "num_draws"))
    found = {}
    for replacement in (True, False):
        arguments = (weights, number, replacement)
        found[str(replacement)] = {
            OURS: _found(lambda a=arguments: exactness_ours.weighted_draws(folder, 2, *a)),
            LIGHTNING: _found(lambda a=arguments: exactness_lightning.weighted_draws(folder, 2, *a)),
            IN_BATCHES: _found(lambda a=arguments: exactness_lightning.weighted_draws(folder, 2, *a, in_batches=True)),
            TRAINER: _found(lambda a=arguments: exactness_transformers.weighted_draws(folder, Path(scratch), *a)),
        }
    return found


MEASUREMENTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "gradients": gradients,
    "evaluations": evaluations,
    "resumes": resumes,
    "draws": draws,
}


def main() -> None:
    """Measures what the settings name."""
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    settings = json.loads(sys.argv[1])
    found = {name: MEASUREMENTS[name](settings) for name in settings["measure"]}
    torch.save(found, f"{settings['out']}.{this_rank()}")
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # left-over gloo threads must not keep the process


if __name__ == "__main__":
    main()
