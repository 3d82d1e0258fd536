"""The command ``submit``: a command as a job of SLURM, in a file that one can read."""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from string import Template

from lit_trainer.slurm import NAMES_OF_SESSIONS

RUNS = ("fit", "validate", "test", "predict")
ELEMENT = "{task}"
"""What stands for the number of an array's element in a command."""

_TEMPLATE = Path(__file__).with_name("slurm_job.sbatch")
_TIME = re.compile(r"(?:(\d+)-(\d+)(?::(\d+))?(?::(\d+))?|(?:(\d+):)?(\d+)(?::(\d+))?)$")
_USAGE = "lit-trainer submit --time TIME [--nodes N] [--gpus-per-node N] [OPTION ...] fit --config FILE ..."
_EPILOG = f"""Ranks, devices, nodes and --ckpt_path auto are set to fit the job. For example:
  lit-trainer submit --nodes 2 --gpus-per-node 8 --time 4:00:00 fit --config configs/recipes/imdb_bert.yaml
  lit-trainer submit --gpus-per-node 1 --time 30 --array 0-4 fit --config FILE --seed_everything '{ELEMENT}'
"""


def main(args: Sequence[str]) -> None:
    """Submits a job and prints its id, or with ``--dry-run`` prints its file.

    Args:
        args: What follows ``submit`` on the command line.

    Raises:
        ValueError: For a job that cannot work, or that SLURM does not accept.
    """
    options = _parser().parse_args(list(args))
    text = render(options)
    if options.dry_run:
        print(text, end="")
        return
    if shutil.which("sbatch") is None:
        raise ValueError("there is no sbatch here: submit on a login node of the cluster, or look with --dry-run")
    Path(options.output).parent.mkdir(parents=True, exist_ok=True)  # SLURM drops the log if it is missing
    done = subprocess.run(["sbatch", "--parsable"], input=text, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"sbatch does not accept the job: {' '.join(done.stderr.split())}")
    print(done.stdout.strip().partition(";")[0])


def render(options: argparse.Namespace) -> str:
    """Returns the file of a job.

    Args:
        options: The options of the command line.

    Raises:
        ValueError: If the job could not work.
    """
    gpus, tasks = options.gpus_per_node, options.tasks_per_node or options.gpus_per_node or 1
    _check(options, tasks)
    command = _command(options, tasks)
    more = [f"--gpus-per-node={gpus}"] if gpus else []
    more += [f"--{name}={getattr(options, name)}" for name in ("partition", "account", "qos", "mem", "array")
             if getattr(options, name)]  # fmt: skip
    more += options.sbatch
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        name=options.job_name or f"lit-{options.command}",
        nodes=options.nodes,
        tasks=tasks,
        cpus=options.cpus_per_task,
        threads=options.cpus_per_task,
        time=options.time,
        warning=options.warning_seconds,
        output=_output(options),
        more="\n".join(f"#SBATCH {line}" for line in more),
        setup="\n".join(options.setup),
        python=shlex.quote(options.python),
        command=" ".join(map(_quoted, command)),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lit-trainer submit",
        usage=_USAGE,
        description="Submits a command as a job of SLURM that survives being pre-empted and its time limit.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--time", required=True, help="time limit, as sbatch takes it; a job that needs longer goes on in the next")
    add("--nodes", type=int, default=1, help="number of nodes (1)")
    add("--gpus-per-node", type=int, default=0, help="GPUs of each node, with a process each (0)")
    add("--tasks-per-node", type=int, help="processes on each node (one for each GPU, or 1)")
    add("--cpus-per-task", type=int, default=4, help="cores of each process (4)")
    add("--mem", help="memory of each node, as sbatch takes it")
    add("--partition", help="partition")
    add("--account", help="account")
    add("--qos", help="quality of service")
    add("--array", help=f"numbers of a job array; {ELEMENT} in the command is that of its element")
    add("--job-name", help="name of the job (lit-fit)")
    add("--output", default="slurm/%x-%j.out", help="log (slurm/%%x-%%j.out)")
    add("--warning-seconds", type=int, default=120, help="how long before its end a job is warned, to save (120)")
    add(
        "--setup", action="append", default=[], help="a line to run before, such as 'module load cuda'; can be repeated"
    )
    add("--sbatch", action="append", default=[], help="one more option for sbatch, such as --sbatch=--constraint=h100")
    add("--python", default=sys.executable, help="the Python to run with (this one)")
    add("--dry-run", action="store_true", help="print the file instead of submitting it")
    add("command", choices=RUNS, metavar="COMMAND", help=f"one of {', '.join(RUNS)}")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="what follows it")
    return parser


