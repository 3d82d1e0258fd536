"""Every row is predicted once, in data-set order, whatever the batches and ranks."""

import csv
import json
from types import SimpleNamespace

import lightning.pytorch as pl
import pyarrow.parquet
import pytest
import torch
from datasets import Dataset

from lit_trainer.batch import ROW
from lit_trainer.callbacks.prediction_writer import PredictionWriter
from lit_trainer.decision.rule import DecisionRule

TABLE = Dataset.from_dict({"id": [f"r{index}" for index in range(7)], "text": list("abcdefg")})
RULE = DecisionRule("multi_class", ("red", "green", "blue"))


def predict(path, batches, rule=RULE, columns=None, fail_after=None, table=TABLE):
    """Hands batches of row numbers to the writer; row r has its highest logit at r % 3."""
    writer = PredictionWriter(str(path), columns)
    trainer = SimpleNamespace(world_size=1, is_global_zero=True, datamodule=SimpleNamespace(predict_table=table))
    module = SimpleNamespace(decision_rule=rule)
    try:
        writer.on_predict_start(trainer, module)
        for index, rows in enumerate(batches):
            if index == fail_after:
                raise RuntimeError("lost")
            logits = torch.stack([torch.eye(3)[row % 3] * 4 for row in rows]).half()
            writer.on_predict_batch_end(trainer, module, {ROW: torch.tensor(rows), "logits": logits}, None, index)
        writer.on_predict_epoch_end(trainer, module)
        writer.on_predict_end(trainer, module)
    except Exception as error:
        writer.on_exception(trainer, module, error)  # as the Trainer does
        raise


def test_many_batches_are_all_written(tmp_path):
    predict(tmp_path / "p.csv", [[row] for row in range(6, -1, -1)] + [[-1]] * 40)
    with (tmp_path / "p.csv").open() as file:
        assert [row["row"] for row in csv.DictReader(file)] == [str(index) for index in range(7)]


def test_rows_that_come_out_of_order_are_written_in_order(tmp_path):
    predict(tmp_path / "p.csv", [[3, 1], [0, 2], [-1, 6], [5, 4]])
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["row"] for row in rows] == [str(index) for index in range(7)]
    assert [row["id"] for row in rows] == TABLE["id"][:]
    assert [row["label"] for row in rows] == ["red", "green", "blue"] * 2 + ["red"]
    assert sum(float(rows[0][f"probability_{name}"]) for name in RULE.label_names) == pytest.approx(1)


def test_every_format_holds_the_same(tmp_path):
    for suffix in ("csv", "jsonl", "parquet"):
        predict(tmp_path / f"p.{suffix}", [[0, 1, 2, 3, 4, 5, 6]], columns=["id"])
    parquet = pyarrow.parquet.read_table(tmp_path / "p.parquet").to_pylist()
    assert [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()] == parquet
    assert list(parquet[0]) == ["row", "id", "label", *(f"probability_{name}" for name in RULE.label_names)]
    with (tmp_path / "p.csv").open() as file:
        assert [row["label"] for row in csv.DictReader(file)] == [row["label"] for row in parquet]


def test_a_value_is_written_as_it_is(tmp_path):
    predict(tmp_path / "p.jsonl", [[0, 1]], rule=None, columns=[])
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert rows == [{"row": 0, "value": 4.0}, {"row": 1, "value": 0.0}]


def test_several_labels_are_a_list(tmp_path):
    predict(tmp_path / "p.jsonl", [[0]], rule=DecisionRule("multi_label", ("x", "y", "z")), columns=[])
    assert json.loads((tmp_path / "p.jsonl").read_text())["labels"] == ["x", "y", "z"]  # a logit of 0 is 0.5


def test_an_incomplete_file_never_takes_the_place_of_one_that_was_there(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("kept")
    with pytest.raises(RuntimeError, match="lost"):
        predict(path, [[0], [1]], fail_after=1)
    assert path.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [path]


def test_a_column_of_the_data_with_the_name_of_a_prediction_is_kept_beside_it(tmp_path, caplog):
    table = Dataset.from_dict({"label": list("gfedcba"), "row": list(range(7)), "data_row": ["x"] * 7})
    with caplog.at_level("INFO", "lit_trainer"):
        predict(tmp_path / "p.jsonl", [[0, 1], [3, 2]], table=table)
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [row["label"] for row in rows] == ["red", "green", "blue", "red"]
    assert [row["data_label"] for row in rows] == list("gfed")
    assert [row["data_data_row"] for row in rows] == list(range(4))
    assert rows[0]["data_row"] == "x"
    assert "column label is written as data_label" in caplog.text


def test_a_row_that_comes_twice_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="row 1 was predicted more than once"):
        predict(tmp_path / "p.csv", [[0, 1], [1]])


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [("p.txt", None, "must end in .csv, .jsonl or .parquet"), ("p.csv", ["ids"], "no column ids; there are id, text")],
)
def test_mistakes_are_told_before_anything_is_computed(tmp_path, name, columns, message):
    with pytest.raises(ValueError, match=message):
        predict(tmp_path / name, [], columns=columns)


def test_the_writer_is_a_callback():
    assert issubclass(PredictionWriter, pl.Callback)
