import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lit_trainer.models.packing import Packing, open_to


@st.composite
def masks(draw: st.DrawFn) -> Tensor:
    rows, length = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    cells = draw(st.lists(st.booleans(), min_size=rows * length, max_size=rows * length))
    return torch.tensor(cells).view(rows, length).to(draw(st.sampled_from([torch.bool, torch.int64, torch.float32])))


@given(masks())
def test_packing_keeps_the_real_tokens_and_their_order_in_a_row(mask: Tensor) -> None:
    layout = Packing(mask)
    places = torch.arange(mask.numel()).view(mask.shape)
    packed = layout.pack(places)
    assert packed.shape == (1, layout.num_tokens)
    assert sorted(packed[0].tolist()) == places[mask != 0].tolist()
    start = 0
    for span in layout.spans:
        for row in packed[0, start : start + span.num_rows * span.length].view(span.num_rows, span.length):
            real = places[row[0] // mask.shape[1]][mask[row[0] // mask.shape[1]] != 0]
            assert torch.equal(row, real)
        start += span.num_rows * span.length
    assert start == layout.num_tokens
    assert layout.boundaries.tolist()[-1] == layout.num_tokens
    assert len({span.length for span in layout.spans}) == len(layout.spans)


@given(masks())
def test_unpacking_puts_tokens_back_among_zeros(mask: Tensor) -> None:
    layout = Packing(mask)
    states = torch.randn(*mask.shape, 3)
    torch.testing.assert_close(layout.unpack(layout.pack(states)), states * (mask != 0)[..., None], rtol=0, atol=0)


def test_what_all_rows_share_is_packed_for_each() -> None:
    layout = Packing(torch.tensor([[1, 1, 0], [1, 1, 1]]))
    assert layout.pack(torch.arange(3)[None]).tolist() == [[0, 1, 0, 1, 2]]


def test_a_full_batch_is_packed_without_a_copy() -> None:
    states = torch.randn(4, 5, 3)
    layout = Packing(torch.ones(4, 5))
    assert layout.pack(states).data_ptr() == states.data_ptr()
    assert layout.unpack(layout.pack(states)).data_ptr() == states.data_ptr()


@pytest.mark.parametrize("lengths", [[2], [2, 4], [2, 3, 0]])
def test_lengths_that_do_not_fit_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="do not fit an attention_mask with"):
        Packing(torch.tensor([[1, 1, 0], [1, 1, 1]]), lengths)


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 2, 5, 6])
def test_open_keys(length: int, causal: bool, window: int | None) -> None:
    is_open = open_to(length, causal, window, torch.device("cpu"))
    for query in range(length):
        for key in range(length):
            wanted = (key <= query or not causal) and (window is None or abs(query - key) < window)
            assert (is_open is None or bool(is_open[0, 0, query, key])) == wanted
