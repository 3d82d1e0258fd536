from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lit_trainer.models import packed_attention, unpadded_attention
from lit_trainer.models.keyed_random import odd_words
from lit_trainer.models.line_dropout import column_words
from lit_trainer.models.packing import Packing

LENGTHS = [5, 2, 9, 5, 1, 9, 7]
MASK = torch.arange(9) < torch.tensor(LENGTHS)[:, None]


@pytest.fixture(params=[(4, 4), (4, 2), (4, 1)], ids=["equal heads", "grouped heads", "one head of keys"])
def tensors(request: pytest.FixtureRequest) -> list[Tensor]:
    heads, key_heads = request.param
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, count, sum(LENGTHS), 8, generator=generator, dtype=torch.float64, requires_grad=True)
        for count in (heads, key_heads, key_heads)
    ]


def reference(tensors: list[Tensor], layout: Packing, causal: bool, window: int | None, words: Tensor | None) -> Tensor:
    """Row by row, as it is written in books."""
    out, start = [], 0
    query, key, value = tensors
    for length in layout.lengths:
        q, k, v = (x[0, :, start : start + length] for x in (query, key, value))
        k, v = (x.repeat_interleave(q.shape[0] // x.shape[0], 0) for x in (k, v))
        ahead = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        closed = (ahead > 0) & causal if window is None else ((ahead > 0) & causal) | (ahead.abs() >= window)
        probabilities = (q @ k.transpose(1, 2) * 0.3).masked_fill(closed, float("-inf")).softmax(-1)
        if words is not None:
            products = words[0, start : start + length, None] * column_words(4, length, q.device)[:, None]
            probabilities = probabilities * (products >= 2 * round(0.2 * 2**31) - 2**31) / 0.8
        out.append((probabilities @ v).transpose(0, 1))
        start += length
    return torch.cat(out)[None]


@pytest.mark.parametrize("device", ["cpu", "accelerator"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3, 9])
@pytest.mark.parametrize("drops", [False, True])
def test_is_attention_row_by_row(
    tensors: list[Tensor], device: str, causal: bool, window: int | None, drops: bool
) -> None:
    layout = Packing(MASK)
    words = odd_words(torch.arange(sum(LENGTHS)))[None] if drops else None
    rest = layout, causal, window, 0.3, words, 0.2 if drops else 0.0
    if device == "cpu":
        found = unpadded_attention.attention(*tensors, *rest)
    else:
        found = unpadded_attention._repadded(*(x[0].transpose(0, 1) for x in tensors), *rest)
    grads = torch.randn(1, sum(LENGTHS), 4, 8, dtype=torch.float64)
    wanted = reference(tensors, layout, causal, window, words)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(found, tensors, grads), torch.autograd.grad(wanted, tensors, grads))


@pytest.mark.parametrize("most", [1, 30, 200, 2**30])
def test_the_size_of_a_chunk_changes_nothing(tensors: list[Tensor], most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_attention, "_CPU_SCORES", most)
    layout, words = Packing(MASK), odd_words(torch.arange(sum(LENGTHS)))[None]
    grads = torch.randn(1, sum(LENGTHS), 4, 8, dtype=torch.float64)
    found = unpadded_attention.attention(*tensors, layout, True, 3, 0.3, words, 0.2)
    wanted = reference(tensors, layout, True, 3, words)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(found, tensors, grads), torch.autograd.grad(wanted, tensors, grads))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 3])
def test_flash_attention_is_told_the_rows(
    tensors: list[Tensor], causal: bool, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands in for the kernel, which only CUDA has, by what its documentation says it computes."""

    def varlen(
        query: Tensor, key: Tensor, value: Tensor, starts: Tensor, same: Tensor, *most: int, **how: Any
    ) -> Tensor:
        assert torch.equal(starts, same)
        assert starts.dtype == torch.int32
        assert most == (9, 9)
        left, right = how["window_size"]
        out = []
        for start, end in zip(starts.tolist(), starts[1:].tolist(), strict=False):
            q, k, v = (x[start:end].transpose(0, 1) for x in (query, key, value))
            ahead = torch.arange(end - start)[None, :] - torch.arange(end - start)[:, None]
            is_open = (ahead <= right if right >= 0 else ahead > -99) & (-ahead <= left if left >= 0 else ahead < 99)
            seen = F.scaled_dot_product_attention(q, k, v, is_open, scale=how["scale"], enable_gqa=how["enable_gqa"])
            out.append(seen.transpose(0, 1))
        return torch.cat(out)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen)
    layout = Packing(MASK)
    query, key, value = (x[0].transpose(0, 1) for x in tensors)
    found = unpadded_attention._flash(query, key, value, layout, causal, window, 0.3)
    torch.testing.assert_close(found[None], reference(tensors, layout, causal, window, None))


def test_autocast_lowers_the_precision_as_torch_s_own_does() -> None:
    layout = Packing(MASK)
    query, key, value = (torch.randn(1, 4, sum(LENGTHS), 8) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        out = unpadded_attention.attention(query, key, value.bfloat16(), layout, False, None, 0.3, None, 0.0)
    assert out.dtype == torch.bfloat16
    wanted = unpadded_attention.attention(query, key, value, layout, False, None, 0.3, None, 0.0)
    torch.testing.assert_close(out.float(), wanted, atol=0.05, rtol=0.05)


def test_ordinary_dropout_follows_the_stream() -> None:
    layout = Packing(MASK)
    tensors = [torch.randn(1, 4, sum(LENGTHS), 8) for _ in range(3)]
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(unpadded_attention.attention(*tensors, layout, False, None, 0.3, None, 0.2))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
