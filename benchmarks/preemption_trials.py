"""Interrupts runs on two ranks by random signals at random moments and counts what went wrong.

    python benchmarks/preemption_trials.py --trials 50 --out benchmarks/results/preemption.md

Each trial trains a tiny model by ``lit-trainer fit`` on two processes (gloo), sends one of SIGTERM, SIGUSR1 and SIGINT
to rank 0, to rank 1, to both or to all their processes with those that load data, at a moment drawn evenly from its
begin to a little after its training, and resumes it from what is left. A trial is a hang if a rank outlives a minute,
and a loss if steps were trained and no checkpoint says so, or if weights or optimizer end in any bit unlike those of a
run never interrupted.
"""

import argparse
import csv
import os
import random
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

import lit_trainer.callbacks.evaluation_schedule
import lit_trainer.callbacks.last_checkpoint
import lit_trainer.data.sources.csv
import lit_trainer.data.text
import lit_trainer.tasks.sequence_classification
import lit_trainer.training_cli  # noqa: F401  # imported once: each rank is forked off
from lit_trainer.cli import main

SECONDS = 60
SIGNALS = [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT]
TARGETS = ["rank 0", "rank 1", "both ranks", "all processes"]
VARIANTS: list[dict[str, Any]] = [
    {},
    {"trainer.accumulate_grad_batches": 2},
    {"data.num_workers": 1},
    {"trainer.max_steps": 17},
]
HEAD = """# Runs interrupted at random

`python benchmarks/preemption_trials.py --trials {number} --seed {seed}`: runs on two ranks, each interrupted by a
random signal at a random moment on either rank, on both or on all their processes, then resumed. A hang is a rank that
outlives a minute; a loss, weights or an optimizer that end in any bit unlike those of a run never interrupted, or an
exit code that is not the signal's.
"""
WORDS = [f"w{index}" for index in range(30)]


