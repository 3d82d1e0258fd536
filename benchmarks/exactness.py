"""Measures what splitting, killing and spreading a run changes: lit_trainer, plain Lightning, the Transformers Trainer.

Usage: python benchmarks/exactness.py [--quick] [--out FOLDER]

Every figure comes from this very run, on the same tiny model and rows, in float64 and with real processes for ranks.
Prints tables and writes ``exactness.json`` and ``exactness.md``: a few minutes on two free cores, half of it with
``--quick``, which takes fewer losses, splits and kill points. On any machine the gradients of lit_trainer differ by
less than 1e-12, it scores each row once, survives every kill point and draws no row twice.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from exactness_cases import CASES, SHORT, SPLITS, make_model
from exactness_tables import Table, print_tables, write_markdown

WORKER = Path(__file__).with_name("exactness_worker.py")
WHOLE = "1 x 32"
PACKAGES = ("lit_trainer", "torch", "lightning", "transformers", "accelerate")
RARE, NUM_WEIGHTED, NUM_DRAWS = 20, 200, 100
"""Rare rows, which weigh nine times as much as the others; all rows; and draws of an epoch."""


def start(ranks: int, settings: dict[str, Any], folder: Path, timeout: float) -> list[Any]:
    """Runs a worker on each rank and returns what each found.

    Args:
        ranks: How many processes.
        settings: What to measure.
        folder: For files.
        timeout: Seconds after which all are killed.

    Raises:
        RuntimeError: If one of them fails or takes too long.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out, scratch = folder / f"found_{ranks}", folder / f"scratch_{ranks}"
    own = {**settings, "ranks": ranks, "out": str(out), "scratch": str(scratch), "folder": str(folder / "model")}
    processes = []
    for rank in range(ranks):
        environment = dict(os.environ)
        if ranks > 1:
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
            environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        log = (folder / f"log_{ranks}_{rank}").open("w")
        command = [sys.executable, str(WORKER), json.dumps(own)]
        processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    try:
        codes = [process.wait(timeout) for process in processes]
    except subprocess.TimeoutExpired:
        codes = [None]
    finally:
        for process in processes:
            process.kill()
    if any(codes):
        logs = "\n".join((folder / f"log_{ranks}_{rank}").read_text()[-3000:] for rank in range(ranks))
        raise RuntimeError(f"a process of {ranks} failed or took more than {timeout:.0f} seconds ({codes}):\n{logs}")
    return [torch.load(f"{out}.{rank}", weights_only=False) for rank in range(ranks)]


def relative(one: Any, other: Any) -> float | str:
    """Returns the distance of two gradients as a share of the second; a reason in place of one is passed on."""
    for value in (one, other):
        if isinstance(value, str):
            return value
    return float((one - other).norm() / other.norm())


def gradient_errors(found: Iterable[Any]) -> dict[str, dict[str, dict[str, float | str]]]:
    """Returns by loss, split and system the relative error of the gradient against that system's own 1 x 32.

    Its own 1 x 32 is compared with the gradient of the mean as the loss defines it.
    """
    gradients = {split: cases for each in found for split, cases in each["gradients"].items()}
    errors: dict[str, dict[str, dict[str, float | str]]] = {}
    for split, cases in gradients.items():
        whole = gradients[SHORT if "last step" in split else WHOLE]
        for case, systems in cases.items():
            row = errors.setdefault(case, {}).setdefault(split, {})
            for system, gradient in systems.items():
                if system == "direct":
                    continue
                reference = whole[case][system]
                if split in (WHOLE, SHORT):
                    if "direct" not in systems:
                        continue
                    reference = systems["direct"]
                row[system] = relative(gradient, reference)
    return errors


