"""A recipe that trains in a second, and what a mistake in it is told as."""

import csv
from pathlib import Path

import pytest
import yaml

from lit_trainer.cli import main

CALLBACKS = "lit_trainer.callbacks"


def write_recipe(tiny_bert: Path, films: dict[str, list[str]]) -> Path:
    """Writes a recipe and its 90 texts into the working folder: 72, 9 and 9 rows, 3 steps an epoch."""
    with Path("films.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *zip(films["text"], films["label"], strict=True)])
    settings = {
        "model": {
            "class_path": "lit_trainer.tasks.sequence_classification.SequenceClassification",
            "init_args": {"pretrained": str(tiny_bert), "optimizer": {"lr": 1e-3}},
        },
        "data": {
            "class_path": "lit_trainer.data.text.TextData",
            "init_args": {
                "source": {"class_path": "lit_trainer.data.sources.csv.CSVFile", "init_args": {"files": "films.csv"}},
                "batch_size": 24,
            },
        },
        "trainer": {
            "max_epochs": 1,
            "accelerator": "cpu",
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": "runs/films",
            "callbacks": [
                {"class_path": f"{CALLBACKS}.evaluation_schedule.EvaluationSchedule"},
                {
                    "class_path": f"{CALLBACKS}.best_checkpoint.BestCheckpoint",
                    "init_args": {"monitor": "val/loss", "mode": "min"},
                },
                {"class_path": f"{CALLBACKS}.last_checkpoint.LastCheckpoint"},
            ],
        },
    }
    path = Path("recipe.yaml")
    path.write_text(yaml.safe_dump(settings, sort_keys=False))
    return path


def told(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """Runs a command that ends with a mistake; returns what is told about it at the very end, without a traceback."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(args)
    assert end.value.code == 2
    before, prefix, text = capsys.readouterr().err.rpartition("lit-trainer: error: ")
    assert prefix
    assert "Traceback" not in before
    return text.removesuffix("\n")
