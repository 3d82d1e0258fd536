import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_trainer.optim.gradient_statistics import Statistics, combine, combine_norms, measure, norms, to_host

orders = pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.5, math.inf])


@orders
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_statistics_equal_those_of_single_tensor_operations(norm_type, dtype):
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in ((3, 5), (), (7,), (2, 3, 4))]
    tensors[0][1] = 0.0
    for tensor, found in zip(tensors, measure(tensors, norm_type), strict=True):
        assert found.norm == pytest.approx(float(torch.linalg.vector_norm(tensor.double(), norm_type)), rel=1e-5)
        assert found.largest == tensor.double().abs().max()
        assert found.num_zeros == int((tensor == 0).sum())
        assert found.num_non_finite == 0
        assert found.num_values == tensor.numel()


@orders
def test_several_tensors_combine_to_the_statistics_of_one(norm_type):
    parts = [torch.tensor([3.0, -7.0, 0.0]), torch.tensor([[0.0, 0.5]]), torch.tensor(2.0)]
    whole = torch.cat([part.flatten() for part in parts])
    found, expected = combine(measure(parts, norm_type), norm_type), measure([whole], norm_type)[0]
    assert found.norm == pytest.approx(expected.norm)
    assert (found.largest, found.num_zeros, found.num_values) == (7.0, 2, 6)


def test_opposite_values_do_not_cancel():
    """A mean of the gradient says nothing: it is 0 here."""
    (found,) = measure([torch.tensor([3.0, -3.0])])
    assert found.norm == pytest.approx(3.0 * math.sqrt(2.0))
    assert found.largest == 3.0


@pytest.mark.parametrize("position", range(3))
def test_what_is_not_finite_is_counted_and_seen_wherever_it_is(position):
    bad = torch.tensor([1.0, 2.0, 0.0])
    bad[position] = math.nan
    worse = torch.tensor([math.inf, -math.inf, math.nan, 1.0])
    fine = torch.tensor([4.0])
    rows = measure([fine, bad, torch.tensor([-math.inf]), worse])
    assert [row.num_non_finite for row in rows] == [0, 1, 1, 3]
    assert rows[2].largest == rows[2].norm == math.inf
    assert math.isnan(rows[1].largest)
    assert math.isnan(rows[1].norm)
    for order in (rows, rows[::-1]):
        assert math.isnan(combine(order).largest)
        assert combine(order).num_non_finite == 5


def test_half_precision_does_not_overflow():
    (found,) = measure([torch.full((1000,), 6e4, dtype=torch.float16)])
    assert found.norm == pytest.approx(6e4 * math.sqrt(1000), rel=1e-3)


def test_a_sum_of_squares_that_is_too_large_does_not_overflow():
    assert combine_norms([3e200, 4e200]) == pytest.approx(5e200)
    assert combine_norms([3e-200, 4e-200]) == pytest.approx(5e-200)
    assert combine_norms([0.0, 0.0]) == 0.0
    assert combine_norms([]) == 0.0


@given(st.lists(st.floats(0.0, 1e30), min_size=1, max_size=5), st.floats(0.5, 8.0))
def test_a_norm_lies_between_the_largest_part_and_the_sum(parts, norm_type):
    found = combine_norms(parts, norm_type)
    assert found >= max(parts) * (1 - 1e-9)
    if norm_type >= 1.0:
        assert found <= sum(parts) * (1 + 1e-9)


def test_sparse_gradients_are_measured_as_what_they_stand_for():
    table = torch.nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1, 1])).sum().backward()
    (found,) = measure([table.weight.grad])
    assert found == Statistics(
        norm=pytest.approx(math.sqrt(8.0)), largest=2.0, num_zeros=6, num_non_finite=0, num_values=8
    )


def test_nothing_is_measured_as_nothing():
    assert measure([]) == []
    assert norms([]) == []
    assert to_host([], []) == [[], []]
    assert combine([]) == Statistics(0.0, 0.0, 0, 0, 0)


def test_columns_come_back_in_order_and_counts_exactly():
    large = 2**40 + 1
    assert to_host([torch.tensor(1.5)], [], [torch.tensor(large), torch.tensor(2)]) == [[1.5], [], [large, 2]]


def test_the_host_waits_once(monkeypatch):
    waits = []
    original = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: waits.append(self.numel()) or original(self))
    for name in ("item", "__bool__", "__float__", "__int__"):
        monkeypatch.setattr(torch.Tensor, name, lambda self, name=name: pytest.fail(f"{name} waits for the device"))
    measure([torch.ones(3) for _ in range(50)])
    assert waits == [200]
