"""Keyed dropout, alone and fused with the softmax of attention.

An element of a line is dropped where ``token * feature``, an int32 product that wraps around, falls below a
threshold. ``token`` is an odd number for the line and ``feature`` one for the column, both as good as random: a
multiply-shift hash, one product an element. On a CPU, in float32 and bfloat16, a small library does the work where a
C++ compiler is there to make it; everywhere else the same masks come from torch's own operations.

Shapes: N rows, H heads, Q queries, W columns (features, or keys of attention).

Source of the hash: Dietzfelbinger, Hagerup, Katajainen and Penttonen, "A reliable randomized algorithm for the
closest-pair problem", Journal of Algorithms 25, 1997.
"""

import ctypes
import functools
import logging
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lit_trainer.models import native_library

_log = logging.getLogger(__name__)
_NATIVE_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class Mask(NamedTuple):
    """Which elements to drop.

    Attributes:
        tokens: int32 ``[N, Q]``, odd.
        features: int32 ``[H, W]``, odd, the last axis contiguous.
        p: The probability of being dropped, in [0, 1).
    """

    tokens: Tensor
    features: Tensor
    p: float

    @property
    def threshold(self) -> int:
        """What an int32 product must reach to be kept. Products are odd, hence the even steps."""
        return 2 * round(self.p * 2**31) - 2**31

    @property
    def scale(self) -> float:
        """One over the probability of being kept, as it really is after rounding."""
        return 1.0 / (0.5 - self.threshold / 2**32)

    def kept(self, like: Tensor) -> Tensor:
        """Returns 1 where an element stays and 0 where it goes: ``[N, H, Q, W]`` of the dtype of ``like``."""
        products = self.tokens[:, None, :, None] * self.features[None, :, None, :]
        return torch.ge(products, self.threshold, out=torch.empty_like(like, memory_format=torch.contiguous_format))


def dropout(x: Tensor, mask: Mask) -> Tensor:
    """Returns ``x`` with elements dropped and the others scaled.

    Args:
        x: ``[N, H, Q, W]``.
        mask: Which elements to drop.
    """
    library = _library_for(x)
    if library is None:
        return (x * mask.scale).mul_(mask.kept(x))
    x, out = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    function = getattr(library, f"dropout_{_NATIVE_DTYPES[x.dtype]}")
    function(x.data_ptr(), out.data_ptr(), *x.shape, *_dropout_arguments(mask), torch.get_num_threads())
    return out


def softmax(scores: Tensor, scale: float, open_keys: Tensor | None, mask: Mask | None) -> tuple[Tensor, Tensor]:
    """Returns the dropped softmax of ``scale * scores``, and its log-normaliser. Overwrites the scores.

    Args:
        scores: ``[N, H, Q, W]``.
        scale: What the scores are multiplied by.
        open_keys: bool ``[N or 1, 1, Q, W]``: true where a query may look. A query that may look nowhere gets zeros.
        mask: Which probabilities to drop.

    Returns:
        Probabilities ``[N, H, Q, W]`` of the dtype of the scores; float32 (or float64) ``[N, H, Q]``.
    """
    library = _library_for(scores)
    if library is None:
        raised = _scaled(scores, scale, open_keys)
        lse = raised.logsumexp(-1)
        probabilities = _exponential(raised, lse)
        if mask is not None:
            probabilities = probabilities * mask.kept(probabilities) * mask.scale
        return probabilities.to(scores.dtype), lse
    lse = torch.empty(scores.shape[:3], dtype=torch.float32)
    function = getattr(library, f"softmax_{_NATIVE_DTYPES[scores.dtype]}")
    function(
        scores.data_ptr(),
        lse.data_ptr(),
        *scores.shape,
        *_key_arguments(scale, open_keys),
        *_dropout_arguments(mask),
        torch.get_num_threads(),
    )
    return scores, lse


