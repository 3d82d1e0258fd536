"""A run that is asked to end does so between two steps, and goes on as if nothing had been."""

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from lit_trainer import signals, slurm
from lit_trainer.callbacks.best_checkpoint import BestCheckpoint
from lit_trainer.callbacks.evaluation_schedule import EvaluationSchedule
from lit_trainer.callbacks.last_checkpoint import LastCheckpoint
from lit_trainer.callbacks.preemption import Preempted, Preemption
from tests.callbacks.tiny_task import TinyData, TinyTask, make_trainer
from tests.callbacks.two_ranks import run_on_two_ranks

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")

ENDS: dict[str, dict[str, int]] = {"steps": {"max_steps": 10, "max_epochs": -1}, "epochs": {"max_epochs": 2}}


class At(pl.Callback):
    """Sends this process a signal the n-th time that a hook is called."""

    def __init__(self, hook: str, count: int, signum: int = signal.SIGTERM) -> None:
        self.calls = 0

        def send(*args: Any, **kwargs: Any) -> None:
            self.calls += 1
            if self.calls == count:
                os.kill(os.getpid(), signum)

        setattr(self, hook, send)


@pytest.fixture
def run(tiny_bert: Path, tmp_path: Path) -> Callable[..., tuple[TinyTask, pl.Trainer]]:
    def run(
        name: str, *callbacks: pl.Callback, ckpt_path: Path | None = None, evaluate: int = 3, **kwargs: Any
    ) -> tuple[TinyTask, pl.Trainer]:
        trainer = make_trainer(
            tmp_path / name,
            [
                Preemption(),
                EvaluationSchedule(every_n_steps=evaluate),
                BestCheckpoint("val/loss", "min"),
                LastCheckpoint(every_n_steps=100),
                *callbacks,
            ],
            **{"accumulate_grad_batches": 2, **({} if "max_epochs" in kwargs else ENDS["steps"]), **kwargs},
        )
        task = TinyTask(tiny_bert)
        try:
            trainer.fit(task, TinyData(tiny_bert), ckpt_path=ckpt_path)
        finally:
            run.task = task  # type: ignore[attr-defined]
        return task, trainer

    return run


def preempted(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").glob("preempted-*.ckpt"))


def same(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize(
    ("end", "hook", "count"),
    [
        *[("steps", "on_train_batch_start", count) for count in (1, 6, 20)],
        *[("steps", "on_validation_batch_start", count) for count in (1, 12)],
        *[("steps", "on_validation_end", count) for count in (1, 4)],
        *[("epochs", "on_train_batch_start", count) for count in (12, 13)],
        *[("epochs", "on_validation_batch_start", count) for count in (4, 12)],
        ("epochs", "on_train_epoch_end", 1),
    ],
)
def test_a_resumed_run_is_that_never_interrupted(run, tmp_path, end, hook, count) -> None:
    whole, trainer = run("whole", **ENDS[end])
    with pytest.raises(Preempted) as raised:
        run("cut", At(hook, count), **ENDS[end])
    assert raised.value.code == 143
    first = run.task
    (file,) = preempted(tmp_path / "cut")
    resumed, again = run("cut", ckpt_path=file, **ENDS[end])
    assert same(whole, resumed)
    assert again.global_step == trainer.global_step
    evaluated = first.evaluated_steps + resumed.evaluated_steps
    assert sorted(set(evaluated)) == whole.evaluated_steps
    assert len(evaluated) <= len(whole.evaluated_steps) + 1, "one begun twice, after a signal at its very end"
    assert first.trained_rows + resumed.trained_rows == whole.trained_rows
    assert not preempted(tmp_path / "cut"), "a finished run needs them no more"


@pytest.mark.parametrize("hook", ["setup", "on_fit_start", "on_train_start", "on_sanity_check_start"])
def test_before_training_there_is_nothing_to_save(run, tmp_path, hook) -> None:
    with pytest.raises(Preempted):
        run("cut", At(hook, 1), num_sanity_val_steps=1)
    assert not preempted(tmp_path / "cut")
    assert not run.task.trained_rows


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138)], ids=lambda s: str(s)
)
def test_the_exit_code_says_which_signal_it_was(run, tmp_path, signum, code) -> None:
    with pytest.raises(Preempted) as raised:
        run("cut", At("on_train_batch_start", 3, signum))
    assert raised.value.code == code
    assert [file.name for file in preempted(tmp_path / "cut")] == ["preempted-step=2.ckpt"]


