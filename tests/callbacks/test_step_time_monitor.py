"""The step time monitor's shares add up, its numbers are those of the batches, and it says what to do."""

import logging
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor, nn

from lit_trainer.callbacks.step_time_monitor import StepTimeMonitor
from tests.callbacks.tiny_task import QUIET
from tests.callbacks.two_ranks import run_on_two_ranks

SHARES = ("data", "forward", "backward", "optimizer", "communication", "rest")


class Sleeper(pl.LightningModule):
    """Does nothing, for as long as it is told, in each part of a step."""

    def __init__(self, forward: float = 0.0, optimizer: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.forward_seconds, self.optimizer_seconds = forward, optimizer

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        time.sleep(self.forward_seconds)
        return (self.weight * batch["attention_mask"]).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        module = self

        class Slow(torch.optim.SGD):
            def step(self, closure: Any = None) -> Any:
                loss = closure()
                time.sleep(module.optimizer_seconds)
                return loss

        return Slow(self.parameters(), lr=0.1)


class Loader:
    """Rows of 2 and 6 tokens, and one that only fills up, each batch after a while."""

    def __init__(self, num_batches: int, seconds: float = 0.0, filler: bool = True) -> None:
        self.num_batches, self.seconds = num_batches, seconds
        mask = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0]])
        rows = torch.tensor([0, 1, -1])
        kept = slice(0, 3 if filler else 2)
        self.batch = {"attention_mask": mask[kept], "row": rows[kept]}

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Any:
        for _ in range(self.num_batches):
            time.sleep(self.seconds)
            yield dict(self.batch)


class Recorder(DummyLogger):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.lines.append({**metrics, "step": step})


def run(
    monitor: StepTimeMonitor, module: pl.LightningModule, loader: Loader, folder: Path, **settings: Any
) -> list[dict[str, float]]:
    """Trains and returns the lines that were logged."""
    logger = Recorder()
    trainer = pl.Trainer(
        **{**QUIET, "max_epochs": 1, "log_every_n_steps": 5, "enable_checkpointing": False, **settings},
        default_root_dir=folder,
        logger=logger,
        callbacks=[monitor],
    )
    trainer.fit(module, loader)
    return logger.lines


@pytest.fixture(autouse=True)
def _our_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="lit_trainer")


def test_shares_add_up_to_one_and_are_where_the_time_went(tmp_path: Path) -> None:
    monitor = StepTimeMonitor()
    module = Sleeper(forward=0.006, optimizer=0.003)
    lines = run(monitor, module, Loader(15, seconds=0.003), tmp_path)
    assert monitor.figures is not None
    shares = monitor.figures.time_shares
    assert sum(shares.values()) == pytest.approx(1)
    assert set(shares) == set(SHARES)
    steps = monitor.figures.steps
    assert monitor.figures.forward >= 0.006 * steps
    assert monitor.figures.optimizer >= 0.003 * steps
    assert monitor.figures.data >= 0.003 * steps
    assert shares["communication"] == 0
    assert [line["step"] for line in lines] == [4, 9, 14]
    for line in lines:
        assert sum(line[f"time_share/{name}"] for name in SHARES) == pytest.approx(1)
        assert line["memory/peak_mib"] > 100


def test_slow_data_gives_the_advice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(StepTimeMonitor(), Sleeper(forward=0.001), Loader(15, seconds=0.006), tmp_path)
    advice = [record.message for record in caplog.records if record.message.startswith("advice: ")]
    assert any("of the time goes into waiting for data: raise data.num_workers (now 0)" in line for line in advice)
    assert any("of the computed tokens are padding: set data.padding to auto" in line for line in advice)


def test_what_persists_is_said_once_and_not_only_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    steps: list[int] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "waiting for data" in record.getMessage():
                steps.append(module.trainer.global_step)

    module, listener = Sleeper(), Listener()
    logger = logging.getLogger("lit_trainer")
    logger.addHandler(listener)
    try:
        run(StepTimeMonitor(), module, Loader(60, seconds=0.003), tmp_path, log_every_n_steps=10)
    finally:
        logger.removeHandler(listener)
    assert steps == [40]  # ten warm steps less one, and three windows of ten


def test_nothing_is_advised_where_all_is_well_or_it_is_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(StepTimeMonitor(advise=False), Sleeper(), Loader(15, seconds=0.004), tmp_path)
    assert "advice" not in caplog.text
    assert "ms a step (" in caplog.text


@pytest.mark.parametrize("accumulate", [1, 2])
def test_numbers_are_those_of_the_batches(tmp_path: Path, accumulate: int) -> None:
    monitor = StepTimeMonitor(advise=False)
    lines = run(monitor, Sleeper(), Loader(12 * accumulate), tmp_path, accumulate_grad_batches=accumulate)
    figures = monitor.figures
    assert figures is not None
    steps = 11  # the first is not counted
    assert figures.steps == steps
    assert figures.samples == 2 * steps * accumulate
    assert figures.tokens == 8 * steps * accumulate
    assert figures.slots == 18 * steps * accumulate
    assert figures.padding == pytest.approx(10 / 18)
    last = lines[-1]
    assert last["throughput/padding_share"] == pytest.approx(10 / 18)
    ratio = last["throughput/tokens_per_second"] / last["throughput/samples_per_second"]
    assert ratio == pytest.approx(4)


