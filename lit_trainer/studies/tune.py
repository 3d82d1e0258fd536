"""The command ``tune``: a search for the settings with the best validation metric."""

import argparse
import csv
import hashlib
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from rich.console import Console
from rich.table import Table

from lit_trainer.studies import journal
from lit_trainer.studies.finished_run import newest_run, remove_weights
from lit_trainer.studies.processes import FIT, Job, ended_as_interrupted, last_words, run_jobs
from lit_trainer.studies.resolving import Settings, resolve
from lit_trainer.studies.run_files import TRIAL_FILE
from lit_trainer.studies.search_space import Search, overlay, read_search
from lit_trainer.studies.variants import as_arguments, recipe_files

_REPORT = "lit_trainer.studies.trial_report.TrialReport"
_NUM_SHOWN = 5
_EPILOG = """Each trial is a run in a process of its own, so that none disturbs another and one may fail.
The test split is left alone. A search file, or --space for each key, has
  space:
    model.optimizer.lr: {low: 1.0e-5, high: 1.0e-3, log: true}
    data.batch_size: [16, 32, 64]
    trainer.max_epochs: {low: 1, high: 4}
For example:
  lit-trainer tune configs/recipes/sms_spam_minilm.yaml --search search.yaml --trials 20
"""


@dataclass(frozen=True)
class Goal:
    """What makes a trial the best.

    Args:
        monitor: The metric.
        mode: Whether the best is the smallest or the largest.
    """

    monitor: str
    mode: str


def main(args: Sequence[str]) -> None:
    """Runs trials until there are as many as asked, prints the best and writes them as an overlay.

    Args:
        args: What follows ``tune`` on the command line.

    Raises:
        ValueError: For a mistake in the arguments, the search or the settings, before any trial.
    """
    options = _parser().parse_args(list(args))
    journal.import_optuna()  # before anything that takes time
    if options.trials < 1:
        raise ValueError(f"--trials is {options.trials} but must be at least 1")
    search = read_search(options.search, options.space)
    recipe = recipe_files(options.recipe, options.config)
    base = [word for change in (*recipe, *options.set) for word in as_arguments(change)]
    settings = _check(base, search)
    goal = _goal(settings, search, options)
    folder = Path(options.folder or f"runs/tune/{Path(recipe[0]).stem}")
    about = {"goal": [goal.monitor, goal.mode], "space": search.kinds, "settings": _digest(settings)}
    study = journal.open_study(folder, goal.mode, about, options.seed)
    console = Console(highlight=False)
    try:
        with ended_as_interrupted():
            while len(journal.counted(study)) < options.trials:
                _trial(study, search, goal, base, folder, options, console)
    except KeyboardInterrupt:
        number = len(journal.counted(study))
        console.print(f"\nInterrupted with {number} of {options.trials} trials done; the same command goes on")
        sys.exit(130)
    _tell(study, search, goal, base, folder, options, console)


# -- before the first trial ----------------------------------------------------------------------------------------


def _check(base: Sequence[str], search: Search) -> Settings:
    """Returns all settings of the recipe, once every end of every range and every choice is found to be allowed."""
    first = [f"--{key}={values.texts[0]}" for key, values in search.space.items()]
    tried = [(key, text) for key, values in search.space.items() for text in values.texts]
    alone, together, *each = resolve([base, [*base, *first], *([*base, f"--{key}={text}"] for key, text in tried)])
    if alone.mistake:
        raise ValueError(alone.mistake)
    for (key, text), found in zip(tried, each, strict=True):
        if found.mistake:
            raise ValueError(f"space: {key} cannot be {text}: {found.mistake}")
    if together.mistake:
        raise ValueError(f"space: {together.mistake}")
    overlay(together.settings, list(search.space))
    return alone.settings


def _goal(settings: Settings, search: Search, options: argparse.Namespace) -> Goal:
    """Returns what to go by: as asked, or else as the recipe keeps its best checkpoint."""
    best: Mapping[str, Any] = next(
        (
            callback["init_args"]
            for callback in settings["trainer"]["callbacks"] or []
            if callback["class_path"].endswith(".BestCheckpoint")
        ),
        {},
    )
    monitor = options.monitor or search.monitor or best.get("monitor")
    mode = options.mode or search.mode or (best.get("mode") if monitor == best.get("monitor") else None)
    if monitor is None or mode is None:
        raise ValueError("--monitor and --mode are needed: the recipe has no BestCheckpoint to take them from")
    if not str(monitor).startswith("val/"):
        raise ValueError(f"monitor is {monitor} but must be a metric of validation, val/...: a search that looks at "
                         "the test split leaves nothing to test on")  # fmt: skip
    return Goal(str(monitor), str(mode))


def _digest(settings: Settings) -> str:
    trainer = {key: value for key, value in settings["trainer"].items() if key != "default_root_dir"}
    return hashlib.sha256(json.dumps({**settings, "trainer": trainer}, sort_keys=True).encode()).hexdigest()


# -- trials --------------------------------------------------------------------------------------------------------