def test_signals_are_given_back(run) -> None:
    before = {signum: signal.getsignal(signum) for signum in signals.SIGNALS}
    with pytest.raises(Preempted):
        run("cut", At("on_train_batch_start", 3))
    assert {signum: signal.getsignal(signum) for signum in signals.SIGNALS} == before
    run("whole")
    assert {signum: signal.getsignal(signum) for signum in signals.SIGNALS} == before


def test_a_run_interrupted_twice_keeps_the_newer_checkpoint(run, tmp_path) -> None:
    whole, _ = run("whole")
    with pytest.raises(Preempted):
        run("cut", At("on_train_batch_start", 3))
    with pytest.raises(Preempted):
        run("cut", At("on_train_batch_start", 6), ckpt_path=preempted(tmp_path / "cut")[0])
    (file,) = preempted(tmp_path / "cut")
    assert file.name == "preempted-step=5.ckpt"
    resumed, _ = run("cut", ckpt_path=file)
    assert same(whole, resumed)


def test_an_evaluation_interrupted_twice_is_begun_again(run, tmp_path) -> None:
    whole, _ = run("whole")
    with pytest.raises(Preempted):
        run("cut", At("on_validation_batch_start", 1))
    with pytest.raises(Preempted):
        run("cut", At("on_validation_batch_start", 2), ckpt_path=preempted(tmp_path / "cut")[0])
    resumed, _ = run("cut", ckpt_path=preempted(tmp_path / "cut")[0])
    assert same(whole, resumed)
    assert resumed.evaluated_steps == whole.evaluated_steps


def test_the_schedule_of_the_trainer_itself_works_too(run, tiny_bert, tmp_path) -> None:
    def fit(name: str, *callbacks: pl.Callback, ckpt_path: Path | None = None) -> TinyTask:
        trainer = make_trainer(tmp_path / name, [Preemption(), *callbacks], max_epochs=2, val_check_interval=4)
        task = fit.task = TinyTask(tiny_bert)  # type: ignore[attr-defined]
        trainer.fit(task, TinyData(tiny_bert), ckpt_path=ckpt_path)
        return task

    whole = fit("whole")
    with pytest.raises(Preempted):
        fit("cut", At("on_validation_batch_start", 5))
    first = fit.task  # type: ignore[attr-defined]
    resumed = fit("cut", ckpt_path=preempted(tmp_path / "cut")[0])
    assert same(whole, resumed)
    assert first.evaluated_steps + resumed.evaluated_steps == whole.evaluated_steps


def test_the_metrics_of_the_last_step_are_logged(run, tmp_path) -> None:
    logger = CSVLogger(tmp_path, name="", version="")
    with pytest.raises(Preempted):
        run("cut", At("on_train_batch_start", 8), logger=logger, max_steps=10, max_epochs=-1)
    with (Path(logger.log_dir) / "metrics.csv").open(newline="") as file:
        assert [row["step"] for row in csv.DictReader(file) if row["train/loss"]] == ["0", "1", "2", "3"]


def test_a_test_is_ended_with_nothing_saved(run, tmp_path, tiny_bert) -> None:
    task, _ = run("whole")
    trainer = make_trainer(tmp_path / "test", [Preemption(), At("on_test_batch_start", 2)])
    with pytest.raises(Preempted):
        trainer.test(task, TinyData(tiny_bert))
    assert not list((tmp_path / "test").rglob("*.ckpt"))


