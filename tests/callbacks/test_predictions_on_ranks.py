"""Predictions of several ranks are one file with every row once, in data-set order."""

import csv
import json

import pytest

SCRIPT = """
import json, sys, warnings
import lightning.pytorch as pl
from lit_trainer.callbacks.prediction_writer import PredictionWriter
from lit_trainer.data.sources.memory import Table
from lit_trainer.data.text import TextData
from lit_trainer.tasks.sequence_classification import SequenceClassification
from tests.ending import end

warnings.simplefilter("ignore")
given = json.loads(sys.argv[1])
pl.seed_everything(3, verbose=False)
trainer = pl.Trainer(
    accelerator="cpu", devices=given["ranks"], strategy="ddp" if given["ranks"] > 1 else "auto", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, callbacks=[PredictionWriter(given["path"])],
)
data = TextData(Table(given["films"]), predict=given["rows"], tokenizer=given["folder"], eval_batch_size=3)
trainer.predict(SequenceClassification(given["folder"]), datamodule=data, return_predictions=False)
end()
"""


@pytest.mark.exact
@pytest.mark.slow
def test_lightning_5257_any_number_of_ranks_writes_the_same_file(run_python, tmp_path, tiny_bert, films):
    num_rows = 7  # the last batch of three is short, and one rank has none
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"id": f"r{i}", "text": films["text"][i]}) + "\n" for i in range(num_rows)))
    files = []
    for ranks in (1, 3):
        given = {"ranks": ranks, "path": str(tmp_path / f"{ranks}.csv"), "films": films, "rows": str(rows)}
        run_python(SCRIPT, json.dumps({**given, "folder": str(tiny_bert)}))
        with (tmp_path / f"{ranks}.csv").open() as file:
            files.append(list(csv.DictReader(file)))
    for found in files:
        assert [row["id"] for row in found] == [f"r{i}" for i in range(num_rows)]
        assert [row["label"] for row in found] == [row["label"] for row in files[0]]
        probabilities = [float(row["probability_good"]) for row in found]
        assert probabilities == pytest.approx([float(row["probability_good"]) for row in files[0]], abs=1e-6)
