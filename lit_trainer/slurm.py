"""What a process knows of the SLURM job it runs in, and the one thing it asks for: to be queued again."""

import os
import subprocess
from collections.abc import Mapping, MutableMapping

NAMES_OF_SESSIONS = ("bash", "interactive")
"""Names of jobs in which somebody works by hand. Lightning does not take these for jobs either."""


def job_id(environment: Mapping[str, str] = os.environ) -> str | None:
    """Returns the id of the batch job, that of its own for an element of an array, or None outside of any.

    Args:
        environment: Variables, for instance ``SLURM_JOB_ID``.
    """
    job = environment.get("SLURM_JOB_ID")
    if job is None or environment.get("SLURM_JOB_NAME") in NAMES_OF_SESSIONS:
        return None
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else job


def requeue(job: str) -> str | None:
    """Asks SLURM to queue a job again and returns what went wrong, or None.

    Args:
        job: Its id.
    """
    try:
        done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return "there is no scontrol on this node (a container needs SLURM's commands and /etc/slurm inside)"
    except subprocess.TimeoutExpired:
        return "scontrol requeue did not answer within a minute"
    return None if done.returncode == 0 else " ".join((done.stderr or done.stdout).split())


def name_run_after_job(environment: MutableMapping[str, str] = os.environ) -> None:
    """Has Weights & Biases continue the same run when a job is queued again, by an id made from the job's.

    Args:
        environment: Variables, to which ``WANDB_RUN_ID`` and ``WANDB_RESUME`` are added unless they are there.
    """
    job = job_id(environment)
    if job is not None:
        words = [environment.get("SLURM_CLUSTER_NAME", "slurm"), job, environment.get("SLURM_STEP_ID", "batch")]
        environment.setdefault("WANDB_RUN_ID", "-".join(words))
        environment.setdefault("WANDB_RESUME", "allow")