def test_a_dry_run_leaves_nothing(run, tmp_path) -> None:
    with pytest.raises(Preempted):
        run("cut", At("on_train_batch_start", 1), fast_dev_run=2)
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every_n_steps": 0}, "every_n_steps is 0 but must be at least 1 .Preemption."),
        ({"max_wait_seconds": -1.0}, "max_wait_seconds is -1 but must not be negative .Preemption."),
        ({"max_wait_seconds": float("nan")}, "max_wait_seconds is nan but"),
    ],
)
def test_a_setting_out_of_range_is_named(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        Preemption(**settings)


# -- in a job ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Pretends to be element 3 of a job array; returns the jobs that are queued again."""
    for name, value in {"JOB_ID": "17", "JOB_NAME": "fit", "ARRAY_JOB_ID": "12", "ARRAY_TASK_ID": "3"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    queued: list[str] = []

    def requeue(job: str) -> None:
        queued.append(job)
        os.kill(os.getpid(), signal.SIGTERM)  # as SLURM does then

    monkeypatch.setattr(slurm, "requeue", requeue)
    return queued


def test_the_warning_before_an_end_has_an_array_element_queued_again_by_its_own_id(run, tmp_path, job) -> None:
    with pytest.raises(Preempted) as raised:
        run("cut", At("on_train_batch_start", 3, signal.SIGUSR1))
    assert raised.value.code == 138
    assert job == ["12_3"]
    assert preempted(tmp_path / "cut")


def test_a_job_that_is_to_end_waits_to_be_killed_and_queues_nothing(run, tmp_path, job, monkeypatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("lit_trainer.callbacks.preemption.time.sleep", waits.append)
    monkeypatch.setattr("lit_trainer.callbacks.preemption.time.monotonic", lambda: 10.0 * len(waits))
    with pytest.raises(Preempted) as raised:
        run("cut", At("on_train_batch_start", 3, signal.SIGTERM))
    assert raised.value.code == 143
    assert not job
    assert len(waits) == 360


def test_a_job_that_cannot_be_queued_again_says_how_to_go_on(run, tmp_path, job, monkeypatch, caplog) -> None:
    monkeypatch.setattr(slurm, "requeue", lambda job: "slurm_requeue error: Requested operation is disabled")
    with pytest.raises(Preempted) as raised:
        run("cut", At("on_train_batch_start", 3, signal.SIGUSR1))
    assert raised.value.code == 138
    assert "job 12_3 could not be queued again: slurm_requeue error" in caplog.text
    assert f"Submit it anew with ckpt_path {tmp_path / 'cut'}" in caplog.text


# -- two ranks ---------------------------------------------------------------------------------------------------------

TWO_RANKS = """
import os, signal
from pathlib import Path
import lightning.pytorch as pl
from lit_trainer.callbacks.preemption import Preempted, Preemption
from tests.callbacks.tiny_task import TinyData, TinyTask, make_trainer

class Task(TinyTask):
    def training_step(self, batch, batch_idx):
        if batch_idx == 5 and self.trainer.global_rank == {rank}:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().training_step(batch, batch_idx)

trainer = make_trainer(
    "run", [Preemption()], devices=2, strategy="ddp", max_epochs=1, use_distributed_sampler=False, limit_val_batches=0
)
try:
    trainer.fit(Task(Path({folder!r})), TinyData())
except Preempted as end:
    print(f"RESULT {{trainer.global_step}} {{end.code}}", flush=True)
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_any_one_rank_ends_both_at_the_same_step(tiny_bert, tmp_path, rank) -> None:
    """Lightning #20806: one to rank 1 hangs."""
    first, second = run_on_two_ranks(TWO_RANKS.format(rank=rank, folder=str(tiny_bert)), tmp_path)
    assert "RESULT 6 143" in first
    assert "RESULT 6 0" in second, "the exit code is that of rank zero"
    assert [path.name for path in tmp_path.rglob("*.ckpt")] == ["preempted-step=6.ckpt"]


@pytest.mark.slow
def test_random_trials_neither_hang_nor_lose_anything() -> None:
    trials = Path(__file__).parents[2] / "benchmarks" / "preemption_trials.py"
    done = subprocess.run([sys.executable, str(trials), "--trials", "10"], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]
    assert "| all |  | 10 | 0 | 0 |" in done.stdout
