"""Measures tensors such as gradients: their norm, largest magnitude, zeros and what is not finite.

Everything is counted on the device and brought to the host at once, whatever the number of tensors.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Statistics:
    """What was measured of one tensor, or of several as if they were one.

    Args:
        norm: The norm of the order that was asked for.
        largest: The largest magnitude, or NaN where there is one.
        num_zeros: How many values are zero.
        num_non_finite: How many values are NaN or infinite.
        num_values: How many values there are.
    """

    norm: float
    largest: float
    num_zeros: int
    num_non_finite: int
    num_values: int


@torch.no_grad()
def measure(tensors: Sequence[Tensor], norm_type: float = 2.0) -> list[Statistics]:
    """Measures each of several tensors. The host waits for the device once, and again only where one is not finite.

    Args:
        tensors: Of any shape, dtype and device, none of them empty. Sharded ones are gathered, one after the other.
        norm_type: The order of the norm, above 0; at infinity it is the largest magnitude.
    """
    if any(isinstance(tensor, DTensor) for tensor in tensors):
        return [row for tensor in tensors for row in measure([_gathered(tensor)], norm_type)]
    dense = [tensor.to_dense() if tensor.is_sparse else tensor for tensor in tensors]
    extremes = [torch.aminmax(tensor) for tensor in dense]  # on a CPU this is far faster than the infinity norm
    lowest, highest, nonzero, orders = to_host(
        [extreme.min for extreme in extremes],
        [extreme.max for extreme in extremes],
        [torch.count_nonzero(tensor) for tensor in dense],
        [] if math.isinf(norm_type) else norms(dense, norm_type),
    )
    largest = [_largest(ends) for ends in zip(lowest, highest, strict=True)]
    unsound = [i for i, size in enumerate(largest) if not math.isfinite(size)]
    (counts,) = to_host([torch.count_nonzero(~torch.isfinite(dense[i])) for i in unsound])
    num_non_finite = dict(zip(unsound, counts, strict=True))
    return [
        Statistics(
            norm=(orders or largest)[i],
            largest=largest[i],
            num_zeros=tensor.numel() - int(nonzero[i]),
            num_non_finite=int(num_non_finite.get(i, 0)),
            num_values=tensor.numel(),
        )
        for i, tensor in enumerate(dense)
    ]


def combine(parts: Sequence[Statistics], norm_type: float = 2.0) -> Statistics:
    """Returns the statistics of several tensors as if they were one.

    Args:
        parts: The statistics of each.
        norm_type: The order of their norms.
    """
    return Statistics(
        norm=combine_norms([part.norm for part in parts], norm_type),
        largest=_largest(part.largest for part in parts),
        num_zeros=sum(part.num_zeros for part in parts),
        num_non_finite=sum(part.num_non_finite for part in parts),
        num_values=sum(part.num_values for part in parts),
    )


def combine_norms(parts: Sequence[float], norm_type: float = 2.0) -> float:
    """Returns the norm of a vector from the norms of its parts, without overflow on the way."""
    largest = _largest(parts)
    if math.isinf(norm_type) or largest == 0.0 or not math.isfinite(largest):
        return largest
    return float(largest * math.fsum((part / largest) ** norm_type for part in parts) ** (1.0 / norm_type))


@torch.no_grad()
def norms(tensors: Sequence[Tensor], norm_type: float = 2.0) -> list[Tensor]:
    """Returns the norm of each tensor: 0-d, on its device, float32 (float64 for float64).

    Args:
        tensors: Of any shape, dtype and device. Sharded ones are gathered, one after the other.
        norm_type: The order of the norm, above 0.
    """
    if any(isinstance(tensor, DTensor) for tensor in tensors):
        return [norm for tensor in tensors for norm in norms([_gathered(tensor)], norm_type)]
    # In half precision the sum of squares overflows long before the values do.
    dtype = None if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32
    return list(torch._foreach_norm(list(tensors), norm_type, dtype=dtype)) if tensors else []


def to_host(*columns: Sequence[Tensor]) -> list[list[float]]:
    """Brings columns of 0-d tensors to the host, all in one transfer."""
    tensors = [tensor for column in columns for tensor in column]
    if not tensors:
        return [[] for _ in columns]
    device = tensors[0].device
    # float64 holds every count; where there is none, float32 has to do.
    dtype = torch.float32 if device.type == "mps" else torch.float64
    stacked = [torch.stack([tensor.to(device) for tensor in column]).to(dtype) for column in columns if column]
    numbers = iter(torch.cat(stacked).tolist())
    return [[next(numbers) for _ in column] for column in columns]


def _gathered(tensor: Tensor) -> Tensor:
    """Returns the whole of a tensor that is sharded over ranks, and any other as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _largest(values: Iterable[float]) -> float:
    """Returns the largest magnitude, NaN if there is one; `max` alone finds a NaN only where it comes first."""
    magnitudes = [abs(value) for value in values]
    return math.nan if any(map(math.isnan, magnitudes)) else max(magnitudes, default=0.0)