def _check(options: argparse.Namespace, tasks: int) -> None:
    """Refuses what would fail or hang only after it has waited in the queue."""
    for name in ("nodes", "cpus_per_task", "warning_seconds", "tasks_per_node"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {value} but must be at least 1")
    gpus = options.gpus_per_node
    if gpus < 0:
        raise ValueError(f"--gpus-per-node is {gpus} but must not be negative")
    if gpus and tasks != gpus:
        raise ValueError(f"--tasks-per-node is {tasks} but --gpus-per-node {gpus}: each GPU needs a process of its own")
    if options.job_name in NAMES_OF_SESSIONS:
        raise ValueError(f"--job-name {options.job_name} is what Lightning takes for a session by hand; give another")
    seconds = _seconds(options.time)
    if seconds <= options.warning_seconds:
        raise ValueError(
            f"--time {options.time} is {seconds} s, which leaves nothing before the warning {options.warning_seconds} s"
            " before the end; give more time or a smaller --warning-seconds"
        )
    uses_element = any(ELEMENT in word for word in options.arguments)
    if uses_element and not options.array:
        raise ValueError(f"the command contains {ELEMENT}, the number of an array's element, but there is no --array")
    if options.array and not uses_element:
        raise ValueError(f"--array is {options.array} but all its elements would do the same: use {ELEMENT} somewhere")
    for option in options.sbatch:
        if not option.startswith("--"):
            raise ValueError(f"--sbatch is {option} but must be an option of sbatch, as in --sbatch=--constraint=h100")
        if re.match(r"--(signal|requeue|no-requeue|open-mode|ntasks)", option):
            raise ValueError(f"--sbatch {option} would undo what lets the job survive; leave it out")
    for file in _values(options.arguments, "--config") + _values(options.arguments, "-c"):
        if ELEMENT not in file and not Path(file).is_file() and "\n" not in file:
            raise ValueError(f"--config is {file}, but there is no such file")


def _command(options: argparse.Namespace, tasks: int) -> list[str]:
    """Returns the command with what follows from the job."""
    words = [options.command, *options.arguments]
    for setting, value, option in (
        ("--trainer.devices", tasks, "--gpus-per-node or --tasks-per-node"),
        ("--trainer.num_nodes", options.nodes, "--nodes"),
    ):
        given = _values(words, setting)
        if any(number != str(value) for number in given):
            raise ValueError(f"{setting} is {given[-1]} but the job has {value}; leave it out, {option} sets it")
        if not given:
            words += [setting, str(value)]
    if not options.gpus_per_node and not _values(words, "--trainer.accelerator"):
        words += ["--trainer.accelerator", "cpu"]
    if options.command == "fit":
        words = _resuming(words)
    return words


def _resuming(words: list[str]) -> list[str]:
    """Has a job that is queued again go on from its own checkpoint, and from the given one only the first time."""
    given = _values(words, "--ckpt_path")
    if not given:
        return [*words, "--ckpt_path", "auto"]
    if given[-1].partition(":")[0] == "auto":
        return words
    return [*words, "--ckpt_path", f"auto:{given[-1]}"]


def _quoted(word: str) -> str:
    """Returns a word as the shell is to read it."""
    return '"$SLURM_ARRAY_TASK_ID"'.join(shlex.quote(part) if part else "" for part in word.split(ELEMENT)) or "''"


def _values(words: Sequence[str], option: str) -> list[str]:
    """Returns the values that an option is given in a command."""
    pairs = zip(words, [*words[1:], ""], strict=False)  # of no words there are no pairs
    return [
        following if word == option else word.partition("=")[2]
        for word, following in pairs
        if word == option or word.startswith(f"{option}=")
    ]


def _output(options: argparse.Namespace) -> str:
    """Returns the place of the log: an element's own, as ``%j`` alone says too little of an array."""
    return str(options.output.replace("%j", "%A_%a") if options.array else options.output)


def _seconds(time: str) -> int:
    """Returns the seconds of a time limit: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS."""
    match = _TIME.match(time)
    if match is None:
        raise ValueError(f"--time is {time} but must be minutes, HH:MM:SS or D-HH:MM:SS")
    days, *long, hours, minutes, seconds = match.groups(default="0")
    if match[1] is not None:
        return (int(days) * 24 + int(long[0])) * 3600 + int(long[1]) * 60 + int(long[2])
    if match[7] is None:  # "30" is minutes, "10:20" is minutes and seconds
        return int(minutes) * 60 if match[5] is None else int(hours) * 60 + int(minutes)
    if match[5] is None:
        return int(minutes) * 60 + int(seconds)
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds)
