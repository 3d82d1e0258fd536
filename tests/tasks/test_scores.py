"""Scores of an evaluation: each row once, in order, whatever the batches."""

import warnings

import pytest
import torch

from lit_trainer.batch import LABELS, ROW
from lit_trainer.tasks.metrics import default_metrics, evaluate, predictions
from lit_trainer.tasks.scores import ScoreTable


def add(table, rows, weight=None):
    rows = torch.tensor(rows)
    logits = torch.stack([rows.float(), -rows.float()], dim=1)
    counted = (rows >= 0).double()
    labels = torch.where(rows >= 0, rows % 2, -100)
    table.add({ROW: rows, LABELS: labels}, logits, (counted * rows).sum(), weight or counted.sum())


def test_rows_come_out_in_order_without_fillers():
    table = ScoreTable()
    add(table, [4, 0, -1])
    add(table, [3, 1])
    add(table, [-1, 2])
    scores = table.collect()
    assert scores.rows.tolist() == [0, 1, 2, 3, 4]
    assert scores.logits[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert scores.labels.tolist() == [0, 1, 0, 1, 0]
    assert float(scores.loss) == 2


def test_a_row_that_is_scored_twice_is_an_error():
    table = ScoreTable()
    add(table, [0, 1])
    add(table, [1])
    with pytest.raises(ValueError, match=r"1 rows were scored more than once \(the first: \[1\]\)"):
        table.collect()


def test_half_precision_is_kept_as_float32():
    table = ScoreTable()
    table.add(
        {ROW: torch.tensor([0]), LABELS: torch.tensor([1])}, torch.ones(1, 2).half(), torch.ones(()), torch.ones(())
    )
    assert table.collect().logits.dtype == torch.float32


def test_several_terms_are_divided_one_by_one():
    table = ScoreTable()
    for total, weight in (([2.0, 3.0], [4.0, 1.0]), ([2.0, 0.0], [4.0, 1.0])):
        batch = {ROW: torch.tensor([int(total[1])]), LABELS: torch.tensor([0])}
        table.add(batch, torch.zeros(1, 2), torch.tensor(total), torch.tensor(weight))
    assert float(table.collect().loss) == 4 / 8 + 3 / 2


def test_one_logit_is_the_log_odds_of_the_second_class():
    assert predictions("classes", torch.tensor([[0.0], [2.0]])) == pytest.approx(
        predictions("classes", torch.tensor([[0.0, 0.0], [0.0, 2.0]]))
    )


@pytest.mark.parametrize("num_labels", [2, 3])
def test_rows_without_a_label_are_left_out(num_labels):
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(40, num_labels, generator=generator), torch.arange(40) % num_labels
    names = [str(index) for index in range(num_labels)]
    metrics = default_metrics("classes", num_labels)
    expected = evaluate(metrics, "classes", predictions("classes", logits[:30]), labels[:30], names)
    labels[30:] = -100
    found = evaluate(metrics, "classes", predictions("classes", logits), labels, names)
    assert {name: float(value) for name, value in found.items()} == {n: float(v) for n, v in expected.items()}
    assert evaluate(metrics, "classes", predictions("classes", logits), labels.fill_(-100), names) == {}


def test_entries_without_a_label_are_left_out_of_several_labels():
    labels = torch.tensor([[1.0, float("nan")], [0.0, 1.0]])
    metrics = default_metrics("multi_label", 2)
    values = evaluate(metrics, "multi_label", torch.tensor([[0.9, 0.9], [0.1, 0.8]]), labels, ["a", "b"])
    assert float(values["precision_micro"]) == 1


def test_one_class_alone_gives_values_without_a_warning():
    metrics = default_metrics("classes", 2)
    values = evaluate(metrics, "classes", torch.tensor([[0.2, 0.8]] * 3), torch.ones(3, dtype=torch.int64), ["a", "b"])
    assert float(values["accuracy"]) == 1


def test_the_metrics_of_values_are_made_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "spearman" in default_metrics("regression", 1)
