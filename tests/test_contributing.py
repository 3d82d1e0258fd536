"""The examples of CONTRIBUTING work as they stand, and what it says of the layout is so."""

import csv
import re
import sqlite3
import sys
import tomllib
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from torch import tensor

from lit_trainer.cli import main
from tests.documents import ROOT, blocks, copy_configs, shrink_recipe, write_files
from tests.test_architecture import FLOORS, MAX_LINES

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a tiny recipe, its messages also in a database, and the examples."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIT_TRAINER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    copy_configs(tmp_path)
    shrink_recipe(tmp_path, tiny_bert)
    write_files("CONTRIBUTING.md", tmp_path)
    with Path("messages.csv").open(newline="") as file, closing(sqlite3.connect("messages.db")) as database, database:
        names, *rows = csv.reader(file)
        database.execute(f"CREATE TABLE messages ({', '.join(names)})")
        database.executemany("INSERT INTO messages VALUES (?, ?)", rows)
    return tmp_path


def test_the_four_examples_train_together(folder: Path) -> None:
    command = next(c for block in blocks("CONTRIBUTING.md") for c in block.commands if c.startswith("lit-trainer fit"))
    run = main([*command.split()[1:], "--trainer.log_every_n_steps=1"], run=False)
    assert run.datamodule.source.load()["train"].num_rows == 240
    run.run()
    with (folder / "runs" / "sms_spam_minilm" / "version_0" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert any(float(row["weight_norm"] or 0) > 0 for row in rows)
    assert any(float(row["val/loss"] or 0) > 0 for row in rows)


def test_the_loss_is_cross_entropy_where_it_says_so_and_ignores_what_it_should(folder: Path) -> None:
    from poly_loss import PolyLoss

    from lit_trainer.losses.cross_entropy import CrossEntropy

    logits, labels = tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]), tensor([0, 0, -100])
    assert PolyLoss(0.0)(logits=logits, labels=labels) == CrossEntropy()(logits=logits, labels=labels)
    assert PolyLoss(1.0)(logits=logits, labels=labels) == PolyLoss(1.0)(logits=logits[:2], labels=labels[:2])


def test_the_source_tells_a_mistake_in_one_line(folder: Path) -> None:
    from sqlite_rows import SQLiteRows

    with pytest.raises(ValueError, match=r"file: there\.db cannot be read: unable to open database file"):
        SQLiteRows("there.db", "SELECT 1").load()


def test_the_drawn_layers_are_those_that_are_enforced() -> None:
    drawing = next(block.text for block in blocks("CONTRIBUTING.md") if "training_cli" in block.text)
    places = {part: drawing.index(part) for floor in FLOORS for part in floor if part in drawing.split()}
    assert {"tasks", "callbacks", "data", "runtime", "models", "losses", "optim", "decision", "wheel"} <= places.keys()
    drawn = [[places[part] for part in floor if part in places] for floor in FLOORS]
    for above, below in pairwise(drawn):
        assert max(above, default=0) < min(below, default=len(drawing))
    assert f"at most {MAX_LINES} lines" in TEXT


def test_files_that_are_named_are_there() -> None:
    for path in re.findall(r"`((?:lit_trainer|tests|configs)/[\w./]+|\.ci/run)`", TEXT):
        assert (ROOT / path).exists(), path


def test_markers_that_are_named_are_known() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    known = {line.partition(":")[0] for line in settings["markers"]}
    for marker in re.findall(r'-m "?(?:not )?(\w+)', TEXT):
        assert marker in known