def scored_rows(found: dict[int, list[Any]], gathered: tuple[str, ...]) -> list[dict[str, Any]]:
    """Returns by number of rows and world size how many rows each system scored, how often, and its loss's error.

    Args:
        found: By world size, what each rank found.
        gathered: The systems whose every rank already has the rows of all.
    """
    rows = []
    for number in found[1][0]["evaluations"]:
        for ranks, each in found.items():
            row: dict[str, Any] = {"rows": int(number), "ranks": ranks}
            for system, first in each[0]["evaluations"][number].items():
                parts = [rank["evaluations"][number][system] for rank in each]
                if any(isinstance(part, str) for part in parts):
                    row[system] = next(part for part in parts if isinstance(part, str))
                    continue
                scored = first["rows"] if system in gathered else [r for part in parts for r in part["rows"]]
                alone = found[1][0]["evaluations"][number][system]["loss"]
                row[system] = {
                    "scored": len(scored),
                    "distinct": len(set(scored)),
                    "loss_error": abs(first["loss"] / alone - 1),
                }
            rows.append(row)
    return rows


def draw_figures(found: list[Any]) -> list[dict[str, Any]]:
    """Returns for weighted draws on two ranks the share of rare rows, and the rows drawn twice where none should be."""
    rows = []
    for system in found[0]["draws"]["True"]:
        row: dict[str, Any] = {"system": system}
        for replacement in ("True", "False"):
            parts = [rank["draws"][replacement][system] for rank in found]
            if any(isinstance(part, str) for part in parts):
                row[replacement] = next(part for part in parts if isinstance(part, str))
                continue
            drawn = [r for part in parts for r in part]
            share = sum(r < RARE for r in drawn) / len(drawn)
            row[replacement] = {"draws": len(drawn), "rare": share, "duplicates": len(drawn) - len(set(drawn))}
        rows.append(row)
    return rows


def measure(quick: bool, folder: Path) -> dict[str, Any]:
    """Measures everything and returns the figures.

    Args:
        quick: Whether to take fewer losses, splits, numbers of rows and kill points.
        folder: For files.
    """
    make_model(folder / "model")
    splits = [WHOLE, "4 x 8", "2 ranks x 4 x 4"] if quick else [split.name for split in SPLITS]
    cases = ["class-weighted", "two tasks", "R-Drop, dropout 0.1"] if quick else [case.name for case in CASES]
    settings = {
        "splits": splits,
        "cases": cases,
        "num_rows": [5, 1] if quick else [5, 1, 11],
        "kill_at": [3, 4] if quick else list(range(1, 12)),
        "weights": [9.0] * RARE + [1.0] * (NUM_WEIGHTED - RARE),
        "num_draws": NUM_DRAWS,
    }
    timeout = 400 if quick else 1200
    found = {1: start(1, {**settings, "measure": ["gradients", "evaluations", "resumes"]}, folder, timeout)}
    found[2] = start(2, {**settings, "measure": ["gradients", "evaluations", "draws"]}, folder, timeout)
    if not quick:
        found[3] = start(3, {**settings, "measure": ["evaluations"]}, folder, timeout)
    return {
        "versions": {name: version(name) for name in PACKAGES},
        "gradients": gradient_errors([found[1][0], found[2][0]]),
        "evaluations": scored_rows(found, gathered=("lit_trainer", "Trainer")),
        "resumes": found[1][0]["resumes"],
        "draws": draw_figures(found[2]),
    }


def main(arguments: list[str] | None = None) -> None:
    """Measures, prints and writes.

    Args:
        arguments: Of the command line.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="take fewer losses, splits and kill points")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the tables")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(given.quick, Path(folder))
    tables = make_tables(figures)
    print_tables(tables)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "exactness.json").write_text(json.dumps(figures, indent=1) + "\n")
    write_markdown(tables, figures["versions"], given.out / "exactness.md")


def make_tables(figures: dict[str, Any]) -> list[Table]:
    """Returns the figures as tables to read."""
    expected = (NUM_WEIGHTED - RARE) / (NUM_WEIGHTED - RARE + 9 * RARE)
    return [
        Table.of_gradients(figures["gradients"], WHOLE, SHORT),
        Table.of_evaluations(figures["evaluations"]),
        Table.of_resumes(figures["resumes"]),
        Table.of_draws(figures["draws"], expected_share=1 - expected),
    ]


if __name__ == "__main__":
    main()
