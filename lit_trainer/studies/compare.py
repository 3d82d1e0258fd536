"""The command ``compare``: variants of a recipe with several seeds each, in one table."""

import argparse
import copy
import hashlib
import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import yaml  # type: ignore[import-untyped]
from rich.console import Console

from lit_trainer import __version__
from lit_trainer.studies.comparison import Line, compare_lines
from lit_trainer.studies.comparison_files import Report, columns
from lit_trainer.studies.finished_run import FinishedRun, UnfinishedError, newest_run, remove_weights
from lit_trainer.studies.processes import FIT, Job, ended_as_interrupted, last_words, run_jobs
from lit_trainer.studies.resolving import Settings, resolve
from lit_trainer.studies.variants import Variant, as_arguments, parse_variants, recipe_files

_RECORDER = "lit_trainer.studies.recorder.Recorder"
_PACKAGES = ("torch", "lightning", "transformers")
_EPILOG = """The first variant is what the others are compared with. A run that has finished is not run again while its
settings stay the same. For example:
  lit-trainer compare configs/recipes/sms_spam_minilm.yaml --seeds 3 --variant none \\
    weights=configs/overlays/imbalance_class_weights.yaml focal=configs/overlays/imbalance_focal.yaml
  lit-trainer compare RECIPE --variant 1e-4=model.optimizer.lr=1e-4 3e-5=model.optimizer.lr=3e-5
"""


@dataclass(frozen=True)
class Run:
    """A variant with a seed.

    Args:
        variant: The variant.
        seed: The run's ``seed_everything``.
        settings: All its settings.
        folder: Where its files are.
    """

    variant: Variant
    seed: int
    settings: Settings
    folder: Path

    @property
    def log(self) -> Path:
        """What the run printed."""
        return self.folder / "log.txt"

    def job(self) -> Job:
        """Writes the settings of the run and returns the command that runs it."""
        settings = copy.deepcopy(self.settings)
        settings["trainer"]["default_root_dir"] = str(self.folder)
        settings["trainer"]["callbacks"] = [*(settings["trainer"]["callbacks"] or []), {"class_path": _RECORDER}]
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "settings.yaml"
        file.write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True), encoding="utf-8")
        return Job(f"{self.variant.name}, seed {self.seed}", (*FIT, "--config", str(file)), self.log)


def main(args: Sequence[str]) -> None:
    """Runs what has not finished yet, prints the table and writes it; exits with 1 if a run failed.

    Args:
        args: What follows ``compare`` on the command line.

    Raises:
        ValueError: For a mistake in the arguments or in the settings of a variant, before any run begins.
    """
    options = _parser().parse_args(list(args))
    variants, seeds = parse_variants([text for group in options.variant for text in group]), _seeds(options.seeds)
    if options.jobs < 1:
        raise ValueError(f"--jobs is {options.jobs} but must be at least 1")
    recipe = recipe_files(options.recipe, options.config)
    folder = Path(options.folder or f"runs/compare/{Path(recipe[0]).stem}")
    runs = plan(recipe, options.set, variants, seeds, folder)
    console = Console(highlight=False)
    interrupted = False
    try:
        with ended_as_interrupted():
            failures = _run(runs, options, console)
    except KeyboardInterrupt:
        failures, interrupted = {}, True
    lines = [
        Line(
            variant.name,
            variant.changes,
            {run.seed: done for run in runs if run.variant == variant and (done := FinishedRun.noted(run.folder))},
            {run.seed: failures[run.folder] for run in runs if run.variant == variant and run.folder in failures},
        )
        for variant in variants
    ]
    if interrupted:
        num_done = sum(len(line.runs) for line in lines)
        console.print(
            f"\nInterrupted with {num_done} of {len(runs)} runs finished; the same command goes on with the rest"
        )
        sys.exit(130)
    _tell(lines, runs, options, folder, Path(recipe[0]).stem, ["lit-trainer", "compare", *args], console)
    if failures:
        sys.exit(1)


