"""What a SLURM job that was queued again goes on from."""

import logging
import os

from lit_trainer.runtime.checkpoint_files import newest_valid
from lit_trainer.runtime.checkpoint_paths import find_checkpoint
from lit_trainer.runtime.run_folder import folder_of_job

_log = logging.getLogger(__name__)

AUTO = "auto"


def is_auto(given: str | None) -> bool:
    """Tells whether a ``ckpt_path`` is ``auto`` or ``auto:PATH``."""
    return given is not None and given.partition(":")[0] == AUTO


def checkpoint_of_job(given: str, root: str | os.PathLike[str]) -> str | None:
    """Returns the newest checkpoint of this job, or else what stands after ``auto:``, or else None for a new beginning.

    Only files of this very job count, of which an interruption leaves a ``preempted-step=N.ckpt``, and only once it was
    queued again: neither a new job nor another element of its array picks them up.

    Args:
        given: ``auto``, or ``auto:`` and what `find_checkpoint` takes.
        root: Where the folders of runs are.

    Raises:
        ValueError: If there is no such checkpoint.
    """
    folder = folder_of_job(root)
    found = None if folder is None else newest_valid(folder / "checkpoints")
    if found is not None:
        _log.info("ckpt_path auto: this job goes on from %s", found)
        return str(found)
    otherwise = given.partition(":")[2]
    if otherwise:
        _log.info("ckpt_path auto: this job has no checkpoint yet, it starts from %s", otherwise)
        return find_checkpoint(otherwise, "last", root)
    _log.info("ckpt_path auto: this job has no checkpoint yet, training begins anew")
    return None
