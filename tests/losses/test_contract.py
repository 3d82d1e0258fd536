"""What holds for every loss of the package."""

import copy
import importlib
import inspect
import pickle
import pkgutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import lit_trainer.losses
from lit_trainer.batch import ignored_like
from lit_trainer.losses.base import Loss

from .conftest import Example, changed, once, outputs_of, some_rows


def loss_classes() -> list[type[Loss]]:
    modules = [
        importlib.import_module(f"lit_trainer.losses.{module.name}")
        for module in pkgutil.iter_modules(lit_trainer.losses.__path__)
    ]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Loss) and value.__module__ == module.__name__
        if not inspect.isabstract(value)
    ]


@pytest.mark.parametrize("loss_class", loss_classes())
def test_every_loss_has_an_example(loss_class: type[Loss], examples: list[Example]) -> None:
    path = f"{loss_class.__module__}.{loss_class.__name__}".removeprefix("lit_trainer.losses.")
    assert path in {example.path for example in examples}, f"add an example of {path} to tests/losses/conftest.py"


@pytest.mark.parametrize("loss_class", loss_classes())
def test_every_loss_says_what_its_arguments_and_shapes_are(loss_class: type[Loss]) -> None:
    text = inspect.getdoc(loss_class) or ""
    parameters = inspect.signature(loss_class).parameters.values()
    assert all(f"    {p.name}: " in text for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
    assert "Shapes: " in text


@settings(deadline=None, max_examples=25)
@given(parts=st.lists(st.integers(0, 3), min_size=1, max_size=12), seed=st.integers(0, 99))
def test_the_parts_of_any_split_add_up_to_the_whole(row_wise_example: Example, parts: list[int], seed: int) -> None:
    loss = row_wise_example.loss()
    offered = changed(row_wise_example.rows(len(parts), seed), lambda x: x.requires_grad_(), lambda y: y)
    whole = loss(**offered)
    index = [torch.tensor([row for row, p in enumerate(parts) if p == part], dtype=torch.long) for part in range(4)]
    totals, weights = zip(*(loss(**some_rows(loss, offered, rows)) for rows in index), strict=True)
    torch.testing.assert_close(sum(totals), whole[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(sum(weights).double(), whole[1].double(), rtol=1e-12, atol=1e-12)
    leaves = outputs_of(offered)
    for of_parts, of_whole in zip(gradients(sum(totals), leaves), gradients(whole[0], leaves), strict=True):
        torch.testing.assert_close(of_parts, of_whole, rtol=1e-12, atol=1e-12)


def gradients(total: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(total.sum(), leaves, retain_graph=True, materialize_grads=True))


def test_a_loss_says_whether_it_compares_rows(example: Example) -> None:
    assert example.loss().across_rows == example.across_rows


def test_the_order_of_the_rows_does_not_matter(example: Example) -> None:
    loss, offered = example.loss(), example.rows(12)
    for here, there in zip(loss(**offered), loss(**some_rows(loss, offered, torch.randperm(12))), strict=True):
        torch.testing.assert_close(here, there, rtol=1e-12, atol=1e-12)


def test_gradients_are_those_of_the_total(example: Example) -> None:
    loss, offered = example.loss(), example.rows(5)
    leaves = [leaf.requires_grad_() for leaf in outputs_of(offered)]
    assert torch.autograd.gradcheck(lambda *_: loss(**offered)[0], (*leaves, *loss.parameters()))


def test_the_weight_follows_from_the_labels_unless_it_is_deferred(example: Example) -> None:
    loss, offered = example.loss(), example.rows(9)
    if not loss.deferred:
        torch.testing.assert_close(loss.weight(offered["labels"]), loss(**offered)[1], rtol=0, atol=0)


@pytest.mark.parametrize("num_rows", [0, 1, 7])
def test_nothing_is_learnt_where_every_label_is_ignored(example: Example, num_rows: int) -> None:
    """The report pytorch#70348: the mean over no labels is NaN and poisons the run."""
    loss = example.loss()
    offered = changed(example.rows(num_rows), lambda x: x.requires_grad_(), ignored_like)
    with torch.autograd.set_detect_anomaly(True):  # nor is there a NaN on the way, which would end a debugging run
        total, weight = loss(**offered)
        total.sum().backward()
    assert not total.any()
    assert not weight.any()
    assert all(not leaf.grad.any() for leaf in outputs_of(offered) if leaf.grad is not None)
    assert all(not parameter.grad.any() for parameter in loss.parameters())


def test_an_ignored_row_adds_nothing_and_disturbs_no_other(example: Example) -> None:
    loss, offered = example.loss(), example.rows(6)
    axis = 1 if loss.passes > 1 else 0
    rows = torch.arange(6) < 2
    offered = changed(offered, lambda x: x, lambda y: torch.cat([ignored_like(y[:2]), y[2:]]))
    other = changed(
        offered, lambda x: (x + 50 * rows.view(-1, *[1] * (x.dim() - axis - 1))).requires_grad_(), lambda y: y
    )
    assert all(torch.equal(one, two) for one, two in zip(loss(**offered), loss(**other), strict=True))
    for gradient in gradients(loss(**other)[0], outputs_of(other)):
        assert not gradient.narrow(axis, 0, 2).any()


@pytest.mark.parametrize(("dtype", "size"), [(torch.float16, 6e4), (torch.bfloat16, 1e5)])
def test_half_precision_outputs_are_computed_with_in_float32(example: Example, dtype: torch.dtype, size: float) -> None:
    """The reports Lightning#2468 and NVIDIA/apex#837: half logits beside float weights, and the reverse."""
    loss = example.loss().float().to(dtype)
    half = changed(
        example.rows(8), lambda x: (x * size).clamp(-size, size).to(dtype).requires_grad_(), to_float32_if_float
    )
    full = changed(half, lambda x: x.detach().float(), lambda y: y)
    total, weight = loss(**half)
    assert (total.dtype, weight.dtype) == (torch.float32, torch.float64)
    for here, there in zip((total, weight), loss(**full), strict=True):
        assert torch.equal(here, there)
    assert total.isfinite().all()
    total.sum().backward()
    if not has_steep_slopes(example):
        assert all(leaf.grad.isfinite().all() for leaf in outputs_of(half) if leaf.grad is not None)


def to_float32_if_float(labels: Tensor) -> Tensor:
    return labels.float() if labels.is_floating_point() else labels


def has_steep_slopes(example: Example) -> bool:
    """Whether it squares errors: at this size their slope is rightly outside of half precision."""
    return "squared" in str(example.config)


def test_autocast_changes_nothing(example: Example) -> None:
    loss = example.loss()
    offered = changed(example.rows(8), lambda x: x.bfloat16(), lambda y: y)
    outside = loss(**offered)
    with torch.autocast("cpu", torch.bfloat16):
        inside = loss(**offered)
    assert all(torch.equal(here, there) for here, there in zip(outside, inside, strict=True))


def test_float64_stays(example: Example) -> None:
    assert example.loss()(**example.rows(8))[0].dtype == torch.float64


def test_a_call_changes_neither_its_inputs_nor_the_next_call(example: Example) -> None:
    loss, offered = example.loss(), example.rows(8)
    before = copy.deepcopy(offered)
    first, second = loss(**offered), loss(**offered)
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))
    torch.testing.assert_close(outputs_of(offered), outputs_of(before), rtol=0, atol=0)
    torch.testing.assert_close(offered["labels"], before["labels"], rtol=0, atol=0, equal_nan=True)


def test_copies_and_pickles_give_the_same(example: Example) -> None:
    loss, offered = example.loss(), example.rows(8)
    for twin in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert all(torch.equal(one, two) for one, two in zip(loss(**offered), twin(**offered), strict=True))


def test_a_checkpoint_loads_strictly_whether_the_labels_are_known_or_not(example: Example) -> None:
    state = example.loss().state_dict()
    example.unfitted().load_state_dict(state)
    example.loss().load_state_dict(example.unfitted().state_dict())


def test_constants_are_buffers_that_move_and_stay_float32(example: Example) -> None:
    """The report Lightning#2984: losses in a plain list kept their weights on the CPU."""
    loss = example.loss().float()
    for half in (loss.half(), loss.to(torch.bfloat16)):
        assert all(tensor.dtype == torch.float32 for tensor in (*half.parameters(), *half.buffers()))
    assert not [key for module in loss.modules() for key, value in vars(module).items() if isinstance(value, Tensor)]
    loss.to("meta")
    assert all(tensor.is_meta for tensor in (*loss.parameters(), *loss.buffers()))


def test_evaluation_takes_one_pass(example: Example) -> None:
    loss = example.loss()
    offered = once(example.rows(8)) if loss.passes > 1 else example.rows(8)
    loss.eval()
    assert loss.passes == 1
    assert all(value.isfinite().all() for value in loss(**offered))


def test_fitting_twice_is_fitting_once(example: Example) -> None:
    loss = example.loss()
    before = [buffer.clone() for buffer in loss.buffers()]
    example.fit(loss)
    torch.testing.assert_close(list(loss.buffers()), before, rtol=1e-7, atol=0)