def write_recipe(folder: Path) -> Path:
    """Writes a tiny model, 300 texts and a recipe of 24 optimizer steps with five evaluations."""
    vocabulary = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=16, **special).save_pretrained(folder / "bert")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=16, **sizes)).save_pretrained(
        folder / "bert"
    )
    rng = random.Random(0)
    with (folder / "texts.csv").open("w", newline="") as file:
        rows = ((" ".join(rng.choices(WORDS, k=rng.randint(1, 12))), rng.choice("ab")) for _ in range(300))
        csv.writer(file).writerows([("text", "label"), *rows])
    source = {"class_path": "lit_trainer.data.sources.csv.CSVFile", "init_args": {"files": str(folder / "texts.csv")}}
    callbacks: list[dict[str, Any]] = [
        {
            "class_path": "lit_trainer.callbacks.evaluation_schedule.EvaluationSchedule",
            "init_args": {"every_n_steps": 5},
        },
        {"class_path": "lit_trainer.callbacks.last_checkpoint.LastCheckpoint", "init_args": {"every_n_steps": 7}},
    ]
    settings = {
        "model": {
            "class_path": "lit_trainer.tasks.sequence_classification.SequenceClassification",
            "init_args": {"pretrained": str(folder / "bert"), "optimizer": {"lr": 1e-3}},
        },
        "data": {
            "class_path": "lit_trainer.data.text.TextData",
            "init_args": {"source": source, "batch_size": 20, "eval_batch_size": 2, "max_length": 16},
        },
        "trainer": {
            "max_epochs": 2,
            "accelerator": "cpu",
            "devices": 2,
            "strategy": "ddp",
            "log_every_n_steps": 1,
            "num_sanity_val_steps": 1,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "callbacks": callbacks,
        },
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


class Ranks:
    """Two processes that run one command together.

    Args:
        args: What follows ``lit-trainer``.
        folder: Where they run, and write ``rank0.txt`` and ``rank1.txt``.
    """

    def __init__(self, args: list[str], folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.begun, self.begun_at = time.monotonic(), time.time()
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            port = server.getsockname()[1]
        self.pids = [self._fork(rank, port, args) for rank in range(2)]
        self.codes: dict[int, int] = {}

    def _fork(self, rank: int, port: int, args: list[str]) -> int:
        pid = os.fork()
        if pid:
            return pid
        os.setsid()
        os.chdir(self.folder)
        output = os.open(f"rank{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        os.environ |= {"WORLD_SIZE": "2", "NODE_RANK": "0", "LOCAL_RANK": str(rank)}
        # Not os._exit: the interpreter is to end as it does after a command, with all that may go wrong in it.
        try:
            sys.argv = ["lit-trainer", *args]
            main()
        except BaseException as error:
            if not isinstance(error, SystemExit):
                traceback.print_exc()
                raise _Ended(1) from error
            raise _Ended(error.code) from error
        raise _Ended(0)

    def wait(self) -> list[int] | None:
        """Returns the exit codes, or None after a minute, when what is left is killed."""
        while len(self.codes) < 2:
            for rank, pid in enumerate(self.pids):
                if rank not in self.codes:
                    done, status = os.waitpid(pid, os.WNOHANG)
                    if done:
                        self.codes[rank] = os.waitstatus_to_exitcode(status)
            if time.monotonic() > self.begun + SECONDS:
                for pid in self.pids:
                    with suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
                return None
            time.sleep(0.01)
        for pid in self.pids:  # workers of a process that was killed
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        return [self.codes[0], self.codes[1]]

    def send(self, signum: int, target: str) -> None:
        """Sends a signal to one of `TARGETS`."""
        ranks = {"rank 0": [0], "rank 1": [1]}.get(target, [0, 1])
        for rank in ranks:
            with suppress(ProcessLookupError):
                if target == "all processes":
                    os.killpg(self.pids[rank], signum)
                else:
                    os.kill(self.pids[rank], signum)

    def said(self) -> str:
        """Returns what both have written."""
        return "".join(f"--- rank {rank}\n" + (self.folder / f"rank{rank}.txt").read_text() for rank in range(2))


class _Ended(SystemExit):
    """Ends a forked rank from the bottom of the stack."""


def last_file(folder: Path) -> Path:
    """Returns the checkpoint that the newest run in a folder has ended with."""
    files = (folder / "runs").glob("version_*/checkpoints/last-step=*.ckpt")
    return max(files, key=lambda file: (int(re.findall(r"\d+", file.stem)[-1]), file.stat().st_mtime_ns))


def final_state(folder: Path) -> Any:
    """Returns what the newest run in a folder has ended with: step, weights and optimizer."""
    content = torch.load(last_file(folder), weights_only=True)
    return content["global_step"], content["state_dict"], content["optimizer_states"]


def until_trained(folder: Path, ranks: Ranks) -> float:
    """Returns the seconds that a run took to its last checkpoint, and some more for what comes then."""
    return 1.2 * (last_file(folder).stat().st_mtime - ranks.begun_at)


def equal(first: Any, second: Any) -> bool:
    """Compares nested containers of tensors bit by bit."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(equal, first, second))
    return bool(first == second)


def trial(
    folder: Path, args: list[str], seconds: float, whole: Any, rng: random.Random
) -> tuple[str, str, str, str, float]:
    """Interrupts and resumes one run.

    Returns:
        The signal, the target, where it ended, what went wrong, if anything, and the seconds from which to draw.
    """
    signum, target = rng.choice(SIGNALS), rng.choice(TARGETS)
    ranks = Ranks(args, folder)
    time.sleep(rng.uniform(0.02, seconds))
    ranks.send(signum, target)
    codes = ranks.wait()
    if codes == [0, 0]:  # a machine with other work becomes slower and faster
        seconds = until_trained(folder, ranks)
    said = ranks.said()
    saved = re.findall(r"saved (\S*preempted-step=\d+\.ckpt)", said)
    if codes is None:
        return signum.name, target, "?", "hang\n" + said, seconds
    fault = ""
    if codes[0] == 0:
        where = "after training"
    elif saved:
        state = torch.load(folder / saved[0], weights_only=True)["callbacks"]["Preemption"]
        where = "in an evaluation" if state["is_mid_evaluation"] else "in training"
    else:
        where = "before training"
        trained = list((folder / "runs").glob("*/metrics.csv"))
        if "fit ends with nothing" not in said and any("train/loss" in file.read_text() for file in trained):
            where = "after training"
    expected = {0, 128 + signum}
    if signum == signal.SIGINT and where in ("before training", "after training"):
        expected |= {130, -signal.SIGINT}  # nothing is to be saved then: an ordinary Ctrl-C, or a second one
    if codes[0] not in expected:
        fault = f"exit codes {codes} after {signum.name}\n{said}"
    if codes[0] != 0:
        found = list(folder.glob("runs/version_0/checkpoints/*.ckpt"))
        resumed = Ranks(args + (["--ckpt_path", "runs/version_0"] if found else []), folder)
        codes = resumed.wait()
        if codes is None:
            return signum.name, target, where, "hang of the resumed run\n" + resumed.said(), seconds
        if codes != [0, 0]:
            fault = fault or f"exit codes {codes} of the resumed run\n{resumed.said()}"
    if not fault and not equal(final_state(folder), whole):
        fault = "loss: another end than that of the run never interrupted\n" + said
    return signum.name, target, where, fault, seconds


def table(counts: Counter[tuple[str, str]], faults: Counter[tuple[tuple[str, str], str]]) -> str:
    """Returns trials by signal and where it ended them, with those that went wrong."""
    rows = [
        f"| {key[0]} | {key[1]} | {counts[key]} | {faults[key, 'hang']} | {faults[key, 'loss']} |"
        for key in sorted(counts)
    ]
    return "\n".join(["| signal | ended | trials | hangs | losses |", "|---|---|---|---|---|", *rows]) + "\n"


def run_trials(number: int, seed: int, out: Path | None) -> int:
    """Runs trials, prints a table of them, and returns how many went wrong."""
    rng = random.Random(seed)
    base = Path(tempfile.mkdtemp(prefix="preemption-"))
    recipe = write_recipe(base)
    references: dict[int, tuple[float, Any]] = {}
    counts: Counter[tuple[str, str]] = Counter()
    faults: Counter[tuple[tuple[str, str], str]] = Counter()
    for index in range(number):
        choice = index % len(VARIANTS)
        args = ["fit", "--config", str(recipe), *(f"--{key}={value}" for key, value in VARIANTS[choice].items())]
        if choice not in references:
            folder = base / f"whole{choice}"
            ranks = Ranks(args, folder)
            codes = ranks.wait()
            if codes != [0, 0]:
                sys.exit(f"the run that is not interrupted ended with {codes}\n{ranks.said()}")
            references[choice] = until_trained(folder, ranks), final_state(folder)
        folder = base / f"trial{index}"
        seconds, whole = references[choice]
        signum, target, where, fault, seconds = trial(folder, args, seconds, whole, rng)
        references[choice] = seconds, whole
        kind = "hang" if fault.startswith("hang") else "loss" if fault else "fine"
        print(f"{index + 1:3}  {signum:8} {target:14} {where:18} {VARIANTS[choice] or ''}  {kind}", flush=True)
        if fault:
            print(fault, flush=True)
        for key in ((signum, where), ("all", "")):
            counts[key] += 1
            faults[key, kind] += 1
        shutil.rmtree(folder)
    shutil.rmtree(base)
    print(f"\n{table(counts, faults)}", end="")
    if out is not None:
        out.write_text(f"{HEAD.format(number=number, seed=seed)}\n{table(counts, faults)}", encoding="utf-8")
    return faults[("all", ""), "hang"] + faults[("all", ""), "loss"]


def parse() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description="Interrupts runs on two ranks by random signals at random moments.")
    parser.add_argument("--trials", type=int, default=50, help="number of runs to interrupt (default 50)")
    parser.add_argument("--seed", type=int, default=0, help="what the signals, targets and moments follow from")
    parser.add_argument("--out", type=Path, help="a file for the table, in Markdown")
    return parser.parse_args()


if __name__ == "__main__":
    options = parse()
    sys.exit(1 if run_trials(options.trials, options.seed, options.out) else 0)
