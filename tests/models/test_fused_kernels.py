import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lit_trainer.models import fused_kernels
from lit_trainer.models.fused_kernels import Mask
from lit_trainer.models.keyed_random import fold, odd_words, row_keys, stream_key
from lit_trainer.models.line_dropout import column_words, drop

CPU = torch.device("cpu")
needs_library = pytest.mark.skipif(fused_kernels._library() is None, reason="no C++ compiler")


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the compiled library."""
    monkeypatch.setattr(fused_kernels, "_library", lambda: None)


def words(count: int, seed: int = 0) -> Tensor:
    return odd_words(fold(row_keys(seed, 0, torch.arange(count)), 0))


def mask(rows: int, heads: int, queries: int, width: int, p: float) -> Mask:
    return Mask(words(rows * queries).view(rows, queries), column_words(heads, width, CPU), p)


def random_scores(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5)).mul(3).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("p", [0.1, 0.5, 1 / 3])
def test_every_dtype_drops_the_same_and_scales_exactly(dtype: torch.dtype, p: float) -> None:
    x = random_scores(2, 3, 5, 70, dtype=dtype)
    chosen = mask(2, 3, 5, 70, p)
    kept = chosen.kept(x.double()).bool()
    out = fused_kernels.dropout(x, chosen)
    assert out.dtype == dtype
    assert torch.equal(out != 0, kept & (x != 0))
    assert torch.equal(out[kept], (x * chosen.scale)[kept])
    assert chosen.scale == pytest.approx(1 / (1 - p), rel=1e-8)


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_library_computes_what_torch_does(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x, chosen = random_scores(2, 3, 5, 1000, dtype=dtype), mask(2, 3, 5, 1000, 0.1)
    fused = fused_kernels.dropout(x, chosen)
    monkeypatch.setattr(fused_kernels, "_library", lambda: None)
    assert torch.equal(fused, fused_kernels.dropout(x, chosen))


@needs_library
@settings(deadline=None, max_examples=40)
@given(
    st.tuples(*[st.integers(1, 3)] * 2, st.integers(1, 9), st.integers(1, 70)),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.sampled_from([None, 0.1, 0.9]),
    st.sampled_from(["none", "shared", "own"]),
)
def test_the_library_s_softmax_is_torch_s(
    shape: tuple[int, int, int, int], dtype: torch.dtype, p: float | None, kind: str
) -> None:
    rows, _, queries, width = shape
    scores, grads = random_scores(*shape, dtype=dtype), random_scores(*shape, dtype=dtype).flip(3)
    chosen = None if p is None else mask(*shape, p)
    is_open = None
    if kind != "none":
        is_open = torch.rand(rows if kind == "own" else 1, 1, queries, width) < 0.7
        is_open[0, 0, 0] = False  # a query that may look nowhere
    assert fused_kernels._library() is not None
    probabilities, lse = fused_kernels.softmax(scores.clone(), 0.3, is_open, chosen)
    again, d_scores = fused_kernels.softmax_backward(scores.clone(), grads.clone(), lse, 0.3, is_open, chosen)
    assert torch.equal(probabilities, again) or dtype == torch.float32
    torch.testing.assert_close(probabilities, again, rtol=1e-5, atol=1e-7)
    wide, wide_lse = fused_kernels.softmax(scores.double(), 0.3, is_open, chosen)
    wide_grads = fused_kernels.softmax_backward(scores.double(), grads.double(), wide_lse, 0.3, is_open, chosen)[1]
    rounding = 2e-6 if dtype == torch.float32 else 8e-3
    torch.testing.assert_close(lse.double(), wide_lse, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(probabilities.double(), wide, rtol=rounding, atol=rounding * 1e-2)
    torch.testing.assert_close(d_scores.double(), wide_grads, rtol=rounding, atol=rounding * 5)


def test_softmax_without_dropout_is_softmax() -> None:
    scores = random_scores(2, 3, 4, 5, dtype=torch.float64)
    probabilities, lse = fused_kernels.softmax(scores.clone(), 0.5, None, None)
    torch.testing.assert_close(probabilities, (scores * 0.5).softmax(-1))
    torch.testing.assert_close(lse, (scores * 0.5).logsumexp(-1))


def test_softmax_backward_is_the_gradient() -> None:
    scores = random_scores(2, 3, 4, 6, dtype=torch.float64).requires_grad_()
    is_open = torch.rand(2, 1, 4, 6) < 0.8
    chosen, grads = mask(2, 3, 4, 6, 0.3), torch.randn(2, 3, 4, 6, dtype=torch.float64)
    dropped = (scores * 0.5).masked_fill(~is_open, -1e30).softmax(-1) * is_open * chosen.kept(scores) * chosen.scale
    dropped.backward(grads)
    assert scores.grad is not None
    with torch.no_grad():
        lse = fused_kernels.softmax(scores.clone(), 0.5, is_open, chosen)[1]
        probabilities, d_scores = fused_kernels.softmax_backward(scores, grads, lse, 0.5, is_open, chosen)
    torch.testing.assert_close(probabilities, dropped.detach())
    torch.testing.assert_close(d_scores, scores.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_hidden(dtype: torch.dtype, bad: float) -> None:
    scores = torch.zeros(1, 1, 2, 64, dtype=dtype)
    scores[0, 0, 0, 7] = bad
    probabilities, _ = fused_kernels.softmax(scores, 1.0, None, mask(1, 1, 2, 64, 0.1))
    assert probabilities[0, 0, 0].isnan().any()
    assert probabilities[0, 0, 1].isfinite().all()
    assert (
        not fused_kernels.dropout(torch.full((1, 1, 2, 64), bad, dtype=dtype), mask(1, 1, 2, 64, 0.1)).isfinite().any()
    )


@pytest.mark.usefixtures("plain")
def test_large_scores_do_not_overflow_without_the_library() -> None:
    test_large_scores_do_not_overflow()


def test_large_scores_do_not_overflow() -> None:
    scores = torch.tensor([-3e38, -1e30, 0.0, 3e38]).view(1, 1, 1, 4)
    probabilities, _ = fused_kernels.softmax(scores, 1.0, None, None)
    assert probabilities.flatten().tolist() == pytest.approx([0, 0, 0, 1], abs=1e-37)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 2, 0, 4)])
def test_nothing_in_nothing_out(shape: tuple[int, int, int, int]) -> None:
    probabilities, lse = fused_kernels.softmax(torch.zeros(shape), 1.0, None, None)
    assert probabilities.shape == shape
    assert lse.shape == shape[:3]


def test_drop_has_the_mask_times_the_scale_as_gradient() -> None:
    x = torch.randn(3, 4, 10, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda x: drop(x, words(12).view(3, 4), 0.4), x)
    torch.autograd.gradgradcheck(lambda x: drop(x, words(12).view(3, 4), 0.4), x)


def test_drop_at_the_ends() -> None:
    x = torch.randn(50, 20)
    assert torch.equal(drop(x, words(50), 0.0), x)
    assert torch.equal(drop(x, words(50), 1.0), torch.zeros(50, 20))
    assert (drop(x, words(50), 0.999) != 0).float().mean() < 0.01


# What follows looks at masks as numbers: a sum of n products of independent standardised masks has variance n.


def masks(p: float, keys: Tensor, width: int = 256) -> Tensor:
    kept = Mask(odd_words(keys)[None], column_words(1, width, CPU), p).kept(torch.empty(1, 1, len(keys), width))[0, 0]
    return (kept - (1 - p)) / math.sqrt(p * (1 - p))


def strength(a: Tensor, b: Tensor) -> float:
    return abs(float((a * b).sum())) / math.sqrt(a.numel())


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5])
def test_the_rate_is_right_overall_and_on_every_column_and_line(p: float) -> None:
    x = masks(p, fold(row_keys(1, 0, torch.arange(64))[:, None], torch.arange(64)).flatten())
    assert strength(x, torch.ones_like(x)) < 4.5
    for axis in (0, 1):
        sums = x.sum(axis) / math.sqrt(x.shape[axis])
        assert sums.abs().max() < 6
        assert abs(sums.square().mean() - 1) < 5 * math.sqrt(3 / sums.numel())


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_neighbours_rows_layers_epochs_seeds_and_passes_are_independent(p: float) -> None:
    positions = torch.arange(64)
    rows = row_keys(1, 0, torch.arange(64))
    keys = fold(rows[:, None], positions).flatten()
    x = masks(p, keys ^ stream_key("layer.0"))
    others = {
        "next feature": x.roll(1, 1),
        "next position": x.roll(1, 0),
        "next row": x.roll(64, 0),
        "layer": masks(p, keys ^ stream_key("layer.1")),
    }
    for name, other in {"epoch": (1, 1, 0), "seed": (2, 0, 0), "pass": (1, 0, 1)}.items():
        seed, epoch, pass_index = other
        rows = row_keys(seed, epoch, torch.arange(64), pass_index)
        others[name] = masks(p, fold(rows[:, None], positions).flatten() ^ stream_key("layer.0"))
    assert {name: strength(x, y) for name, y in others.items() if strength(x, y) > 4.5} == {}


def test_no_two_columns_go_together() -> None:
    x = masks(0.5, fold(row_keys(1, 0, torch.arange(64))[:, None], torch.arange(256)).flatten(), width=128)
    covariance = x.T @ x / math.sqrt(len(x))
    pairs = covariance[torch.triu(torch.ones(128, 128), 1) > 0]
    assert pairs.abs().max() < 6
    assert abs(pairs.square().mean() - 1) < 5 * math.sqrt(2 / pairs.numel())


def test_patterns_of_neighbouring_features_are_uniform() -> None:
    x = masks(0.5, fold(row_keys(1, 0, torch.arange(64))[:, None], torch.arange(256)).flatten(), width=64) > 0
    for start in (0, 17, 56):
        pattern = (x[:, start : start + 8].long() << torch.arange(8)).sum(1)
        counts = torch.bincount(pattern, minlength=256).double()
        expected = len(x) / 256
        assert float(((counts - expected) ** 2 / expected).sum()) < 255 + 5 * math.sqrt(2 * 255)


def test_heads_and_keys_of_attention_are_independent() -> None:
    chosen = Mask(odd_words(row_keys(1, 0, torch.arange(4096)))[None], column_words(12, 64, CPU), 0.5)
    x = chosen.kept(torch.empty(1, 12, 4096, 64))[0] * 2 - 1
    assert max(strength(x[0], x[head]) for head in range(1, 12)) < 4.5
    assert strength(x, x.roll(1, 2)) < 4.5
