"""The rows of all ranks on each rank, with gradients, for losses that compare rows with one another."""

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import once_differentiable


def gather_rows(*tensors: Tensor) -> tuple[list[Tensor], int]:
    """Joins the rows of all ranks, in order of rank; the ranks may have different numbers of rows.

    Each rank has to call it, with as many tensors. Gradients are added over the ranks, so where each rank has a part
    of a sum over all rows, the parameters' gradients, added over the ranks, are those of the whole sum.

    Args:
        tensors: Of this rank, each ``[B, ...]`` with the same B.

    Returns:
        The tensors of all ranks, each ``[sum of B, ...]``, and the number of rows on the ranks before this one.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return list(tensors), 0
    own = torch.tensor([len(tensors[0])], device=tensors[0].device)
    everybody = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, own)
    counts = torch.cat(everybody).tolist()
    return [_Gather.apply(tensor, counts) for tensor in tensors], sum(counts[: dist.get_rank()])


class _Gather(torch.autograd.Function):
    """Concatenates over ranks; backward, adds over ranks and takes its own rows."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, counts: list[int]) -> Tensor:
        ctx.counts = counts
        # Collectives need equal shapes, so each rank's rows are filled up to the most that a rank has.
        filled = tensor.new_zeros(max(counts), *tensor.shape[1:])
        filled[: len(tensor)] = tensor
        everybody = [torch.empty_like(filled) for _ in counts]
        dist.all_gather(everybody, filled)
        return torch.cat([rows[:count] for rows, count in zip(everybody, counts, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        rank = dist.get_rank()
        return total.split(ctx.counts)[rank], None
