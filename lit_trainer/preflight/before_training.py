"""The pre-flight that a command makes by itself where it has several ranks: it ends in seconds what could not train."""

import logging
import os
import sys
import time
from collections.abc import Iterable

from lit_trainer.preflight.examination import ToldByRankZeroError, among_ranks, on_machine
from lit_trainer.preflight.findings import Finding
from lit_trainer.preflight.intended_run import IntendedRun
from lit_trainer.preflight.job import job
from lit_trainer.preflight.launch import find_launch

_log = logging.getLogger(__name__)

SECONDS_TO_TELL = 2.0
"""How long the others wait for rank 0 to say what is wrong: SLURM ends all once one of them has."""


class PreflightError(ValueError):
    """Says what keeps ranks from training, in a line for each thing that does."""


def check_job(run: IntendedRun) -> None:
    """Compares a SLURM job with the Trainer's settings, before there is a Trainer.

    Args:
        run: The run that is intended.

    Raises:
        PreflightError: If training would not begin, or never end.
    """
    _raise_wrong(job(run.devices, run.num_nodes, uses_gpus=run.uses_gpus))


def check_ranks(run: IntendedRun, seconds: float) -> None:
    """Looks at the machine and has the ranks meet, just before training has them meet.

    Args:
        run: The run that is intended.
        seconds: How long ranks wait for one another.

    Raises:
        PreflightError: If something is wrong.
    """
    launch = find_launch(run.num_nodes)
    found: list[Finding] = []
    if launch is None or launch.local_rank == 0:
        found.extend(on_machine(run, touches_gpus=False))
    if launch is not None:
        try:
            found.extend(among_ranks(run, seconds, found, launch))
        except ToldByRankZeroError:
            time.sleep(SECONDS_TO_TELL)
            sys.exit(2)
    _raise_wrong(found)
    for finding in found:
        if finding.kind == "look":
            _log.warning("pre-flight: %s", finding.text)
    if launch is not None and launch.rank == 0:
        _log.info("Pre-flight: %s", "; ".join(finding.text for finding in found[-2:] if finding.kind == "ok"))


def has_several_ranks(run: IntendedRun) -> bool:
    """Tells whether there is anything to look at: one process alone has nobody to differ from or to wait for.

    Args:
        run: The run that is intended.
    """
    if find_launch(run.num_nodes) is not None:
        return True
    is_child = "LOCAL_RANK" in os.environ  # of a process of Lightning's, which has looked
    return (run.devices or 1) * (run.num_nodes or 1) > 1 and not is_child


def _raise_wrong(found: Iterable[Finding]) -> None:
    wrong = [finding.text for finding in found if finding.kind == "wrong"]
    if wrong:
        lines = (
            "\n- ".join(["this keeps ranks from training:", *wrong]) if len(wrong) > 1 else f"pre-flight: {wrong[0]}"
        )
        raise PreflightError(lines)