def _trial(
    study: Any,
    search: Search,
    goal: Goal,
    base: Sequence[str],
    folder: Path,
    options: argparse.Namespace,
    console: Console,
) -> None:
    """Runs the next trial and tells the study what became of it."""
    trial = study.ask({key: values.distribution() for key, values in search.space.items()})
    job = _job(trial, search, goal, base, folder, options)
    threads = {"OMP_NUM_THREADS": str(options.threads)} if options.threads else {}
    try:
        with console.status(f"trial {trial.number}: {_shown(trial.params)}, log {job.log}"):
            [(_, code)] = run_jobs([job], threads)
    except BaseException:
        journal.interrupt(study, folder, trial.number)
        raise
    result = _result(job.log.parent) if code == 0 else {}
    value = result.get("value")
    remove_weights(newest_run(job.log.parent))
    if value is None:
        why = last_words(job.log) if code else f"no evaluation logged a number as {goal.monitor}"
        study.tell(trial.number, state=_state("FAIL"))
        outcome = f"failed: {why} ({job.log})"
    elif result["pruned"]:
        study.tell(trial.number, state=_state("PRUNED"))
        outcome = f"stopped early at {value:.4f}"
    else:
        study.tell(trial.number, value)
        outcome = f"{value:.4f}, the best {study.best_value:.4f}"
    done = len(journal.counted(study))
    console.print(f"{done} of {options.trials}: {goal.monitor} {outcome}; {_shown(trial.params)}", markup=False,
                  soft_wrap=True)  # fmt: skip


def _job(trial: Any, search: Search, goal: Goal, base: Sequence[str], folder: Path, options: argparse.Namespace) -> Job:
    own = folder / f"trial_{trial.number}"
    own.mkdir(parents=True, exist_ok=True)
    report = {"monitor": goal.monitor, "mode": goal.mode, "folder": str(folder), "number": trial.number,
              "result": str(own), "prune": not options.no_pruning}  # fmt: skip
    settings = {
        "test_after_fit": False,
        "trainer": {
            "default_root_dir": str(own),
            "enable_progress_bar": False,
            "callbacks+": [{"class_path": _REPORT, "init_args": report}],
        },
    }
    file = own / "trial.yaml"
    file.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    flags = [f"--{key}={trial.params[key]}" for key in search.space]
    return Job(f"trial {trial.number}", (*FIT, *base, *flags, "--config", str(file)), own / "log.txt")


def _result(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / TRIAL_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _state(name: str) -> Any:
    return journal.import_optuna().trial.TrialState[name]


def _shown(params: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in params.items()
    )


# -- after the last one --------------------------------------------------------------------------------------------


def _tell(
    study: Any,
    search: Search,
    goal: Goal,
    base: Sequence[str],
    folder: Path,
    options: argparse.Namespace,
    console: Console,
) -> None:
    """Prints the best trials, and writes the best one as an overlay and all of them as a table."""
    trials = journal.counted(study)
    complete = [trial for trial in trials if trial.state == _state("COMPLETE")]
    complete.sort(key=lambda trial: trial.value if goal.mode == "min" else -trial.value)
    table = folder / "trials.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["trial", "state", goal.monitor, *search.space])
        for trial in trials:
            values = [trial.params.get(key, "") for key in search.space]
            writer.writerow(
                [trial.number, trial.state.name.lower(), "" if trial.value is None else trial.value, *values]
            )
    if not complete:
        raise ValueError(f"no trial came to its end; the last one's log is {folder}/trial_{trials[-1].number}/log.txt")
    shown = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("trial", goal.monitor, *search.space):
        shown.add_column(name, justify="left" if name == "trial" else "right", overflow="fold")
    for trial in complete[:_NUM_SHOWN]:
        shown.add_row(str(trial.number), f"{trial.value:.4f}", *(_cell(trial.params[key]) for key in search.space))
    console.print()
    console.print(shown)
    best = complete[0]
    [found] = resolve([[*base, *(f"--{key}={best.params[key]}" for key in search.space)]])
    file_of_best = folder / "best.yaml"
    head = f"# The best of {len(trials)} trials: {goal.monitor} {best.value:.4f} on validation, which chose it.\n"
    text = yaml.safe_dump(overlay(found.settings, list(search.space)), sort_keys=False, allow_unicode=True)
    file_of_best.write_text(head + text, encoding="utf-8")
    console.print(f"\nWrote {file_of_best} and {table}. Next:")
    configs = [
        word
        for file in (*recipe_files(options.recipe, options.config), str(file_of_best))
        for word in ("--config", file)
    ]
    words = ["lit-trainer", "fit", *configs, *(f"--{change}" for change in options.set)]
    console.print(shlex.join(words), soft_wrap=True)


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lit-trainer tune",
        usage="lit-trainer tune RECIPE [OVERLAY ...] --search FILE [--space KEY=VALUES ...] [--trials N] [OPTION ...]",
        description="Searches the settings with the best validation metric, by Optuna; the same command goes on.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("recipe", nargs="*", metavar="RECIPE", help="the recipe, and overlays")
    add("--config", action="append", default=[], metavar="FILE", help="more of them, as other commands take them")
    add("--search", metavar="FILE", help="YAML with space, and monitor and mode where they are not the recipe's")
    add("--space", action="extend", nargs="+", default=[], metavar="KEY=VALUES",
        help="what one setting can be, after those of the file")  # fmt: skip
    add("--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE", help="settings of all trials")
    add("--trials", type=int, default=20, help="how many, with those of earlier calls (20)")
    add("--monitor", help="the metric of validation to go by (that of the recipe's best checkpoint)")
    add("--mode", choices=["min", "max"], help="whether the best is the smallest or the largest (likewise)")
    add("--no-pruning", action="store_true", help="let every trial train to its end")
    add("--seed", type=int, default=0, help="of what is tried (0); every run has the seed of the recipe")
    add("--threads", type=int, default=None, help="CPU threads of each run (all cores)")
    add("--folder", help="where the search and its runs are (runs/tune/RECIPE)")
    return parser
