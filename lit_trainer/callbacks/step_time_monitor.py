"""Measures how fast training is and what each optimizer step's time goes into, and says what to do about it."""

import logging
import resource
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from lit_trainer.batch import ROW
from lit_trainer.callbacks.step_advice import Setting, advice
from lit_trainer.callbacks.step_figures import StepFigures
from lit_trainer.callbacks.step_metrics import is_logging_step, log_step_metrics
from lit_trainer.callbacks.step_timeline import (
    BACKWARD,
    DATA,
    FORWARD,
    OPTIMIZER,
    REST,
    CudaTimeline,
    HostTimeline,
    Timeline,
)
from lit_trainer.models import fused_kernels, padding_free
from lit_trainer.models.flops import flops_of_training, peak_flops

_log = logging.getLogger(__name__)

_PERSISTS_WINDOWS, _PERSISTS_STEPS = 3, 30
_ATTENTION_DROPOUT = ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop")


class StepTimeMonitor(Callback):
    """Logs throughput and the shares of each optimizer step, and gives a line of advice where a share is too large.

    At the steps at which the Trainer logs, it writes of the steps since the last time, over all ranks,

    - ``throughput/samples_per_second``, ``throughput/tokens_per_second`` (real tokens), ``throughput/padding_share`` of
      the tokens that were computed, ``throughput/model_tflops`` (what the model needs for the real tokens:
      `lit_trainer.models.flops`) and ``throughput/model_flops_utilisation``, its share of what the device can do, where
      that is known;
    - ``time_share/data``, ``forward``, ``backward``, ``optimizer``, ``communication`` and ``rest``, which add up to 1;
    - ``memory/peak_mib`` of this rank: of the GPU, or of the process.

    Evaluations are left out, and so is the first step. On CUDA the times are the device's own, read when metrics are
    logged; between them nothing waits for it. Communication is as DistributedDataParallel itself measures it. Put this
    callback behind those that look at gradients: what runs before it in the list counts as rest, not as optimizer.

    Args:
        peak_tflops: What one device can do, in TFLOP/s, where it is not in the list or to compare with another figure.
        advise: Whether to say what could be done, when it shows for some time or at the end.

    Attributes:
        figures: All that was measured in this run.

    Raises:
        ValueError: If the peak is not above 0.
    """

    def __init__(self, peak_tflops: float | None = None, advise: bool = True) -> None:
        if peak_tflops is not None and not peak_tflops > 0:
            raise ValueError(f"peak_tflops must be above 0, not {peak_tflops}")
        self.peak_tflops, self.advise = peak_tflops, advise
        self.figures: StepFigures | None = None
        self._timeline: Timeline = HostTimeline()
        self._counted: list[Tensor] = []
        self._lengths: list[Tensor] = []
        self._slots = 0
        self._num_steps = self._idle_before = 0
        self._is_warm = self._is_outside = self._has_stepped = False
        self._cost = (0.0, 0.0)
        self._peak: float | None = None
        self._persisting: dict[str, tuple[int, float]] = {}
        self._said: set[str] = set()
        self._undo: list[Callable[[], None]] = []

    # -- the run -------------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begins to measure."""
        device = pl_module.device
        self.figures, self._persisting, self._said = None, {}, set()
        self._timeline = CudaTimeline() if device.type == "cuda" else HostTimeline()
        self._idle_before, self._is_warm, self._is_outside, self._has_stepped = 0, False, False, False
        self._forget()
        self._cost = flops_of_training(_model(pl_module))
        precision = str(trainer.precision)
        self._peak = self.peak_tflops * 1e12 if self.peak_tflops else peak_flops(device, precision)
        for optimizer in trainer.optimizers:
            self._undo.append(optimizer.register_step_post_hook(self._after_optimizer).remove)
        self._watch_loader(trainer)

    def _watch_loader(self, trainer: Trainer) -> None:
        """Has Lightning say when it asks for a batch, which no hook does."""
        loop = trainer.fit_loop.epoch_loop
        lightnings_own = loop._on_before_fetch

        def on_before_fetch() -> None:
            if self._is_outside:
                self._timeline.restart()
                self._is_outside = False
            else:
                self._timeline.mark(REST)
            lightnings_own()

        loop._on_before_fetch = on_before_fetch  # type: ignore[method-assign]
        self._undo.append(lambda: loop.__dict__.pop("_on_before_fetch", None))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Ends the wait for a batch and notes its size."""
        self._timeline.mark(DATA)
        if isinstance(batch, Mapping):
            self._count(batch, _is_padding_free(pl_module))

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Ends the forward pass."""
        self._timeline.mark(FORWARD)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ends the backward pass."""
        self._timeline.mark(BACKWARD)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Begins the optimizer's step."""
        self._timeline.mark(REST)
        self._has_stepped = True

    def _after_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._timeline.mark(OPTIMIZER)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Ends an optimizer step and, where metrics are logged, works out what the last ones took."""
        if not self._has_stepped:
            return
        self._has_stepped = False
        self._timeline.mark(REST)
        self._num_steps += 1
        if not self._is_warm:  # the first step has what is done once: worker processes, kernels, memory
            self._is_warm = True
            self._timeline.read()
            self._forget()
        elif is_logging_step(trainer):
            found = self._measure(trainer, pl_module)
            log_step_metrics(trainer, self._metrics(found, pl_module.device))
            self._notice(found, trainer, pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stops the clock until training goes on."""
        self._leave_training(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stops the clock until the next epoch."""
        self._leave_training(trainer)

    def _leave_training(self, trainer: Trainer) -> None:
        if not trainer.sanity_checking and not self._is_outside:
            self._timeline.mark(REST)
            self._is_outside = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Sums up."""
        if self._num_steps:
            self._measure(trainer, pl_module)
        self._stop()
        figures = self.figures
        if figures is None or not figures.seconds:
            return
        _log.info("%s", summary(figures, _peak_mib(pl_module.device), self._utilisation(figures)))
        if self.advise and figures.steps / figures.ranks >= 10:
            for topic, line in advice(figures, self._setting(trainer, pl_module)).items():
                self._say(topic, line)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stops measuring."""
        self._stop()

    def _stop(self) -> None:
        while self._undo:
            self._undo.pop()()

    # -- what is counted -----------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._counted, self._lengths, self._slots, self._num_steps = [], [], 0, 0

    def _count(self, batch: Mapping[str, Any], is_padding_free: bool) -> None:
        """Notes a micro-batch without waiting for anything on the device."""
        mask, rows = batch.get("attention_mask"), batch.get(ROW)
        if isinstance(rows, Tensor):
            self._counted.append(rows >= 0)
        elif tensors := [value for value in batch.values() if isinstance(value, Tensor) and value.dim()]:
            self._counted.append(torch.ones(len(tensors[0]), dtype=torch.bool))
        if isinstance(mask, Tensor) and mask.dim() == 2:
            self._lengths.append(mask.sum(1))
            self._slots += 0 if is_padding_free else mask.numel()

    def _measure(self, trainer: Trainer, pl_module: LightningModule) -> StepFigures:
        """Returns the figures of the steps since the last time, and adds them to the run's."""
        seconds = self._timeline.read()
        counted = torch.cat([torch.zeros(0), *(each.cpu() for each in self._counted)])
        lengths = torch.cat([torch.zeros(0), *(each.cpu() for each in self._lengths)]).double()
        real = lengths * counted if len(lengths) == len(counted) else lengths
        waiting = min(seconds[BACKWARD], _communication_seconds(trainer) * self._num_steps)
        a_token, a_pair = self._cost
        passes = getattr(getattr(pl_module, "loss", None), "passes", 1)
        found = StepFigures(
            steps=self._num_steps,
            samples=float(counted.sum()),
            tokens=float(real.sum()),
            slots=self._slots or float(lengths.sum()),
            flops=passes * float((a_token * real + a_pair * real**2).sum()),
            data=seconds[DATA],
            forward=seconds[FORWARD],
            backward=seconds[BACKWARD] - waiting,
            optimizer=seconds[OPTIMIZER],
            communication=waiting,
            rest=seconds[REST],
            idle=self._timeline.num_idle - self._idle_before,
        ).summed_over_ranks(pl_module.device)
        self._idle_before = self._timeline.num_idle
        self._forget()
        self.figures = found if self.figures is None else self.figures + found
        return found

    def _utilisation(self, figures: StepFigures) -> float | None:
        return figures.utilisation(self._peak) if self._peak and figures.flops else None

    def _metrics(self, found: StepFigures, device: torch.device) -> dict[str, float]:
        metrics = found.rates() | {f"time_share/{name}": share for name, share in found.time_shares.items()}
        if (utilisation := self._utilisation(found)) is not None:
            metrics["throughput/model_flops_utilisation"] = utilisation
        return metrics | {"memory/peak_mib": _peak_mib(device)}

    # -- advice --------------------------------------------------------------------------------------------------------

    def _notice(self, found: StepFigures, trainer: Trainer, pl_module: LightningModule) -> None:
        """Says what has been wrong for some time, without waiting for the end."""
        if not self.advise:
            return
        now = advice(found, self._setting(trainer, pl_module))
        self._persisting = {
            topic: (windows + 1, steps + found.steps / found.ranks)
            for topic in now
            for windows, steps in [self._persisting.get(topic, (0, 0.0))]
        }
        for topic, (windows, steps) in self._persisting.items():
            if windows >= _PERSISTS_WINDOWS and steps >= _PERSISTS_STEPS:
                self._say(topic, now[topic])

    def _say(self, topic: str, line: str) -> None:
        if topic not in self._said:
            self._said.add(topic)
            _log.info("advice: %s", line)

    def _setting(self, trainer: Trainer, pl_module: LightningModule) -> Setting:
        config = getattr(_model(pl_module), "config", None)
        attention_dropout = max((getattr(config, name, None) or 0.0 for name in _ATTENTION_DROPOUT), default=0.0)
        device = pl_module.device.type
        is_slow = device == "cpu" and attention_dropout > 0
        return Setting(
            device=device,
            num_workers=int(getattr(getattr(trainer, "datamodule", None), "num_workers", 0)),
            is_padding_free=_is_padding_free(pl_module),
            num_micro_batches=trainer.accumulate_grad_batches,
            attention_dropout=attention_dropout,
            slow_dropout=_why_dropout_is_slow(pl_module) if is_slow else "",
        )


def summary(figures: StepFigures, peak_mib: float, utilisation: float | None) -> str:
    """Returns a line on where the time went and how fast it was.

    Args:
        figures: Of a run.
        peak_mib: The most memory that was used.
        utilisation: The share of the device's peak, where that is known.
    """
    shares = ", ".join(f"{name} {share:.0%}" for name, share in figures.time_shares.items() if share >= 0.005)
    milliseconds = 1e3 * figures.seconds * figures.ranks / figures.steps
    parts = [f"{milliseconds:,.{0 if milliseconds >= 10 else 1}f} ms a step ({shares})"]
    rates = figures.rates()
    if figures.slots:
        parts.append(f"{rates['throughput/tokens_per_second']:,.0f} tokens/s")
    parts.append(f"{rates['throughput/samples_per_second']:,.1f} rows/s")
    if figures.slots:
        parts.append(f"{figures.padding:.0%} padding")
    if figures.flops:
        of_peak = f" ({utilisation:.0%} of the peak)" if utilisation is not None else ""
        parts.append(f"{rates['throughput/model_tflops']:.2g} TFLOP/s{of_peak}")
    return ", ".join([*parts, f"{peak_mib:,.0f} MiB at most"])


def _model(pl_module: LightningModule) -> nn.Module:
    model = getattr(pl_module, "model", None)
    return model if isinstance(model, nn.Module) else pl_module


def _is_padding_free(pl_module: LightningModule) -> bool:
    free = padding_free.installed(_model(pl_module))
    return free is not None and free.is_on


def _why_dropout_is_slow(pl_module: LightningModule) -> str:
    if not getattr(pl_module, "keyed_dropout", False):
        return "set model.keyed_dropout to true"
    return "" if fused_kernels.is_native() else "install a C++ compiler, g++ or clang++"


def _communication_seconds(trainer: Trainer) -> float:
    """Returns for how long a step's backward pass waits for gradients of other ranks, on average."""
    wrapped = trainer.strategy.model
    if not isinstance(wrapped, DistributedDataParallel):
        return 0.0
    measured = wrapped._get_ddp_logging_data()
    took = float(measured.get("avg_backward_comm_time", 0))
    return max(0.0, took - float(measured.get("avg_backward_compute_comm_overlap_time", 0))) / 1e9


def _peak_mib(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 2**10)
