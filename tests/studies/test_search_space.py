"""A search says what each setting can be, in a file or by flags, and its best is written as an overlay."""

from pathlib import Path

import pytest
import yaml

from lit_trainer.studies.search_space import Choice, Range, overlay, read_search


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_file_and_flags_are_one_search_and_flags_win() -> None:
    space = {"a": {"low": 1, "high": 4}, "b": [16, None, "x", {"k": [1, 2]}, True]}
    Path("search.yaml").write_text(yaml.safe_dump({"space": space, "monitor": "val/f1", "mode": "max"}))
    search = read_search("search.yaml", ["a={low: 1e-5, high: 1, log: true}", "c=[1]"])
    assert search.space == {
        "a": Range(1e-5, 1, log=True),
        "b": Choice(("16", "null", "x", "{k: [1, 2]}", "true")),
        "c": Choice(("1",)),
    }
    assert (search.monitor, search.mode) == ("val/f1", "max")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "there is nothing to search"),
        (["a"], "--space is a but must be KEY=VALUES"),
        (["a=["], r"--space a: \[ is not YAML"),
        (["a=3"], "space: a is 3 but must be a list of values, or low and high"),
        (["a=[]"], r"space: a is \[\] but must be a list"),
        (["a={low: 1, hihg: 2}"], "space: a is .* but must be a list"),
        (["a={low: 2, high: 1}"], "space: a goes from 2 to 1; low is below high"),
        (["a={low: 0, high: 1, log: true}"], "above 0 where log is true"),
        (["a={low: 1, high: 9, log: true, step: 2}"], "space: a has step 2"),
        (["a={low: few, high: 1}"], "space: a has low 'few', which is no number"),
    ],
)
def test_what_is_not_understood_is_told(texts: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_search(None, texts)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"--search: there is no file search\.yaml"),
        ("- a", r"search\.yaml does not hold names with values"),
        ("spaces: {}", r"search\.yaml: there is no spaces; a search has space, monitor and mode"),
        ("space: [a]", r"search\.yaml: space is \['a'\]"),
        ("space: {a: [1]}\nmode: best", r"search\.yaml: mode is 'best' but must be min or max"),
        ("a: [", r"search\.yaml cannot be read"),
    ],
)
def test_a_file_that_is_no_search_is_told(content: str | None, message: str) -> None:
    if content is not None:
        Path("search.yaml").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_search("search.yaml", [])


def test_whole_numbers_stay_whole() -> None:
    distributions = pytest.importorskip("optuna").distributions
    assert Range(1, 4).distribution() == distributions.IntDistribution(1, 4)
    assert Range(8, 64, step=8).distribution() == distributions.IntDistribution(8, 64, step=8)
    assert Range(1e-5, 1, log=True).distribution() == distributions.FloatDistribution(1e-5, 1, log=True)
    assert Choice(("a", "b")).distribution() == distributions.CategoricalDistribution(["a", "b"])


def test_an_overlay_has_the_levels_that_flags_leave_out() -> None:
    settings = {
        "model": {"class_path": "a.B", "init_args": {"optimizer": {"lr": 0.1}, "loss": {"class_path": "c.D"}}},
        "trainer": {"max_epochs": 3, "callbacks": [{"class_path": "e.F", "init_args": {"x": 1}}]},
    }
    assert overlay(settings, ["model.optimizer.lr", "model.loss", "trainer.max_epochs"]) == {
        "model": {"init_args": {"optimizer": {"lr": 0.1}, "loss": {"class_path": "c.D"}}},
        "trainer": {"max_epochs": 3},
    }
    with pytest.raises(ValueError, match=r"space: trainer\.callbacks\.x is not a setting by itself"):
        overlay(settings, ["trainer.callbacks.x"])
