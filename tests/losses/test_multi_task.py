import math

import pytest
import torch
from torch import nn

from lit_trainer.losses.contrastive import SupervisedContrastive
from lit_trainer.losses.cross_entropy import CrossEntropy
from lit_trainer.losses.function import FunctionLoss
from lit_trainer.losses.in_batch_negatives import InBatchNegatives
from lit_trainer.losses.mean_squared_error import MeanSquaredError
from lit_trainer.losses.multi_task import MultiTask
from lit_trainer.losses.r_drop import RDrop

from .functions import weighted_negative_log_likelihood

NAN = float("nan")
LOGITS = {"topic": torch.randn(5, 3, dtype=torch.float64), "score": torch.randn(5, 1, dtype=torch.float64)}
LABELS = {"topic": torch.tensor([0, 1, -100, 2, 1]), "score": torch.tensor([1.0, NAN, NAN, 2.0, 0.0]).double()}


def two(weights):
    return MultiTask({"topic": CrossEntropy([1, 5, 2]), "score": MeanSquaredError()}, weights)


def alone():
    pairs = [
        CrossEntropy([1, 5, 2])(logits=LOGITS["topic"], labels=LABELS["topic"]),
        MeanSquaredError()(logits=LOGITS["score"], labels=LABELS["score"]),
    ]
    return [torch.stack(each) for each in zip(*pairs, strict=True)]


def test_each_term_has_its_own_head_weight_and_denominator():
    totals, weights = two({"topic": 1.0, "score": 0.3})(logits=LOGITS, labels=LABELS)
    torch.testing.assert_close(totals, alone()[0] * torch.tensor([1.0, 0.3], dtype=torch.float64))
    assert weights.tolist() == [13, 3]


def test_the_order_is_that_of_the_losses_and_not_of_the_weights():
    orders = {"topic": 2.0, "score": 0.5}, {"score": 0.5, "topic": 2.0}
    here, there = (two(weights)(logits=LOGITS, labels=LABELS)[0] for weights in orders)
    assert torch.equal(here, there)


def test_one_term_of_weight_one_is_the_loss_itself():
    total, weight = MultiTask({"only": CrossEntropy()}, {"only": 1})(logits=LOGITS["topic"], labels=LABELS["topic"])
    expected = CrossEntropy()(logits=LOGITS["topic"], labels=LABELS["topic"])
    assert (total[0], weight[0]) == expected


def test_a_scheduled_weight_is_a_function_of_the_progress():
    loss = two({"topic": 1.0, "score": lambda progress: 1 - progress})
    for progress in (0.0, 0.25, torch.tensor(1.0)):
        totals, _ = loss(logits=LOGITS, labels=LABELS, progress=progress)
        torch.testing.assert_close(totals[1], alone()[0][1] * (1 - float(progress)))


def test_a_scheduled_weight_without_progress_is_told():
    with pytest.raises(
        ValueError, match="the weight of score is a function of the progress, and no progress is offered"
    ):
        two({"topic": 1.0, "score": math.sqrt})(logits=LOGITS, labels=LABELS)


def test_learned_weights_begin_with_the_plain_sum():
    loss = two("uncertainty")
    assert torch.equal(loss(logits=LOGITS, labels=LABELS)[0], alone()[0])
    assert [name for name, _ in loss.named_parameters()] == ["log_variances"]


def test_learned_weights_are_the_means_with_their_regulariser():
    loss = two("uncertainty").double()
    nn.init.constant_(loss.log_variances, 0.4)
    totals, weights = loss(logits=LOGITS, labels=LABELS)
    means = alone()[0] / alone()[1]
    torch.testing.assert_close(totals / weights, math.exp(-0.4) * means + 0.4)
    (totals / weights).sum().backward()
    torch.testing.assert_close(loss.log_variances.grad, 1 - math.exp(-0.4) * means)


def test_learned_weights_settle_where_each_mean_weighs_one():
    loss = two("uncertainty").double()
    with torch.no_grad():
        loss.log_variances.copy_((alone()[0] / alone()[1]).log())
    totals, weights = loss(logits=LOGITS, labels=LABELS)
    (totals / weights).sum().backward()
    torch.testing.assert_close(loss.log_variances.grad, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-14)


def test_a_term_without_labels_leaves_its_learned_weight_alone():
    loss = two("uncertainty")
    labels = {**LABELS, "score": torch.full((5,), NAN)}
    totals, weights = loss(logits=LOGITS, labels=labels)
    totals.sum().backward()
    assert (totals[1], weights[1], loss.log_variances.grad[1]) == (0, 0, 0)


def test_terms_share_what_is_not_by_name():
    logits, labels, features = LOGITS["topic"], torch.tensor([0, 1, 0, 2, 1]), torch.randn(5, 4, dtype=torch.float64)
    loss = MultiTask({"main": CrossEntropy(), "near": SupervisedContrastive()}, {"main": 1.0, "near": 0.5})
    totals, weights = loss(logits=logits, labels=labels, features=features)
    near, count = SupervisedContrastive()(features=features, labels=labels)
    assert loss.across_rows
    assert (totals[1], weights[1]) == (near / 2, count)


