import pytest
import torch
from torch import Tensor

from lit_trainer.batch import is_counted
from lit_trainer.losses import base
from lit_trainer.losses.base import Loss, declared, one_pass


class AbsoluteError(Loss):
    def total(self, logits: Tensor, labels: Tensor) -> Tensor:
        counted = is_counted(labels)
        return (logits.squeeze(-1) - labels.where(counted, 0)).abs().where(counted, 0).sum()


class Spy(Loss):
    """Keeps what it was given."""

    def total(self, logits: Tensor, features: Tensor | None = None, **others: object) -> Tensor:
        self.seen = {"logits": logits, "features": features, "autocast": torch.is_autocast_enabled("cpu"), **others}
        return logits.sum()


def test_the_loss_of_the_module_docstring_works_as_written():
    code = base.__doc__.split("::\n\n")[1].split("\n\nIts weight")[0]
    scope = {"Loss": Loss, "Tensor": Tensor, "is_counted": is_counted}
    exec("if True:\n" + code, scope)
    assert len(code.splitlines()) <= 10
    total, weight = scope["AbsoluteError"]()(
        logits=torch.tensor([[1.0], [5.0], [2.0]]), labels=torch.tensor([3.0, 4.0, torch.nan])
    )
    assert (total.item(), weight.item()) == (3.0, 2.0)


def test_a_loss_gets_the_arguments_it_declares_and_no_others():
    total, _ = AbsoluteError()(logits=torch.ones(2, 1), labels=torch.zeros(2), batch={}, progress=0.5, features=None)
    assert total == 2


def test_a_loss_that_asks_for_what_there_is_not_is_told_what_there_is():
    class Wrong(Loss):
        def total(self, logits: Tensor, targets: Tensor) -> Tensor:
            return logits.sum()

    with pytest.raises(
        ValueError, match="the loss Wrong asks for targets; a loss can ask, by name, for labels, logits"
    ):
        Wrong()(logits=torch.ones(2), labels=torch.ones(2))


def test_positional_only_parameters_are_told_and_not_called():
    def f(logits, /, labels):
        return logits

    with pytest.raises(ValueError, match="the loss f asks for logits; a loss can ask, by name, for"):
        declared(f, {"logits": 1, "labels": 2}, "f")


def test_missing_arguments_are_found_beside_variable_ones():
    def f(logits, targets, *args, **kwargs):
        return logits

    with pytest.raises(ValueError, match="asks for targets"):
        declared(f, {"logits": 1, "labels": 2}, "f")
    assert declared(lambda logits, *args, other=1: 0, {"logits": 1, "labels": 2}, "f") == {"logits": 1}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_loss_of_ones_own_is_computed_in_float32_without_autocast(dtype):
    spy = Spy()
    with torch.autocast("cpu", torch.bfloat16):
        spy(
            logits={"a": torch.ones(2, 3, dtype=dtype)}["a"],
            labels=torch.ones(2, dtype=dtype),
            features=torch.ones(2, 3, dtype=dtype),
        )
        assert torch.is_autocast_enabled("cpu")
    assert spy.seen["logits"].dtype == spy.seen["features"].dtype == spy.seen["labels"].dtype == torch.float32
    assert not spy.seen["autocast"]


def test_gradients_reach_half_precision_logits_in_their_own_type():
    logits = torch.ones(2, 1, dtype=torch.float16, requires_grad=True)
    AbsoluteError()(logits=logits, labels=torch.zeros(2))[0].backward()
    assert logits.grad.dtype == torch.float16


def test_casting_to_half_leaves_a_loss_and_what_is_in_it_in_float32():
    class ScaledError(AbsoluteError):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.tensor(1 / 3))
            self.head = torch.nn.Linear(2, 2)

    model = torch.nn.ModuleDict({"net": torch.nn.Linear(2, 2), "loss": ScaledError()}).half()
    assert model["net"].weight.dtype == torch.float16
    assert model["loss"].head.weight.dtype == torch.float32
    assert model["loss"].scale == torch.tensor(1 / 3)
    assert model.double()["loss"].scale.dtype == torch.float64
    assert model.to("meta")["loss"].scale.is_meta


def test_labels_of_several_heads_are_refused_by_a_loss_for_one():
    with pytest.raises(
        ValueError, match=r"AbsoluteError takes the labels of one head and got those of a, b; .*MultiTask"
    ):
        AbsoluteError()(logits=torch.ones(2), labels={"a": torch.ones(2), "b": torch.ones(2)})


def test_weights_add_up_exactly_where_float32_would_not():
    weight = AbsoluteError().weight(torch.zeros(2**24 + 1))
    assert weight.dtype == torch.float64
    assert weight == 2**24 + 1


def test_a_loss_without_need_of_the_labels_ignores_them():
    assert AbsoluteError().fit_to_labels(["a"], [1], num_rows=1, head="x") is None


def test_one_pass_takes_it_from_model_outputs_only():
    offered = {
        "logits": {"a": torch.arange(4).view(2, 2)},
        "features": torch.arange(2),
        "labels": torch.arange(2),
        "batch": {"x": torch.arange(2)},
        "progress": 0.5,
    }
    second = one_pass(offered, 1)
    assert second["logits"]["a"].tolist() == [2, 3]
    assert second["features"] == 1
    assert second["labels"] is offered["labels"]
    assert second["batch"] is offered["batch"]
