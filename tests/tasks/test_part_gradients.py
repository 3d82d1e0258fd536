"""Gradients that are added up over parts are those of the whole."""

import pytest
import torch
from torch import nn

from lit_trainer.tasks.part_gradients import GradientMarks, PartGradients


def test_parts_add_up_also_where_gradients_share_memory():
    x = torch.randn(6, 3, dtype=torch.float64)
    names = ("a", "b", "c", "unused")
    parameters = [nn.Parameter(torch.randn(3, dtype=torch.float64)) for _ in names]
    a, b, c, _ = parameters

    def totals(rows):
        # a and b get one and the same gradient, c one that is a single number seen three times
        return torch.stack([((a + b) * rows.sum(0)).sum(), c.sum() * rows.sum()])

    factor = torch.tensor([0.5, 3.0], dtype=torch.float64)
    parts = PartGradients(parameters, factor)
    for rows in (x[:1], x[1:4], x[4:]):
        parts.add(totals(rows), torch.ones(2))
    parts.attach(torch.tensor(7.0), torch.tensor(2.0)).backward()
    found = [parameter.grad for parameter in parameters]
    expected = torch.autograd.grad((totals(x) * factor).sum() / 2, parameters, allow_unused=True)
    assert found[3] is None
    for one, other in zip(found[:3], expected[:3], strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(parts.total, totals(x).detach())
    assert parts.weight.tolist() == [3, 3]


def test_a_backward_pass_that_fails_leaves_marks_of_what_it_has_reached():
    early, late = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))

    def fail(gradient):
        raise torch.OutOfMemoryError("no")

    for has_gradients in (False, True):
        marks = GradientMarks([early, late])
        hidden = early * 2
        hidden.register_hook(fail)
        with pytest.raises(torch.OutOfMemoryError):
            (hidden * late).sum().backward()
        assert [parameter is early for parameter in marks.unreached()] == [True]
        if not has_gradients:
            early.grad = torch.zeros(2)


def test_a_total_without_a_gradient_adds_nothing():
    parameter = nn.Parameter(torch.ones(2))
    parts = PartGradients([parameter], torch.tensor(1.0))
    parts.add(torch.tensor(0.0), torch.tensor(0.0))
    assert not parts.attach(torch.tensor(1.0), torch.tensor(1.0)).requires_grad
