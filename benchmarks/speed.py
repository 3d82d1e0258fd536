"""Measures how fast training is here: lit_trainer, a loop by hand, the Transformers Trainer.

Usage: python benchmarks/speed.py [--quick] [--device cuda] [--threads N] [--model FOLDER] [--only PART] [--out FOLDER]

All systems train the same model on the same rows, docstrings of installed libraries, with the same number of threads
and of rows in a step. Each runs in a process of its own, and rounds of a few steps alternate between them, so that a
change of the machine's pace meets all; what is shown are medians over rounds, and ratios of the same round with their
range. Prints tables and writes ``speed.json``, ``speed.md`` and ``speed.png``: about fifteen minutes on two free cores.
A system that fails, or takes too long, costs its own row only.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from speed_plot import draw
from speed_processes import HERE, Measured
from speed_systems import OURS, Bench, half_precision_systems, score_systems, small_systems, training_systems
from speed_tables import make_tables, print_tables, write_markdown

PARTS = ("training", "half_precision", "small", "score", "startup")
PACKAGES = ("lit_trainer", "torch", "lightning", "transformers")
PLAIN_COMMANDS = (["--version"], ["--help"])
IMPORTS = "import lightning.pytorch, transformers.models.bert.modeling_bert, datasets, torchmetrics"

# A round is an epoch, and so is the warm-up with the first step: all rounds have the same rows.
CPU = {
    "batch_size": 8, "rows": 48, "eval_rows": 32, "score_rows": 1024, "max_length": 512, "pool": 4000, "files": 100,
    "steps": 6, "rounds": 3, "evaluations": 2, "most_seconds": 240.0,
    "small_rows": 240, "small_length": 32, "small_width": 64, "small_layers": 2, "small_steps": 30, "small_rounds": 40,
    "target": 0.75, "score_steps": 8, "score_seconds": 45.0, "limit": 240.0, "startups": 3,
}  # fmt: skip
CUDA = {
    **CPU, "batch_size": 32, "rows": 2048, "eval_rows": 2048, "pool": 8000, "files": 1000,
    "steps": 64, "rounds": 5, "small_rows": 960,
}  # fmt: skip
QUICK = {
    **CPU, "rows": 16, "eval_rows": 16, "score_rows": 16, "max_length": 64, "pool": 100, "files": 10,
    "steps": 2, "rounds": 2, "evaluations": 1,
    "small_rows": 24, "small_width": 32, "small_layers": 2, "small_steps": 3, "small_rounds": 2,
    "target": 0.0, "startups": 1,
}  # fmt: skip
QUICK_SYSTEMS = 3
"""How many of each comparison the quick form takes: those at its two ends, and the one in the middle."""


class Session:
    """One run of the benchmark.

    Args:
        folder: For inputs and logs.
        sizes: How much of everything.
        device: ``cpu`` or ``cuda``.
        threads: Of each process.
        is_quick: Whether a few systems are enough.
    """

    def __init__(self, folder: Path, sizes: dict[str, Any], device: str, threads: int, is_quick: bool) -> None:
        self.folder, self.sizes, self.device, self.is_quick = folder, sizes, device, is_quick
        self.shared = {
            "OMP_NUM_THREADS": str(threads),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        self.about: dict[str, Any] = {}

    def prepare(self, model: str | None) -> None:
        """Writes the inputs."""
        say("inputs: docstrings, tokens, models")
        settings = {**self.sizes, "quick": self.is_quick, "model": model}
        self._python([str(HERE / "speed_inputs.py"), str(self.folder), json.dumps(settings)])
        self.about = json.loads((self.folder / "about.json").read_text())

    def bench(self, kind: str) -> Bench:
        """Returns what the systems of a comparison share."""
        rows = {"training": "train", "score": "score", "small": "small_train"}[kind]
        is_small = kind == "small"
        settings = {
            "folder": str(self.folder),
            "model": str(self.folder / "small") if is_small else self.about["model"],
            "num_labels": 4,
            "rows": rows,
            "eval_rows": "small_validation" if is_small else "validation",
            "max_length": self.sizes["small_length"] if is_small else self.sizes["max_length"],
            "batch_size": self.sizes["batch_size"],
            "eval_batch_size": 64,
            "lr": 1e-4,
            "log_every_n_steps": 10,
            "device": self.device,
        }
        return Bench(self.folder, settings)

    def peak(self) -> dict[str, float]:
        """Returns the operations a second that matrix products reach, by precision."""
        say("the peak of matrix products")
        found: dict[str, float] = json.loads(self._python([str(HERE / "speed_peak.py"), self.device]))
        return found

    def training(self) -> list[Measured]:
        """Trains and evaluates with the real model, in float32."""
        return self._with_evaluation(training_systems(self.bench("training")))

    def half_precision(self) -> list[Measured]:
        """Trains and evaluates with the real model, in half precision."""
        return self._with_evaluation(half_precision_systems(self.bench("training")))

    def _with_evaluation(self, systems: list[Measured]) -> list[Measured]:
        systems = self._started(systems)
        self._train(systems, self.sizes["rounds"], self.sizes["steps"])
        say("evaluation")
        for _ in range(self.sizes["evaluations"] + 1):  # the first one has what is done once
            for system in systems:
                if found := system.evaluate(self.sizes["limit"]):
                    system.evaluations.append(found)
        return self._ended(systems)

    def small(self) -> list[Measured]:
        """Trains a small model, to see what is added to each step."""
        systems = self._started(small_systems(self.bench("small")))
        self._train(systems, self.sizes["small_rounds"], self.sizes["small_steps"])
        return self._ended(systems)

    def score(self) -> list[dict[str, Any]]:
        """Returns how long each system takes to a validation accuracy, evaluations included."""
        found = []
        for system in self._chosen(score_systems(self.bench("score"))):
            say(f"time to a validation accuracy of {self.sizes['target']:.0%}: {system.name}")
            system.launch(self.folder, **self.shared)
            system.wait_until_ready(self.sizes["limit"])
            seconds, steps, accuracy = 0.0, 0, 0.0
            while not system.failure and seconds < self.sizes["score_seconds"]:
                trained = system.train(self.sizes["score_steps"], self.sizes["limit"])
                evaluated = system.evaluate(self.sizes["limit"])
                if not trained or not evaluated:
                    break
                seconds += trained["seconds"] + evaluated["seconds"]
                steps += self.sizes["score_steps"]
                accuracy = evaluated["accuracy"]
                if accuracy >= self.sizes["target"]:
                    break
            system.end()
            is_there = bool(steps) and accuracy >= self.sizes["target"]
            found.append(
                {"system": system.name, "seconds": seconds, "steps": steps, "accuracy": accuracy, "reached": is_there}
                | ({"failure": system.failure} if system.failure else {})
            )
        return found

    def startup(self) -> dict[str, float]:
        """Returns the seconds of commands that train nothing, and of the imports that training cannot do without."""
        say("start-up")
        commands = {f"lit-trainer {' '.join(words)}": ["-m", "lit_trainer", *words] for words in PLAIN_COMMANDS}
        commands["python, with the imports of training"] = ["-c", IMPORTS]
        found = {}
        for name, command in commands.items():
            times = []
            for _ in range(self.sizes["startups"]):
                start = time.perf_counter()
                self._python(command)
                times.append(time.perf_counter() - start)
            found[name] = min(times)
        return found

    def _started(self, systems: list[Measured]) -> list[Measured]:
        systems = self._chosen(systems)
        for system in systems if self.is_quick else ():
            system.launch(self.folder, **self.shared)  # side by side, as nobody looks at the times
        for system in systems:
            say(f"start {system.name}")
            if not self.is_quick:
                system.launch(self.folder, **self.shared)
            system.wait_until_ready(self.sizes["limit"])
            if first := system.train(1, self.sizes["limit"]):
                system.first_step = system.startup + first["seconds"]
        return systems

    def _train(self, systems: list[Measured], rounds: int, steps: int) -> None:
        for system in systems:
            system.train(steps - 1, self.sizes["limit"])
        end = time.perf_counter() + self.sizes["most_seconds"]
        for index in range(rounds):
            if index > 1 and time.perf_counter() > end:
                say("a slow machine: fewer rounds")
                break
            say(f"round {index + 1} of {rounds}")
            for system in systems:
                if found := system.train(steps, self.sizes["limit"]):
                    system.rounds.append(found)

    def _chosen(self, systems: list[Measured]) -> list[Measured]:
        if not self.is_quick or len(systems) <= QUICK_SYSTEMS:
            return systems
        wanted = [system for system in systems if system.name in (OURS,)] or [systems[len(systems) // 2]]
        return [systems[1], *wanted, systems[0]][:QUICK_SYSTEMS]

    def _ended(self, systems: list[Measured]) -> list[Measured]:
        for system in systems:
            system.end()
        return systems

    def _python(self, command: Sequence[str]) -> str:
        environment = {**os.environ, **self.shared, "PYTHONPATH": f"{HERE.parent}{os.pathsep}{HERE}"}
        done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)[:100]} failed:\n{done.stderr[-2000:]}")
        return done.stdout


def say(text: str) -> None:
    """Tells what is being done."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def attempt(part: str, function: Callable[[], Any], figures: dict[str, Any]) -> None:
    """Adds what a part finds to the figures, or why it failed."""
    try:
        found = function()
    except Exception as error:
        say(f"{part} failed: {error}")
        figures.setdefault("failed", {})[part] = str(error)
        return
    figures[part] = [as_figures(each) if isinstance(each, Measured) else each for each in found] \
        if isinstance(found, list) else found  # fmt: skip


