"""Ten mistakes that people make, each told in one clear line that says where it stands and what is allowed."""

import os
from pathlib import Path

import pytest
import yaml

from tests.tiny_recipe import told, write_recipe

PRECISION = "lit_trainer.runtime.precision.ScaledMixedPrecision"


@pytest.fixture
def recipe(tmp_path: Path, tiny_bert: Path, films: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIT_TRAINER_CACHE", str(tmp_path.parent / "cache"))
    return write_recipe(tiny_bert, films)


@pytest.fixture
def fit(recipe: Path, capsys: pytest.CaptureFixture[str]):
    """Fits with a recipe of which a part is wrong, given by its keys; returns the line."""

    def fit(path: str, value: object) -> str:
        settings = yaml.safe_load(recipe.read_text())
        *parents, key = path.split("/")
        part = settings
        for parent in parents:
            part = part[int(parent) if parent.isdigit() else parent]
        part[key] = value
        recipe.write_text(yaml.safe_dump(settings, sort_keys=False))
        line = told(capsys, "fit", "--config", str(recipe))
        assert not list(Path("runs").rglob("*.ckpt"))
        return line

    return fit


def line_of(recipe: str, text: str) -> int:
    return next(number for number, line in enumerate(Path(recipe).read_text().splitlines(), 1) if text in line)


def test_unknown_key(fit) -> None:
    line = fit("trainer/max_epoch", 3)
    place = f"recipe.yaml, line {line_of('recipe.yaml', 'max_epoch:')}"
    assert line == f"{place}: there is no setting trainer.max_epoch; did you mean trainer.max_epochs?"


def test_unknown_key_of_a_class(fit) -> None:
    line = fit("data/init_args/batchsize", 3)
    place = f"recipe.yaml, line {line_of('recipe.yaml', 'batchsize')}"
    assert line == f"{place}: data.batchsize: TextData takes no batchsize; did you mean batch_size?"


def test_wrong_type(fit) -> None:
    line = fit("data/init_args/batch_size", "many")
    place = f"recipe.yaml, line {line_of('recipe.yaml', 'many')}"
    assert line == f"{place}: data.batch_size is many, but must be a whole number"


def test_missing_column(fit) -> None:
    line = fit("data/init_args/text", "txt")
    assert line == "data.text: the train split has no column 'txt', only 'text', 'label'; did you mean 'text'?"


def test_misspelt_metric(fit) -> None:
    line = fit("trainer/callbacks/1/init_args/monitor", "val/acuracy")
    assert line.startswith("BestCheckpoint: monitor is 'val/acuracy', but the evaluation logged ")
    assert "val/accuracy" in line


def test_unknown_class(fit) -> None:
    module = "lit_trainer.tasks.sequence_classification"
    wrong, right = f"{module}.SequenceClasification", f"{module}.SequenceClassification"
    line = fit("model/class_path", wrong)
    place = f"recipe.yaml, line {line_of('recipe.yaml', 'model:')}"
    assert line == f"{place}: model: there is no class or function {wrong}; did you mean {right}?"


def test_label_out_of_the_map(fit) -> None:
    first, second, *_ = fit("data/init_args/classes", ["good", "fine"]).splitlines()
    assert first == "the data has 2 problems (rows count from 0 in the source):"
    assert second.startswith(
        "- a label that is none of good, fine ('bad'): 23 rows (train 0, 4, 8, 12, 16 and 18 more)"
    )


def test_empty_file(fit) -> None:
    Path("films.csv").write_text("")
    assert fit("trainer/max_epochs", 1).endswith("films.csv is empty")


def test_file_with_names_of_columns_only(fit) -> None:
    Path("films.csv").write_text("text,label\n")
    assert "has no rows" in fit("trainer/max_epochs", 1)


@pytest.mark.parametrize("row", [b"gut\xff,good", b'"open,good', b"a,b,c"], ids=["bytes", "quotes", "columns"])
def test_unreadable_file(fit, row: bytes) -> None:
    Path("films.csv").write_bytes(b"text,label\n" + row + b"\n")
    assert "films.csv, line 2: " in fit("trainer/max_epochs", 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_that_may_not_be_read(fit) -> None:
    Path("films.csv").chmod(0)
    assert fit("trainer/max_epochs", 1).endswith("films.csv cannot be read: Permission denied")


def test_wrong_path(fit) -> None:
    line = fit("data/init_args/source/init_args/files", "film.csv")
    assert line == f"files: there is no file film.csv in {Path.cwd()}; did you mean films.csv?"


def test_wrong_path_of_a_model(fit) -> None:
    line = fit("model/init_args/pretrained", "no/such/folder")
    assert "'no/such/folder'" in line


def test_two_precision_settings(fit) -> None:
    settings = {"class_path": PRECISION}
    Path("films.csv").unlink()
    text = Path("recipe.yaml").read_text().replace("trainer:\n", "trainer:\n  precision: bf16-mixed\n")
    Path("recipe.yaml").write_text(text)
    line = fit("trainer/plugins", [settings])
    names = f"trainer.precision bf16-mixed and {PRECISION}"
    assert line == f"precision is set more than once: {names} (trainer.plugins); keep one"
