import pytest
import torch
from torch.nn import functional as F

from lit_trainer.losses.binary_cross_entropy import BinaryCrossEntropy
from lit_trainer.losses.cross_entropy import CrossEntropy
from lit_trainer.losses.focal import FocalLoss
from lit_trainer.losses.function import FunctionLoss
from lit_trainer.losses.mean_squared_error import MeanSquaredError
from lit_trainer.losses.multi_task import MultiTask
from lit_trainer.losses.r_drop import RDrop

from .functions import negative_log_likelihood, weighted_negative_log_likelihood

LOGITS, LABELS = torch.randn(2, 6, 3, dtype=torch.float64), torch.tensor([0, 1, 2, -100, 1, 0])


def kl(p, q):
    return F.kl_div(q.log_softmax(-1), p.log_softmax(-1), log_target=True, reduction="none").sum(-1)


def test_it_is_the_mean_of_the_losses_and_alpha_times_that_of_both_divergences():
    first, second = LOGITS
    counted = LABELS != -100
    nll = sum(F.cross_entropy(each, LABELS, reduction="sum") for each in LOGITS) / 2
    divergence = ((kl(first, second) + kl(second, first)) / 2)[counted].sum()
    total, weight = RDrop(CrossEntropy(), 0.7)(logits=LOGITS, labels=LABELS)
    torch.testing.assert_close(total, nll + 0.7 * divergence)
    assert weight == 5


@pytest.mark.parametrize("loss", [CrossEntropy([1, 5, 2], 0.1), FocalLoss(2.0), FunctionLoss(negative_log_likelihood)])
def test_with_alpha_zero_it_is_the_mean_of_the_loss_over_both_passes(loss):
    total, weight = RDrop(loss, 0.0)(logits=LOGITS, labels=LABELS)
    first, second = (loss(logits=each, labels=LABELS)[0] for each in LOGITS)
    torch.testing.assert_close(total, (first + second) / 2)
    assert weight == loss.weight(LABELS)


def test_equal_passes_have_nothing_to_agree_on():
    same = LOGITS[:1].expand(2, -1, -1)
    torch.testing.assert_close(
        RDrop(CrossEntropy(), 9.0)(logits=same, labels=LABELS), CrossEntropy()(logits=same[0], labels=LABELS)
    )


def test_rows_weigh_in_the_divergence_as_they_do_in_the_loss():
    """Weights [3, 3, 3] are no weights, once total is divided by weight."""
    (weighted, weight), (plain, count) = (
        RDrop(CrossEntropy(weights), 2.0)(logits=LOGITS, labels=LABELS) for weights in ([3, 3, 3], None)
    )
    torch.testing.assert_close(weighted / weight, plain / count)
    only_ones = RDrop(CrossEntropy([0, 1, 0]), 2.0)(logits=LOGITS, labels=LABELS)
    ones = LABELS == 1
    torch.testing.assert_close(only_ones, RDrop(CrossEntropy(), 2.0)(logits=LOGITS[:, ones], labels=LABELS[ones]))


def test_several_labels_per_row_diverge_one_by_one():
    labels = torch.tensor([[1.0, 0.0, float("nan")]] * 6, dtype=torch.float64)
    total, weight = RDrop(BinaryCrossEntropy(), 1.0)(logits=LOGITS, labels=labels)
    first, second = (torch.stack([torch.zeros_like(each), each], -1) for each in LOGITS)
    divergence = ((kl(first, second) + kl(second, first)) / 2)[:, :2].sum()
    nll = sum(F.binary_cross_entropy_with_logits(each[:, :2], labels[:, :2], reduction="sum") for each in LOGITS) / 2
    torch.testing.assert_close(total, nll + divergence)
    assert weight == 12


@pytest.mark.parametrize(("shape", "dtype"), [((2, 6, 1), torch.long), ((2, 6), torch.float64)])
def test_one_logit_for_a_yes_or_no_works(shape, dtype):
    labels = torch.tensor([0, 1, 1, 0, 1, 0], dtype=dtype)
    logits = torch.randn(shape, dtype=torch.float64)
    two = torch.stack([torch.zeros(2, 6, dtype=torch.float64), logits.view(2, 6)], -1)
    here = RDrop(BinaryCrossEntropy())(logits=logits, labels=labels)
    torch.testing.assert_close(here, RDrop(CrossEntropy())(logits=two, labels=labels.long()))


def test_tokens_work():
    logits, labels = torch.randn(2, 3, 4, 5), torch.randint(5, (3, 4))
    flat = RDrop(CrossEntropy())(logits=logits.flatten(1, 2), labels=labels.flatten())
    torch.testing.assert_close(RDrop(CrossEntropy())(logits=logits, labels=labels), flat)


def test_the_model_runs_twice_in_training_and_once_in_evaluation():
    loss = RDrop(CrossEntropy())
    assert loss.passes == 2
    loss.eval()
    assert loss.passes == 1
    assert loss(logits=LOGITS[0], labels=LABELS) == CrossEntropy()(logits=LOGITS[0], labels=LABELS)


def test_it_hands_on_what_the_wrapped_loss_needs():
    seen = []

    def values(logits, labels, features, progress):
        seen.append((features.shape, progress))
        return negative_log_likelihood(logits, labels)

    loss = RDrop(FunctionLoss(values))
    loss(logits=LOGITS, labels=LABELS, features=torch.ones(2, 6, 4), progress=0.5, batch={})
    assert seen == [((6, 4), 0.5)] * 2


def test_it_hands_on_the_labels_there_are():
    loss = RDrop(CrossEntropy("balanced"))
    loss.fit_to_labels(["a", "b", "c"], [1, 1, 2])
    assert loss.weight(torch.tensor([2])) == pytest.approx(4 / 6)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda: RDrop(CrossEntropy()), "RDrop runs the model twice and cannot wrap RDrop, which does so itself"),
        (lambda: MultiTask({"a": CrossEntropy()}, {"a": 1.0}), "inside MultiTask, wrap each term that should have it"),
        (lambda: FunctionLoss(weighted_negative_log_likelihood, "total_and_weight"), "cannot wrap FunctionLoss, whose"),
    ],
)
def test_what_cannot_be_wrapped_is_refused_at_once(loss, message):
    with pytest.raises(ValueError, match=message):
        RDrop(loss())


@pytest.mark.parametrize("alpha", [-1.0, float("nan"), float("inf")])
def test_alpha_is_at_least_zero(alpha):
    with pytest.raises(ValueError, match=r"alpha is .*; it has to be a finite number of at least 0"):
        RDrop(CrossEntropy(), alpha)


def test_values_have_no_probabilities_to_compare():
    with pytest.raises(ValueError, match=r"RDrop compares predicted probabilities, and MeanSquaredError .* has none"):
        RDrop(MeanSquaredError())(logits=torch.ones(2, 6, 1), labels=torch.ones(6))


def test_logits_of_one_pass_are_told():
    with pytest.raises(ValueError, match=r"RDrop takes the logits of two passes, \[2, B, ...\]; got \[6, 3\]"):
        RDrop(CrossEntropy())(logits=LOGITS[0], labels=LABELS)