def as_figures(system: Measured) -> dict[str, Any]:
    """Returns what a system reported as plain data."""
    rounds = [
        {**each, "steps": len(each["steps"]), "step_seconds": [round(seconds, 6) for seconds in each["steps"]]}
        for each in system.rounds
    ]
    return {
        "system": system.name,
        "failure": system.failure,
        "ready_seconds": system.startup,
        "first_step_seconds": system.first_step,
        "mib": system.mib,
        "precision": system.precision,
        "rounds": rounds,
        "evaluations": [
            {name: each[name] for name in ("seconds", "tokens", "accuracy")} for each in system.evaluations
        ],
    }


def main(arguments: list[str] | None = None) -> None:
    """Measures, prints and writes.

    Args:
        arguments: Of the command line.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model, a few systems and steps: a test, no figures"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of each process")
    parser.add_argument("--model", help="folder of the model, instead of MiniLM from the package index")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this part; can be repeated")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the tables")
    given = parser.parse_args(arguments)
    sizes = QUICK if given.quick else CUDA if given.device == "cuda" else CPU
    started = time.perf_counter()
    figures: dict[str, Any] = {
        "versions": {name: version(name) for name in PACKAGES},
        "machine": {"device": given.device, "threads": given.threads, "load": os.getloadavg()[0]},
        "sizes": sizes,
        "quick": given.quick,
    }
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Path(folder), sizes, given.device, given.threads, given.quick)
        session.prepare(given.model)
        figures["about"] = session.about
        attempt("peak", session.peak, figures)
        for part in given.only or PARTS:
            attempt(part, getattr(session, part), figures)
    figures["minutes"] = (time.perf_counter() - started) / 60
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "speed.json").write_text(json.dumps(figures, indent=1) + "\n")
    tables = make_tables(figures)
    print_tables(tables)
    write_markdown(tables, figures, given.out / "speed.md")
    draw(figures, given.out / "speed.png")
    say(f"took {figures['minutes']:.1f} minutes; wrote {given.out}/speed.json, speed.md and speed.png")


if __name__ == "__main__":
    main()