def plan(
    recipe: Sequence[str], changes: Sequence[str], variants: Sequence[Variant], seeds: Sequence[int], folder: Path
) -> list[Run]:
    """Returns all runs, seed by seed, so that an early look at the table sees every variant.

    Args:
        recipe: The recipe and overlays that all variants have.
        changes: ``KEY=VALUE`` that all of them have.
        variants: The variants.
        seeds: Their seeds.
        folder: Where their folders are. One that finished with the same settings before is taken again.

    Raises:
        ValueError: If the settings of a variant are wrong.
    """
    shared = [word for change in (*recipe, *changes) for word in as_arguments(change)]
    quiet = ["--trainer.enable_progress_bar=false"]
    resolved = resolve([[*shared, *variant.arguments, *quiet] for variant in variants])
    for variant, found in zip(variants, resolved, strict=True):
        if found.mistake:
            raise ValueError(f"variant {variant.name}: {found.mistake}")
        if not found.settings.get("test_after_fit"):
            raise ValueError(f"variant {variant.name}: test_after_fit is false, so that there is nothing to compare")
    runs: list[Run] = []
    folders: dict[str, Path] = {}
    for seed in seeds:
        for variant, (settings, _) in zip(variants, resolved, strict=True):
            own = {**settings, "seed_everything": seed}
            key = _key(own)
            if key not in folders:
                before = [path for path in sorted(folder.glob(f"*-{key}")) if FinishedRun.noted(path)]
                folders[key] = before[0] if before else folder / f"{variant.name}-seed{seed}-{key}"
            runs.append(Run(variant, seed, own, folders[key]))
    return runs


