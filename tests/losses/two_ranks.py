"""One rank of two: the gradient of losses that compare rows, each rank having a part of them.

Run as ``python two_ranks.py RANK FILE_TO_MEET_AT FILE_FOR_RESULTS``.
"""

import gc
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch import distributed as dist

from lit_trainer.losses.base import Loss
from lit_trainer.losses.contrastive import SupervisedContrastive
from lit_trainer.losses.cross_entropy import CrossEntropy
from lit_trainer.losses.in_batch_negatives import InBatchNegatives
from lit_trainer.losses.multi_task import MultiTask

ROWS = 9
FIRST_RANK = {"equal but one": 5, "unequal": 2, "one row": 1, "none": 0, "all": 9, "only ignored rows": 2}


class Towers(nn.Module):
    """A body, a head and a second projection, so that logits, features and a pair of features can be had."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head, self.other = nn.Linear(6, 4), nn.Linear(4, 3), nn.Linear(4, 4)
        self.double()

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = self.body(inputs).tanh()
        return self.head(features), features, self.other(features)


def losses() -> dict[str, tuple[Loss, bool]]:
    """Each loss and whether it takes a pair of features."""
    return {
        "contrastive": (SupervisedContrastive(0.5), False),
        "pairs": (InBatchNegatives(0.5, symmetric=True), True),
        "both": (
            MultiTask(
                {"main": CrossEntropy([1, 3, 2], 0.1), "near": SupervisedContrastive(0.5)}, {"main": 1.0, "near": 0.3}
            ),
            False,
        ),
    }


def data(case: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(2)
    labels = torch.tensor([0, 1, 0, 2, -100, 0, 1, 1, 2])
    if case == "only ignored rows":
        labels[: FIRST_RANK[case]] = -100
    return torch.randn(ROWS, 6, dtype=torch.float64), labels


def run(case: str, name: str, rows: slice, world_size: int) -> dict[str, Tensor]:
    """The total, the weight and the gradients that a run of that many ranks has on the rows of this one."""
    loss, is_pair = losses()[name]
    inputs, labels = data(case)
    model = Towers()
    wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True) if world_size > 1 else model
    logits, features, other = wrapped(inputs[rows])
    total, weight = loss(
        logits=logits, features={"one": features, "other": other} if is_pair else features, labels=labels[rows]
    )
    # What the optimizer step does: DDP takes the mean over ranks, and the step multiplies by their number.
    (total.sum() * world_size).backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return {"total": total.detach(), "weight": weight, "gradient": torch.cat([g.flatten() for g in gradients])}


def main(rank: int, meeting: Path, results: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    found = {}
    for case, split in FIRST_RANK.items():
        rows = slice(0, split) if rank == 0 else slice(split, ROWS)
        for name in losses():
            found[case, name] = run(case, name, rows, 2)
    torch.save(found, results)
    dist.barrier()
    gc.collect()  # models wrapped for DDP keep threads of gloo alive, which abort a process that ends
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
