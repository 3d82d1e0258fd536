"""Random numbers that are a function of a key, not of a stream.

A key is an int64 tensor. It starts from (seed, epoch), takes in the draw, the position and whatever else tells two
numbers apart, one `fold` each, and is as good as random at every stage. The same key gives the same number on whichever
rank, micro-batch, worker or device it is asked for, so there is no state to save and nothing to share.
"""

import functools
import hashlib

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MULTIPLIERS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)


def mix(key: Tensor) -> Tensor:
    """Scrambles 64 bits one to one: flipping any bit flips each other one with probability one half.

    Args:
        key: int64, of any shape.

    Source:
        The finaliser of SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014;
        its constants are Stafford's "Mix13". Integer products wrap around.
    """
    key = (key ^ _shifted(key, 30)) * _MULTIPLIERS[0]
    key = (key ^ _shifted(key, 27)) * _MULTIPLIERS[1]
    return key ^ _shifted(key, 31)


def fold(key: Tensor, data: Tensor | int) -> Tensor:
    """Takes another number into a key. The order matters: folding a then b is not folding b then a.

    Args:
        key: int64.
        data: int64, or one number; broadcast against the key.
    """
    return mix(key ^ mix((data if isinstance(data, Tensor) else torch.tensor(data)) + _GOLDEN))


def stream_key(name: str) -> int:
    """Returns the 64-bit number that stands for a name, such as a layer's or a purpose's."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)


def row_keys(seed: int, epoch: int, draws: Tensor, pass_index: int = 0) -> Tensor:
    """Returns the key of each row of a batch.

    Args:
        seed: The run's seed, any integer.
        epoch: The epoch of the plan.
        draws: int64 ``[B]``: the draws' numbers in the epoch's plan.
        pass_index: Which of several forward passes over the same batch this is.

    Returns:
        int64 ``[B]``.
    """
    return fold(_run_key(seed, epoch, pass_index), draws)


def keyed_uniform(seed: int, epoch: int, draws: Tensor, positions: Tensor, stream: str) -> Tensor:
    """Draws numbers from [0, 1) that depend on nothing but the arguments: for token masking and augmentation.

    Args:
        seed: The run's seed, any integer.
        epoch: The epoch of the plan.
        draws: int64: the draws' numbers in the epoch's plan, as ``[B, 1]`` for one number for each position.
        positions: int64, broadcast against ``draws``.
        stream: What the numbers are for. Different names are independent.

    Returns:
        float32, of the broadcast shape, multiples of 2^-24.
    """
    keys = mix(fold(row_keys(seed, epoch, draws), positions) ^ stream_key(stream))
    return torch.mul(_shifted(keys, 40), 2.0**-24)


@functools.lru_cache
def _run_key(seed: int, epoch: int, pass_index: int) -> Tensor:
    """Returns the key all rows of a pass start from: 0-d, on the CPU, which any device takes as a number."""
    key = torch.tensor(0)
    for part in (seed & (2**63 - 1), epoch, pass_index):
        key = fold(key, part)
    return key


def odd_words(keys: Tensor) -> Tensor:
    """Returns an odd int32 for each int64 key, every odd number as likely."""
    return (mix(keys) >> 32).to(torch.int32).bitwise_or_(1)


def _shifted(key: Tensor, bits: int) -> Tensor:
    """Shifts right and fills with zeros, which int64 has no operator for."""
    return torch.bitwise_and(key >> bits, 2 ** (64 - bits) - 1)
