"""Shows how far a run is: optimizer steps, loss, rate and time left."""

import sys
import time
from typing import Any, Protocol

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from lit_trainer.callbacks.pace import Pace, clock


class _Display(Protocol):
    def show(self, what: str, done: int, total: int | None, text: str) -> None: ...
    def remark(self, text: str) -> None: ...
    def remove(self, what: str) -> None: ...
    def close(self) -> None: ...


class StepProgressBar(ProgressBar):
    """A progress bar in optimizer steps that costs next to nothing.

    It looks at the clock after each step and at anything on the device only when it redraws, and it has no thread of
    its own. Where the output is not a terminal, it prints a line now and then instead. Rate is that of training alone;
    the time left has evaluations in it.

    Args:
        refresh_seconds: From one redrawing to the next.
        line_seconds: From one line to the next where the output is not a terminal.
        metric: What to show of the training loss, under the name it is logged with.
    """

    def __init__(self, refresh_seconds: float = 0.5, line_seconds: float = 30.0, metric: str = "train/loss") -> None:
        super().__init__()
        self.refresh_seconds = refresh_seconds
        self.line_seconds = line_seconds
        self.metric = metric
        self.is_enabled = True
        self._display: _Display | None = None
        self._interval = refresh_seconds
        self._next = 0.0
        self._step = 0
        self._total: int | None = None
        self._pace = Pace(0)

    def enable(self) -> None:
        """Shows it again."""
        self.is_enabled = True

    def disable(self) -> None:
        """Shows nothing from here on, as on all ranks but the first."""
        self.is_enabled = False
        self._close()

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints above the bar, which stands in for standard output and error while it is shown."""
        if self.is_enabled:
            print(*args, **kwargs)

    # -- training ------------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begins to count."""
        total = getattr(pl_module, "num_steps_total", None)
        self._total = int(total) if total is not None and 0 < total < float("inf") else None
        self._step = trainer.global_step
        self._pace = Pace(self._step)
        self._open()
        self._draw_training(trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Redraws, if it is time."""
        if self._display is None or time.monotonic() < self._next or trainer.global_step == self._step:
            return
        self._draw_training(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draws the last step."""
        if self._display is not None:
            self._draw_training(trainer)
            self._display.remark(f"{self._pace.num_steps} steps in {clock(self._pace.seconds)}")
        self._close()

    def _draw_training(self, trainer: pl.Trainer) -> None:
        if self._display is None:
            return
        self._step = trainer.global_step
        self._pace.reach(self._step)
        loss = trainer.callback_metrics.get(self.metric)
        parts = [f"loss {float(loss):.4f}"] if loss is not None else []
        parts += [self._pace.rate, self._pace.left(self._total)]
        self._display.show("Training", self._step, self._total, "  ".join(filter(None, parts)))
        self._next = time.monotonic() + self._interval

    # -- evaluation and prediction -------------------------------------------------------------------------------------

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stops the clock of training."""
        self._open()
        self._pace.pause()

    def on_validation_batch_end(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """Redraws, if it is time."""
        batches = trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches
        self._draw_batches("Validation", args, kwargs, batches)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Says what the metric is that decides, and goes on with training."""
        if self._display is None:
            return
        self._display.remove("Validation")
        self._pace.resume()
        monitored = {str(name) for c in trainer.callbacks if (name := getattr(c, "monitor", None))}  # type: ignore[attr-defined]
        scores = [
            f"{name} {float(trainer.callback_metrics[name]):.4f}"
            for name in sorted(monitored)
            if name in trainer.callback_metrics
        ]
        if scores and not trainer.sanity_checking:
            self._display.remark(f"step {trainer.global_step}: {', '.join(scores)}")

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begins to count."""
        self._open()

    def on_test_batch_end(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """Redraws, if it is time."""
        self._draw_batches("Test", args, kwargs, trainer.num_test_batches)

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Makes room for the results."""
        self._close("Test")

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begins to count."""
        self._open()

    def on_predict_batch_end(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """Redraws, if it is time."""
        self._draw_batches("Prediction", args, kwargs, trainer.num_predict_batches)

    def _draw_batches(self, what: str, args: tuple[Any, ...], kwargs: dict[str, Any], batches: Any) -> None:
        if self._display is None or time.monotonic() < self._next:
            return
        _, _, _, batch_idx, *rest = args
        loader, sizes = int(rest[0] if rest else kwargs.get("dataloader_idx", 0)), list(batches)
        known = all(size != float("inf") for size in sizes)
        done = (int(sum(sizes[:loader])) if known else 0) + int(batch_idx) + 1
        self._display.show(what, done, int(sum(sizes)) if known else None, "")
        self._next = time.monotonic() + self._interval

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Makes room for the results."""
        self._close("Prediction")

    # -- the display ---------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if not self.is_enabled or self._display is not None:
            return
        console = Console(stderr=True)
        is_live = console.is_terminal or console.is_jupyter
        self._display = _Live(console) if is_live else _Lines()
        self._interval = self.refresh_seconds if is_live else self.line_seconds
        self._next = 0.0 if is_live else time.monotonic() + self._interval

    def _close(self, finished: str = "") -> None:
        if self._display is not None:
            self._display.remove(finished)
            self._display.close()
            self._display = None

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Gives the terminal back."""
        self._close()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Gives the terminal back."""
        self._close()


class _Live:
    """Bars at the bottom of a terminal, with whatever is printed above them."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("[bold]{task.description:<10}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}", style="cyan"),
            console=console,
            auto_refresh=False,
            expand=True,
            redirect_stdout=sys.stdout.isatty(),
        )
        self._tasks: dict[str, TaskID] = {}
        self._progress.start()

    def show(self, what: str, done: int, total: int | None, text: str) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total, text="")
        self._progress.update(self._tasks[what], completed=done, total=total, text=text)
        self._progress.refresh()

    def remark(self, text: str) -> None:
        self._progress.console.print(text, style="dim", markup=False, highlight=False)

    def remove(self, what: str) -> None:
        if what in self._tasks:
            self._progress.remove_task(self._tasks.pop(what))

    def close(self) -> None:
        self._progress.stop()


class _Lines:
    """A line now and then, for a log file."""

    def show(self, what: str, done: int, total: int | None, text: str) -> None:
        share = f" of {total} ({done / total:.0%})" if total else ""
        self.remark("  ".join(filter(None, [f"{what} {done}{share}", text])))

    def remark(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def remove(self, what: str) -> None:
        pass

    def close(self) -> None:
        pass
