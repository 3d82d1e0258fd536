"""How a run uses its machine: threads, memory, precision of products; chosen once and said in one line."""

import os
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.precision.precision import _PRECISION_INPUT

from lit_trainer.models.attention import NAME as OURS
from lit_trainer.runtime.allocator import keep_freed_memory


class Machine(pl.Callback):
    """Sets what is a matter of speed alone, and has what to say about it in the plan of a run.

    Threads that wait for work sleep after a moment (``GOMP_SPINCOUNT=10000``, a fraction of a millisecond) rather than
    spin on, unless that variable or ``OMP_WAIT_POLICY`` is set: that is to be before torch is loaded, so that the
    command line does it.

    Args:
        num_threads: Threads that compute on a CPU. ``auto`` is what torch takes, but no more than this process may use
            by its container's quota.
        keep_freed_memory: Whether memory that is freed on a CPU stays with the process, which spares it from being
            cleared again and again. Only on Linux with glibc.
        float32_products: How exactly float32 matrices are multiplied on a GPU, as in
            ``torch.set_float32_matmul_precision``. ``auto`` is ``high`` (TF32) beside mixed precision and else what
            torch does, ``highest``.

    Attributes:
        max_threads: What automatic threads are limited to; None for no limit.
        precision_is_auto: Whether the precision was chosen for this machine.

    Raises:
        ValueError: If the number of threads is below 1.
    """

    def __init__(
        self,
        num_threads: int | Literal["auto"] = "auto",
        keep_freed_memory: bool = True,
        float32_products: Literal["auto", "highest", "high", "medium"] = "auto",
    ) -> None:
        if num_threads != "auto" and num_threads < 1:
            raise ValueError(f"machine.num_threads is {num_threads}; it has to be at least 1, or auto")
        self.num_threads, self.keep_freed_memory = num_threads, keep_freed_memory
        self.float32_products = float32_products
        self.max_threads: int | None = None
        self.precision_is_auto = False
        self._keeps = False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Sets it all, before anything is computed."""
        now = torch.get_num_threads()
        threads = min(now, self.max_threads or now) if self.num_threads == "auto" else self.num_threads
        if threads != now:
            torch.set_num_threads(threads)
        device = trainer.strategy.root_device.type
        self._keeps = self.keep_freed_memory and device == "cpu" and keep_freed_memory()
        if device == "cuda" and (self.float32_products != "auto" or "mixed" in str(trainer.precision)):
            products = "high" if self.float32_products == "auto" else self.float32_products
            torch.set_float32_matmul_precision(products)

    def choices(self, trainer: pl.Trainer, module: Any) -> list[str]:
        """Returns what a training runs on, in words, for the plan of the run.

        Args:
            trainer: At the start of training.
            module: The task.
        """
        device = trainer.strategy.root_device
        if device.type == "cpu":
            threads = torch.get_num_threads()
            choices = [f"{threads} CPU thread{'s' * (threads != 1)}{_waiting()}"]
        elif device.type == "cuda":
            choices = [torch.cuda.get_device_name(device), f"{torch.get_float32_matmul_precision()} float32 products"]
        else:
            choices = [device.type.upper()]
        choices.append(f"{trainer.precision} precision" + " (auto)" * self.precision_is_auto)
        attention = getattr(getattr(getattr(module, "model", None), "config", None), "_attn_implementation", None)
        choices += [f"{'sdpa' if attention == OURS else attention} attention"] if attention else []
        for optimizer in trainer.optimizers:
            choices.append("fused " * bool(optimizer.defaults.get("fused")) + type(optimizer).__name__)
        workers = getattr(getattr(trainer, "datamodule", None), "num_workers", None)
        if isinstance(workers, int):
            pinned = ", pinned memory" if device.type == "cuda" else ""
            choices.append(f"{workers} loading process{'es' * (workers != 1)}{pinned}")
        return choices + ["freed memory is kept"] * self._keeps


def _waiting() -> str:
    if policy := os.environ.get("OMP_WAIT_POLICY"):
        return f", waiting is {policy.lower()}"
    count = os.environ.get("GOMP_SPINCOUNT", "")
    return ", soon asleep while waiting" if count.isdecimal() and int(count) <= 10_000 else ""


class AutoPrecisionTrainer(pl.Trainer):
    """Lightning's Trainer, of which the command line can also ask for the fastest precision.

    Args:
        precision: As Lightning's; or ``auto``, the fastest that trains like float32 on this machine: mixed precision in
            bfloat16, else in float16, where the device has instructions for that. The plan of the run says which.
        kwargs: As Lightning's.
    """

    def __init__(self, *, precision: _PRECISION_INPUT | Literal["auto"] | None = None, **kwargs: Any) -> None:
        super().__init__(precision=precision, **kwargs)  # type: ignore[arg-type]  # auto has been resolved before
