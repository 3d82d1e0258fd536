"""What was counted and timed over some optimizer steps, and what follows from it."""

from dataclasses import astuple, dataclass, fields

import torch
from torch import Tensor

SHARES = ("data", "forward", "backward", "optimizer", "communication", "rest")


@dataclass(frozen=True)
class StepFigures:
    """Sums over optimizer steps; over ranks, too, once `summed_over_ranks`.

    Args:
        ranks: How many ranks' figures these are.
        steps: Optimizer steps.
        samples: Rows that count.
        tokens: Real tokens of those rows.
        slots: Tokens that were computed, padding and rows that only fill up included.
        flops: Floating-point operations of the model on real tokens, forward and backward.
        data: Seconds of waiting for a batch and of bringing it to the device.
        forward: Seconds of the forward pass and the loss.
        backward: Seconds of the backward pass, without what only waits for other ranks.
        optimizer: Seconds of clipping and of the optimizer's step.
        communication: Seconds in which the backward pass was done and the gradients of other ranks were not there.
        rest: Seconds of everything between these: callbacks, logging, checkpoints, the loop.
        idle: Steps at whose end the accelerator had nothing left to do.
    """

    ranks: float = 1.0
    steps: float = 0.0
    samples: float = 0.0
    tokens: float = 0.0
    slots: float = 0.0
    flops: float = 0.0
    data: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    optimizer: float = 0.0
    communication: float = 0.0
    rest: float = 0.0
    idle: float = 0.0

    def __add__(self, later: "StepFigures") -> "StepFigures":
        """Returns the figures of both together, measured on the same ranks."""
        added = {f.name: getattr(self, f.name) + getattr(later, f.name) for f in fields(self)}
        return StepFigures(**{**added, "ranks": later.ranks})

    def summed_over_ranks(self, device: torch.device) -> "StepFigures":
        """Returns the figures of all ranks together. All of them must ask.

        Args:
            device: Where the process group's tensors are.
        """
        if not torch.distributed.is_initialized():
            return self
        # Float32, for devices without more, is precise enough for shares and rates.
        dtype = torch.float32 if device.type == "mps" else torch.float64
        row: Tensor = torch.tensor(astuple(self), dtype=dtype, device=device)
        torch.distributed.all_reduce(row)
        return StepFigures(*row.tolist())

    @property
    def seconds(self) -> float:
        """How long the steps took, evaluations and checkpoints after them apart: the mean over ranks."""
        parts = self.data, self.forward, self.backward, self.optimizer, self.communication, self.rest
        return sum(parts) / self.ranks

    @property
    def time_shares(self) -> dict[str, float]:
        """The share of the time that each part took; together 1."""
        total = self.seconds * self.ranks
        return {share: getattr(self, share) / total if total else 0.0 for share in SHARES}

    @property
    def padding(self) -> float:
        """The share of computed tokens that are padding."""
        return 1 - self.tokens / self.slots if self.slots else 0.0

    @property
    def idle_share(self) -> float:
        """The share of steps at whose end the accelerator had nothing left to do."""
        return self.idle / self.steps if self.steps else 0.0

    def utilisation(self, peak: float) -> float:
        """Returns the model's operations as a share of what the devices could do.

        Args:
            peak: Operations a second of one rank's device.
        """
        return self.flops / (self.seconds * self.ranks * peak) if self.seconds else 0.0

    def rates(self) -> dict[str, float]:
        """Returns samples and, where there are any, real tokens, padding and model operations, by metric name."""
        if not self.seconds:
            return {}
        rates = {"throughput/samples_per_second": self.samples / self.seconds}
        if self.slots:
            rates["throughput/tokens_per_second"] = self.tokens / self.seconds
            rates["throughput/padding_share"] = self.padding
        if self.flops:
            rates["throughput/model_tflops"] = self.flops / self.seconds / 1e12
        return rates