def test_evaluations_count_for_nothing(tmp_path: Path) -> None:
    class Evaluated(Sleeper):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            time.sleep(0.1)

    module, monitor = Evaluated(), StepTimeMonitor(advise=False)
    trainer = pl.Trainer(
        **{**QUIET, "enable_checkpointing": False, "max_epochs": 2, "val_check_interval": 5},
        callbacks=[monitor],
        logger=False,
        default_root_dir=tmp_path,
    )
    started = time.perf_counter()
    trainer.fit(module, Loader(10), Loader(4))
    assert time.perf_counter() - started > 1.5
    assert monitor.figures is not None
    assert monitor.figures.steps == 19
    assert monitor.figures.seconds < 0.5


def test_one_step_and_no_step_say_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(StepTimeMonitor(), Sleeper(), Loader(1), tmp_path, log_every_n_steps=1)
    run(StepTimeMonitor(), Sleeper(), Loader(5), tmp_path, max_steps=0, log_every_n_steps=1)
    assert "a step" not in caplog.text


def test_a_second_run_begins_anew_and_leaves_lightning_as_it_was(tmp_path: Path) -> None:
    monitor = StepTimeMonitor(advise=False)
    for _ in range(2):
        module = Sleeper()
        run(monitor, module, Loader(6), tmp_path)
        assert monitor.figures is not None
        assert monitor.figures.steps == 5
        assert "_on_before_fetch" not in vars(module.trainer.fit_loop.epoch_loop)
        assert not module.trainer.optimizers[0]._optimizer_step_post_hooks


def test_a_batch_without_tokens_has_rows_alone(tmp_path: Path) -> None:
    class Plain(Sleeper):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return (self.weight * batch["x"]).sum()

    loader = Loader(6)
    loader.batch = {"x": torch.ones(4, 3)}
    monitor = StepTimeMonitor()
    lines = run(monitor, Plain(), loader, tmp_path)
    assert monitor.figures is not None
    assert monitor.figures.samples == 20
    assert "throughput/samples_per_second" in lines[-1]
    assert "throughput/tokens_per_second" not in lines[-1]


def test_utilisation_is_the_share_of_a_peak_that_is_given(tmp_path: Path) -> None:
    lines = run(StepTimeMonitor(peak_tflops=1e-6), Sleeper(), Loader(6), tmp_path)
    one = lines[-1]
    assert one["throughput/model_flops_utilisation"] == pytest.approx(one["throughput/model_tflops"] / 1e-6)
    assert "throughput/model_flops_utilisation" not in run(StepTimeMonitor(), Sleeper(), Loader(6), tmp_path)[-1]


def test_it_costs_at_most_one_percent_of_a_step_of_30_milliseconds(tmp_path: Path) -> None:
    spent = 0.0

    class Timed(StepTimeMonitor):
        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            if not name.startswith(("on_train_batch", "on_before", "on_after", "_after_optimizer")):
                return found

            def timed(*args: Any, **kwargs: Any) -> None:
                nonlocal spent
                before = time.thread_time()
                found(*args, **kwargs)
                spent += time.thread_time() - before

            return timed

    run(Timed(advise=False), Sleeper(), Loader(200), tmp_path, log_every_n_steps=10)
    assert spent / 200 < 0.01 * 0.030


def test_a_peak_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="peak_tflops must be above 0, not 0"):
        StepTimeMonitor(peak_tflops=0)


@pytest.mark.slow
def test_two_ranks_are_counted_together_and_a_slow_one_shows_as_communication(tmp_path: Path) -> None:
    code = f"""
import torch, time
import lightning.pytorch as pl
from lit_trainer.callbacks.step_time_monitor import StepTimeMonitor
from tests.callbacks.test_step_time_monitor import Loader, Sleeper
from tests.callbacks.tiny_task import QUIET

class Uneven(Sleeper):
    def training_step(self, batch, batch_idx):
        time.sleep(0.03 * self.global_rank)
        return super().training_step(batch, batch_idx)

monitor = StepTimeMonitor(advise=False)
settings = {{**QUIET, "devices": 2, "strategy": "ddp", "max_epochs": 1, "logger": False, "log_every_n_steps": 4}}
trainer = pl.Trainer(
    **settings,
    enable_checkpointing=False,
    use_distributed_sampler=False,
    accumulate_grad_batches=2,
    callbacks=[monitor],
    default_root_dir={str(tmp_path)!r},
)
trainer.fit(Uneven(), Loader(24))
found = monitor.figures
print(found.ranks, found.steps, found.samples, found.tokens, round(sum(found.time_shares.values()), 9),
      found.time_shares["communication"] > 0.1)
"""
    assert [output.split() for output in run_on_two_ranks(code, tmp_path)] == [
        ["2.0", "22.0", "88.0", "352.0", "1.0", "True"]
    ] * 2
