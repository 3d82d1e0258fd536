import pytest
import torch
from torch.nn import functional as F

from lit_trainer.losses.in_batch_negatives import InBatchNegatives

LABELS = torch.zeros(4)


def pair():
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    return {"query": first, "document": second}


def similarity(features, temperature):
    first, second = (F.normalize(each, dim=-1) for each in features.values())
    return first @ second.T / temperature


def test_it_is_cross_entropy_of_finding_the_partner():
    total, weight = InBatchNegatives(0.05)(features=pair(), labels=LABELS)
    expected = F.cross_entropy(similarity(pair(), 0.05), torch.arange(4), reduction="sum")
    torch.testing.assert_close(total, expected)
    assert weight == 4


def test_symmetric_is_the_mean_of_both_directions():
    total, _ = InBatchNegatives(0.5, symmetric=True)(features=pair(), labels=LABELS)
    logits = similarity(pair(), 0.5)
    expected = sum(F.cross_entropy(each, torch.arange(4), reduction="sum") for each in (logits, logits.T)) / 2
    torch.testing.assert_close(total, expected)


def test_ignored_rows_are_neither_asked_for_nor_in_the_way():
    labels = torch.tensor([0, -100, 0, 0])
    without = {name: each[[0, 2, 3]] for name, each in pair().items()}
    for here, there in zip(
        InBatchNegatives()(features=pair(), labels=labels),
        InBatchNegatives()(features=without, labels=labels[[0, 2, 3]]),
        strict=True,
    ):
        torch.testing.assert_close(here, there)


def test_dropout_pairs_are_the_two_passes_of_a_row():
    twice = torch.stack(tuple(pair().values()))
    loss = InBatchNegatives(dropout_pairs=True)
    assert loss.passes == 2
    assert loss(features=twice, labels=LABELS) == InBatchNegatives()(features=pair(), labels=LABELS)


def test_dropout_pairs_need_one_pass_in_evaluation():
    loss = InBatchNegatives(dropout_pairs=True).eval()
    query = pair()["query"]
    assert loss.passes == 1
    both = {"one": query, "other": query}
    assert loss(features=query, labels=LABELS) == InBatchNegatives()(features=both, labels=LABELS)


@pytest.mark.parametrize(
    ("loss", "features", "message"),
    [
        (
            InBatchNegatives(),
            torch.ones(4, 3),
            r"two by name, each \[B, D\], .* got features \[4, 3\] and labels \[4\]",
        ),
        (InBatchNegatives(), {"a": torch.ones(4, 3)}, r"two by name, each \[B, D\], .* got a \[4, 3\]"),
        (InBatchNegatives(), {"a": torch.ones(4, 3), "b": torch.ones(5, 3)}, r"got a \[4, 3\], b \[5, 3\]"),
        (
            InBatchNegatives(dropout_pairs=True),
            torch.ones(4, 3),
            r"\[2, B, D\] from two passes, .* got features \[4, 3\]",
        ),
        (InBatchNegatives(dropout_pairs=True), pair(), r"\[2, B, D\] from two passes, .* got query \[4, 3\]"),
    ],
)
def test_what_is_no_pair_is_told(loss, features, message):
    with pytest.raises(ValueError, match=message):
        loss(features=features, labels=LABELS)


@pytest.mark.parametrize("temperature", [0, -1.0, float("nan"), float("inf")])
def test_the_temperature_is_above_zero(temperature):
    with pytest.raises(ValueError, match=r"temperature is .*; it has to be a finite number above 0"):
        InBatchNegatives(temperature)