def softmax_backward(
    scores: Tensor, grads: Tensor, lse: Tensor, scale: float, open_keys: Tensor | None, mask: Mask | None
) -> tuple[Tensor, Tensor]:
    """Returns again what `softmax` gave, and the gradients of the scores. Overwrites both inputs.

    Args:
        scores: ``[N, H, Q, W]``, as `softmax` got them.
        grads: ``[N, H, Q, W]``: the gradients of the dropped probabilities.
        lse: ``[N, H, Q]``, from `softmax`.
        scale: What the scores are multiplied by.
        open_keys: bool ``[N or 1, 1, Q, W]``: true where a query may look.
        mask: Which probabilities to drop.
    """
    library = _library_for(scores)
    if library is None:
        probabilities = _exponential(_scaled(scores, scale, open_keys), lse)
        factor = mask.kept(probabilities) * mask.scale if mask is not None else torch.ones_like(probabilities)
        wanted = grads * factor
        centred = wanted - (probabilities * wanted).sum(-1, keepdim=True)
        return (probabilities * factor).to(scores.dtype), (probabilities * centred * scale).to(scores.dtype)
    function = getattr(library, f"softmax_backward_{_NATIVE_DTYPES[scores.dtype]}")
    function(
        scores.data_ptr(),
        grads.data_ptr(),
        lse.data_ptr(),
        *scores.shape,
        *_key_arguments(scale, open_keys),
        *_dropout_arguments(mask),
        torch.get_num_threads(),
    )
    return scores, grads


def is_native() -> bool:
    """Tells whether dropout on a CPU is computed by the compiled library; asking has it compiled."""
    return _library() is not None


def _scaled(scores: Tensor, scale: float, open_keys: Tensor | None) -> Tensor:
    raised = scores.to(torch.promote_types(scores.dtype, torch.float32)) * scale
    return raised if open_keys is None else raised.masked_fill_(~open_keys, float("-inf"))


def _exponential(raised: Tensor, lse: Tensor) -> Tensor:
    """Returns ``exp(raised - lse)``, with zeros rather than NaN where a whole line is -inf."""
    return torch.exp(raised - lse.masked_fill(lse == float("-inf"), 0.0)[..., None])


def _dropout_arguments(mask: Mask | None) -> tuple[int | None, int | None, int, int, float]:
    if mask is None:
        return None, None, 0, 0, 1.0
    assert mask.tokens.is_contiguous()
    assert mask.features.stride(1) == 1
    return mask.tokens.data_ptr(), mask.features.data_ptr(), mask.features.stride(0), mask.threshold, mask.scale


def _key_arguments(scale: float, open_keys: Tensor | None) -> tuple[float, int | None, int]:
    if open_keys is None:
        return scale, None, 0
    assert open_keys.is_contiguous()
    return scale, open_keys.data_ptr(), open_keys[0].numel() if open_keys.shape[0] > 1 else 0


def _library_for(x: Tensor) -> ctypes.CDLL | None:
    return _library() if x.device.type == "cpu" and x.dtype in _NATIVE_DTYPES else None


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Returns the compiled library, or None. Decided once a process, at the first use."""
    library = native_library.load(Path(__file__).with_suffix(".cpp"))
    if library is not None:
        _declare(library)
    _log.info(
        "dropout on the CPU: %s", "plain torch operations, as no C++ compiler works" if library is None else "fused"
    )
    return library


def _declare(library: ctypes.CDLL) -> None:
    pointer, size, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    shape, keys = [size] * 4, [real, pointer, size]
    drop = [pointer, pointer, size, ctypes.c_int32, real, ctypes.c_int]
    for dtype in _NATIVE_DTYPES.values():
        getattr(library, f"dropout_{dtype}").argtypes = [pointer, pointer, *shape, *drop]
        getattr(library, f"softmax_{dtype}").argtypes = [pointer, pointer, *shape, *keys, *drop]
        getattr(library, f"softmax_backward_{dtype}").argtypes = [pointer, pointer, pointer, *shape, *keys, *drop]
        for name in ("dropout", "softmax", "softmax_backward"):
            getattr(library, f"{name}_{dtype}").restype = None