def _key(settings: Settings) -> str:
    """Returns what tells runs apart: all settings but the place of the files."""
    trainer = {key: value for key, value in settings["trainer"].items() if key != "default_root_dir"}
    text = json.dumps([__version__, {**settings, "trainer": trainer}], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _run(runs: Sequence[Run], options: argparse.Namespace, console: Console) -> dict[Path, str]:
    """Runs what has not finished yet; returns what was said of what failed, by folder."""
    by_folder = {run.folder: run for run in runs}
    open_runs = [run for folder, run in by_folder.items() if FinishedRun.noted(folder) is None]
    if len(open_runs) < len(runs):
        console.print(f"{len(runs) - len(open_runs)} of {len(runs)} runs have finished before, or are the same")
    by_job = {run.job(): run for run in open_runs}
    threads = options.threads or max(1, _num_cores() // options.jobs)
    failures = {}
    with console.status("") as status:
        done = 0

        def say(job: Job) -> None:
            status.update(f"{done + 1} of {len(open_runs)}: {job.name}, log {job.log}")

        for job, code in run_jobs(list(by_job), {"OMP_NUM_THREADS": str(threads)}, options.jobs, say):
            done += 1
            run = by_job[job]
            problem = _finish(run, code, options.keep_weights)
            console.print(f"{done} of {len(open_runs)}: {job.name}{f': {problem}' if problem else ''}", markup=False)
            if problem:
                failures[run.folder] = problem
    return failures


def _finish(run: Run, code: int, keep_weights: bool) -> str:
    """Notes what a run has found; returns why it failed if it did."""
    if code:
        return f"exit code {code}: {last_words(run.log)} ({run.log})"
    try:
        finished = FinishedRun.read(newest_run(run.folder))
    except UnfinishedError as error:
        return f"{error} ({run.log})"
    finished.note(run.folder)
    if not keep_weights:
        remove_weights(finished.folder)
    return ""


def _tell(
    lines: Sequence[Line],
    runs: Sequence[Run],
    options: argparse.Namespace,
    folder: Path,
    recipe: str,
    words: list[str],
    console: Console,
) -> None:
    """Prints the table and writes the files."""
    from lit_trainer.studies.comparison_plot import plot  # loads matplotlib, which may take a while

    if not any(line.runs for line in lines):
        for line in lines:
            for seed, text in line.failures.items():
                console.print(f"failed: {line.name}, seed {seed}: {text}", markup=False, style="red", soft_wrap=True)
        return
    compared = compare_lines(lines)
    with_cost = not options.without_cost
    report = Report(compared, columns(lines, options.metrics), _facts(lines, runs, recipe, words), with_cost)
    console.print()
    report.print(console)
    stem = Path(options.save or folder / "comparison")
    paths = report.save(stem)
    picture = stem.with_name(f"{stem.name}.svg")
    plot(compared, report.metrics, picture, with_cost)
    console.print(f"\nWrote {', '.join(map(str, (*paths, picture)))}", soft_wrap=True)


def _facts(lines: Sequence[Line], runs: Sequence[Run], recipe: str, words: list[str]) -> dict[str, str]:
    """Says what the comparison was made with and on."""
    finished = [run for line in lines for run in line.runs.values()]
    rows = next((len(found[0]) for run in finished if (found := run.decisions())), None)
    splits = [run.settings["data"].get("init_args", {}).get("splits") or {} for run in runs]
    facts = {
        "title": f"{recipe}: {', '.join(line.name for line in lines)}",
        "command": f"`{shlex.join(words)}`",
        "versions": ", ".join([f"lit_trainer {__version__}", *(f"{name} {_version(name)}" for name in _PACKAGES)]),
        "machine": "; ".join([f"{_num_cores()} CPU cores", *dict.fromkeys(run.hardware for run in finished)]),
        "seeds": ", ".join(map(str, dict.fromkeys(run.seed for run in runs))),
    }
    seed = f"the same for all, cut with a seed of their own, {splits[0].get('seed', 0)}"
    facts["splits"] = seed if all(each == splits[0] for each in splits) else "not the same for all variants"
    if rows is not None:
        facts["test rows"] = f"{rows:,}"
    return facts


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _seeds(text: str) -> list[int]:
    """Reads how many seeds, counted from 0, or which ones with commas between."""
    try:
        seeds = [int(part) for part in text.split(",")] if "," in text else list(range(int(text)))
    except ValueError:
        seeds = []
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ValueError(f"--seeds is {text} but must be how many, such as 3, or different ones, such as 0,7")
    return seeds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lit-trainer compare",
        usage="lit-trainer compare RECIPE [OVERLAY ...] --variant NAME[=CHANGE,...] ... [--seeds N] [OPTION ...]",
        description="Runs variants of a recipe with several seeds each and says which differences exceed the noise.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("recipe", nargs="*", metavar="RECIPE", help="the recipe, and overlays that all variants have")
    add("--config", action="append", default=[], metavar="FILE", help="more of them, as other commands take them")
    add(
        "--variant", action="append", nargs="+", default=[], metavar="NAME=CHANGE,...",
        help="a name with what it changes: overlays and KEY=VALUE; a name alone is the recipe as it is",
    )  # fmt: skip
    add("--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE", help="settings that all variants have")
    add("--seeds", default="3", help="how many, counted from 0, or which ones with commas between (3)")
    add("--jobs", type=int, default=1, help="runs side by side, which then disturb each other's times (1)")
    add("--threads", type=int, help="CPU threads of each run (all cores, divided by --jobs)")
    add("--metrics", type=lambda text: text.split(","), help="metrics of the test to show, with commas between")
    add("--without-cost", action="store_true", help="leave out time and memory, as on a machine that does other work")
    add("--folder", help="where the runs are (runs/compare/RECIPE)")
    add("--save", metavar="STEM", help="where to write STEM.md, .json, .csv and .svg (comparison, in the folder)")
    add("--keep-weights", action="store_true", help="keep checkpoints and exported models of finished runs")
    return parser
