import math

import pytest
import torch
from torch.nn import functional as F

from lit_trainer.losses.cross_entropy import CrossEntropy
from lit_trainer.losses.function import FunctionLoss
from lit_trainer.losses.mean_squared_error import MeanSquaredError

from .functions import negative_log_likelihood, squared_error

LOGITS, LABELS = torch.randn(5, 3), torch.tensor([0, 2, -100, 1, 1])


def call(function, returns="values", **more):
    return FunctionLoss(function, returns)(**{"logits": LOGITS, "labels": LABELS, "batch": {}, "progress": 0.5} | more)


def test_a_function_of_values_is_the_loss_it_computes():
    for here, there in zip(call(negative_log_likelihood), CrossEntropy()(logits=LOGITS, labels=LABELS), strict=True):
        torch.testing.assert_close(here, there)


def test_transformers_36331_a_function_is_called_by_the_arguments_it_declares():
    def with_batch(logits, labels, batch):
        assert batch == {"row": 1}
        return negative_log_likelihood(logits, labels)

    def with_more(logits, labels, num_items_in_batch=None, *, progress, **kwargs):
        assert (num_items_in_batch, progress) == (None, 0.5)
        assert kwargs == {"batch": {"row": 1}}
        return negative_log_likelihood(logits, labels)

    def in_another_order(labels, logits, **kwargs):
        return negative_log_likelihood(logits, labels)

    for function in (negative_log_likelihood, with_batch, with_more, in_another_order):
        assert call(function, batch={"row": 1}) == call(negative_log_likelihood)


def test_transformers_36331_an_argument_that_is_not_offered_is_told():
    def blog_style(outputs, labels):
        return outputs

    with pytest.raises(
        ValueError, match="the loss blog_style asks for outputs; a loss can ask, by name, for batch, labels, logits"
    ):
        call(blog_style)


def test_a_function_need_not_care_for_missing_values():
    logits = torch.tensor([[1.0], [2.0], [3.0]], requires_grad=True)
    labels = torch.tensor([0.0, float("nan"), 1.0])
    total, weight = FunctionLoss(squared_error)(logits=logits, labels=labels)
    total.backward()
    assert (total, weight) == MeanSquaredError()(logits=logits, labels=labels) == (5, 2)
    assert logits.grad.flatten().tolist() == [2, 0, 4]


def test_a_function_that_cannot_take_minus_a_hundred_need_not():
    def picked(logits, labels):
        return -logits.log_softmax(-1).gather(-1, labels[:, None])[:, 0]

    torch.testing.assert_close(call(picked)[0], call(negative_log_likelihood)[0])


@pytest.mark.parametrize("returned", [torch.tensor(1.0), LOGITS.sum()])
def test_a_mean_is_refused_with_what_to_return(returned):
    with pytest.raises(
        ValueError, match=r"mean returned a single number; return one value for each label, of shape \[5\]"
    ):
        call(named("mean", returned))


def test_a_mean_is_refused_with_the_other_way_out_and_the_reason():
    with pytest.raises(
        ValueError, match=r"`returns: total_and_weight` .* weigh rows by how the step happens to be split"
    ):
        call(lambda logits, labels: F.cross_entropy(logits, labels))


def named(name, returned):
    def function(logits, labels):
        return returned

    function.__name__ = name
    return function


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            (torch.tensor(1.0), 2),
            r"f returned a tuple; return one value for each label, of shape \[5\], or say `returns",
        ),
        (1.0, r"f returned a float; return one value for each label, of shape \[5\]"),
        (None, r"f returned a NoneType; return one value"),
        (torch.ones(5, 1), r"f returned the shape \[5, 1\]; return one value for each label, of shape \[5\]"),
        (torch.ones(5, 5), r"f returned the shape \[5, 5\]; return one value for each label, of shape \[5\]"),
    ],
)
def test_what_is_not_one_value_per_label_is_told(returned, message):
    with pytest.raises(ValueError, match=message):
        call(named("f", returned))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (torch.tensor(1.0), r"f returned a Tensor; with `returns: total_and_weight` return \(total, weight\)"),
        ((1.0, 2.0), "f returned a tuple; with"),
        ((torch.tensor(1.0), 1, 2), "f returned a tuple; with"),
        ((torch.ones(5), 5), r"f returned shapes \[5\] and \[\]; total and weight are single numbers"),
        ((torch.tensor(1.0), torch.ones(5)), r"f returned shapes \[\] and \[5\]; total"),
    ],
)
def test_what_is_no_total_and_weight_is_told(returned, message):
    with pytest.raises(ValueError, match=message):
        call(named("f", returned), "total_and_weight")


@pytest.mark.parametrize("weight", [3, 3.0, torch.tensor(3), torch.tensor(3.0, requires_grad=True)])
def test_a_function_may_bring_its_own_weight(weight):
    loss = FunctionLoss(named("f", (torch.tensor(6.0), weight)), "total_and_weight")
    assert loss.deferred
    total, found = loss(logits=LOGITS, labels=LABELS)
    assert (total, found) == (6, 3)
    assert not found.requires_grad
    with pytest.raises(RuntimeError, match="the weight of f is known only with its total"):
        loss.weight(LABELS)


def test_a_function_with_its_own_weight_sees_the_labels_as_they_are():
    def counting(logits, labels):
        assert labels is LABELS
        return logits.sum(), (labels != -100).sum()

    assert call(counting, "total_and_weight")[1] == 4


def test_a_module_is_called_by_what_its_forward_declares():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, logits, labels):
            return self.scale * negative_log_likelihood(logits, labels)

    loss = FunctionLoss(Scaled())
    torch.testing.assert_close(loss(logits=LOGITS, labels=LABELS, batch={})[0], 2 * call(negative_log_likelihood)[0])
    assert list(loss.state_dict()) == ["function.scale"]
    with pytest.raises(ValueError, match="the loss CrossEntropyLoss asks for input, target; a loss can ask"):
        call(torch.nn.CrossEntropyLoss(reduction="none"))


def test_half_precision_reaches_a_function_as_float32():
    def checked(logits, labels):
        assert logits.dtype == torch.float32
        return negative_log_likelihood(logits, labels)

    assert call(checked, logits=LOGITS.half())[0].dtype == torch.float32


def test_a_function_may_look_at_features():
    assert call(lambda features, labels: features.sum(-1), features=torch.ones(5, 2))[0] == 8


def test_a_row_alone_is_not_taken_for_a_mean():
    logits, labels = LOGITS[:1], LABELS[:1]
    assert FunctionLoss(negative_log_likelihood)(logits=logits, labels=labels)[1] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((math.hypot,), "the parameters of the loss function hypot cannot be told"),
        ((squared_error, "mean"), "returns is 'mean'; it is values or total_and_weight"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        FunctionLoss(*arguments)


def test_labels_of_several_heads_go_to_multi_task():
    with pytest.raises(ValueError, match=r"takes the labels of one head and got those of a; .*MultiTask"):
        call(negative_log_likelihood, labels={"a": LABELS})