def test_a_term_gets_the_features_of_its_name_or_all_of_them():
    pair = {"image": torch.randn(5, 4), "text": torch.randn(5, 4)}
    loss = MultiTask({"match": InBatchNegatives(), "text": SupervisedContrastive()}, {"match": 1.0, "text": 1.0})
    labels = torch.tensor([0, 1, 0, 1, 1])
    totals, _ = loss(features=pair, labels=labels)
    assert totals[0] == InBatchNegatives()(features=pair, labels=labels)[0]
    assert totals[1] == SupervisedContrastive()(features=pair["text"], labels=labels)[0]


def test_where_one_term_needs_two_passes_the_others_take_the_mean_of_both():
    twice = {name: torch.stack([each, each.flip(0)]) for name, each in LOGITS.items()}
    loss = MultiTask({"topic": RDrop(CrossEntropy()), "score": MeanSquaredError()}, {"topic": 1.0, "score": 1.0})
    assert loss.passes == 2
    totals, weights = loss(logits=twice, labels=LABELS)
    assert totals[0] == RDrop(CrossEntropy())(logits=twice["topic"], labels=LABELS["topic"])[0]
    each = [MeanSquaredError()(logits=one, labels=LABELS["score"])[0] for one in twice["score"]]
    torch.testing.assert_close(totals[1], sum(each) / 2)
    assert weights.tolist() == [4, 3]
    loss.eval()
    assert loss.passes == 1
    assert loss(logits=LOGITS, labels=LABELS)[1].tolist() == [4, 3]


def test_lightning_2984_the_weights_of_all_terms_move_with_the_module():
    loss = nn.ModuleDict({"loss": two({"topic": 1.0, "score": 1.0})}).to("meta")
    assert all(buffer.is_meta for buffer in loss.buffers())
    assert len(list(loss.buffers())) == 1


def test_each_head_is_fitted_to_its_own_labels():
    loss = MultiTask({"a": CrossEntropy("balanced"), "b": CrossEntropy({"x": 1, "y": 7})}, {"a": 1.0, "b": 1.0})
    loss.fit_to_labels(["n", "p"], [1, 3], head="a")
    loss.fit_to_labels(["y", "x"], [1, 1], head="b")
    weights = loss.weight({"a": torch.tensor([0]), "b": torch.tensor([0])})
    assert weights.tolist() == [2, 7]


def test_without_heads_every_term_is_fitted():
    loss = MultiTask({"a": CrossEntropy("balanced"), "b": RDrop(CrossEntropy("balanced"))}, "uncertainty")
    loss.fit_to_labels(["n", "p"], [1, 3])
    assert loss.weight(torch.tensor([0])).tolist() == [2, 2]


def test_a_head_without_a_loss_is_told():
    with pytest.raises(ValueError, match="MultiTask has no loss for the head other; it has topic, score"):
        two("uncertainty").fit_to_labels(["a"], [1], head="other")


@pytest.mark.parametrize("key", ["logits", "labels"])
def test_a_term_without_its_head_is_told(key):
    offered = {"logits": LOGITS, "labels": LABELS}
    offered[key] = {"topic": offered[key]["topic"]}
    with pytest.raises(ValueError, match=f"MultiTask has a loss score, and there are {key} only of topic"):
        two("uncertainty")(**offered)


@pytest.mark.parametrize(
    ("losses", "weights", "message"),
    [
        ({"a": CrossEntropy()}, {"b": 1.0}, "weights are given for b, and the losses are a"),
        ({"a": CrossEntropy()}, {"a": 1.0, "b": 1.0}, "weights are given for a, b, and the losses are a"),
        ({"a": CrossEntropy()}, {"a": -1.0}, "the weight of a is -1.0; it has to be a finite number of at least 0"),
        ({"a": CrossEntropy()}, {"a": NAN}, "the weight of a is nan"),
        ({"a": CrossEntropy()}, "equal", "weights is 'equal'; it takes uncertainty, or one weight for each loss"),
        ({}, {}, "MultiTask needs at least one loss"),
        ({"keys": CrossEntropy()}, {"keys": 1.0}, "MultiTask cannot have a term called 'keys'; use another name"),
        ({"a.b": CrossEntropy()}, {"a.b": 1.0}, r"MultiTask cannot have a term called 'a\.b'; use another name"),
        (
            {"a": MultiTask({"b": CrossEntropy()}, "uncertainty")},
            {"a": 1.0},
            "MultiTask cannot have the MultiTask a as a term; put all terms in one",
        ),
        (
            {"a": FunctionLoss(weighted_negative_log_likelihood, "total_and_weight")},
            {"a": 1.0},
            "the term a cannot return its own; let it return values",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused_at_once(losses, weights, message):
    with pytest.raises(ValueError, match=message):
        MultiTask(losses, weights)
