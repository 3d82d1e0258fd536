"""The command ``doctor``: says in a few seconds what is wrong with a machine, or with the job it runs in."""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from lit_trainer.preflight.before_training import SECONDS_TO_TELL
from lit_trainer.preflight.collectives import GPUsNotMetError
from lit_trainer.preflight.examination import ToldByRankZeroError, among_ranks, on_machine
from lit_trainer.preflight.findings import Finding
from lit_trainer.preflight.intended_run import IntendedRun
from lit_trainer.preflight.launch import Launch, find_launch
from lit_trainer.preflight.sameness import host

RUNS = ("fit", "validate", "test", "predict")
_EPILOG = """In a job, start it like training. For example:
  lit-trainer doctor
  lit-trainer doctor fit --config configs/recipes/sms_spam_minilm.yaml
  srun lit-trainer doctor fit --config FILE --trainer.devices 8 --trainer.num_nodes 2
"""


def main(args: Sequence[str]) -> None:
    """Prints one line for each finding, and exits with 1 if one of them is wrong.

    Args:
        args: What follows ``doctor`` on the command line.

    Raises:
        ValueError: For a mistake in the settings of the command that is to be looked at.
    """
    options = _parser().parse_args(list(args))
    run = _intended(options)
    launch = find_launch(run.num_nodes)
    where = f"{host()}: " if launch is not None else ""
    is_wrong = False
    try:
        for finding in examine(run, launch, options.seconds):
            # Each node speaks for itself, in one voice; that all is well one rank may say for all.
            if launch is None or launch.rank == 0 or (launch.local_rank == 0 and finding.kind != "ok"):
                print(f"{finding.kind:6}{where}{finding.text}", flush=True)
            is_wrong |= finding.kind == "wrong"
    except GPUsNotMetError as error:  # a thread of NCCL's hangs, which nothing but this ends
        print(f"wrong {where}{error}", flush=True)
        os._exit(1)
    except ToldByRankZeroError:
        time.sleep(SECONDS_TO_TELL)
        is_wrong = True
    if is_wrong:
        sys.exit(1)


def examine(run: IntendedRun, launch: Launch | None = None, seconds: float = 60.0) -> Iterator[Finding]:
    """Yields all findings, the quick ones first.

    Args:
        run: The run that is intended.
        launch: This process among those that it was started with.
        seconds: How long ranks wait for one another.
    """
    found = []
    for finding in on_machine(run):
        found.append(finding)
        yield finding
    if launch is not None:
        yield from among_ranks(run, seconds, found, launch, with_gpus=_has_gpus(run))


def _has_gpus(run: IntendedRun) -> bool:
    import torch

    return run.uses_gpus is not False and torch.cuda.is_available() and torch.distributed.is_nccl_available()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lit-trainer doctor",
        usage="lit-trainer doctor [OPTION ...] [fit --config FILE ...]",
        description="Says what is wrong with this machine, or job, for training, or for the command that follows.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--folder", help="where runs are to be written (runs)")
    add("--devices", type=int, help="the trainer.devices that training is to have")
    add("--num_nodes", type=int, help="the trainer.num_nodes that training is to have")
    add("--seconds", type=float, default=60.0, help="how long ranks wait for one another (60)")
    add("command", nargs="?", choices=RUNS, metavar="COMMAND", help=f"one of {', '.join(RUNS)}: what is to run")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="what follows it")
    return parser


def _intended(options: argparse.Namespace) -> IntendedRun:
    """Returns what is to run, from the settings of a command if one is given."""
    run = IntendedRun()
    if options.command is not None:
        sys.path.append(str(Path.cwd()))
        from lit_trainer.training_cli import SettingsOnly

        run = IntendedRun.of_settings(SettingsOnly(options.command, options.arguments).settings())
    return replace(
        run,
        folder=run.folder if options.folder is None else Path(options.folder),
        devices=run.devices if options.devices is None else options.devices,
        num_nodes=run.num_nodes if options.num_nodes is None else options.num_nodes,
    )
