"""A page shows what there is and says what is missing; it needs nothing else, and shows texts as texts."""

import re
import shutil
from html.parser import HTMLParser

import pytest

from lit_trainer.decision.criteria import FBeta
from lit_trainer.decision.fitting import fit_rule
from lit_trainer.reporting.page import page, write_page
from lit_trainer.reporting.page_parts import duration, number
from lit_trainer.reporting.run import Run
from tests.reporting.folders import KINDS, SECTIONS, TEXT, make_run, make_scores, write_metrics

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Reader(HTMLParser):
    """Collects what is in a page, and makes sure that what is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.sections: dict[str, str] = {}
        self.links: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        given = dict(attributes)
        self.links += [given[name] for name in ("src", "href", "xlink:href") if name in given]
        if tag == "section":
            self.sections[given["id"]] = ""
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.sections:
            self.sections[list(self.sections)[-1]] += data


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out how charts look, which is what takes time."""
    monkeypatch.setattr("lit_trainer.reporting.page.as_svg", lambda figure, prefix, label: "<svg></svg>")


def read(folder) -> Reader:
    return Reader(page(Run.read(folder)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_run_has_every_part(tmp_path, kind):
    found = read(make_run(tmp_path, kind))
    expected = [name for name in SECTIONS if kind != "values" or name != "classes"]
    assert list(found.sections) == expected
    said = found.sections
    assert "0.7500" in said["metrics"]
    assert "0.2500" in said["metrics"], "the baseline"
    assert "120 rows of the test split, by the weights of step 7." in said["decisions"]
    assert "Dropped: no text: 2 rows (such as train 4, 9)." in said["data"]
    assert "throughput/samples_per_second" in said["speed"]
    assert "FocalLoss(gamma=2.0)" in said["settings"]
    charts = {"binary": 4, "multi_class": 4, "multi_label": 3, "values": 2}
    assert found.tags.count("svg") == 8 + charts[kind]


def test_it_needs_no_script_and_no_other_file(tmp_path):
    text = page(Run.read(make_run(tmp_path)))
    found = Reader(text)
    assert "script" not in found.tags
    assert all(link.startswith(("#", "data:")) for link in found.links)
    assert not re.search(r"https?://(?!www\.w3\.org/)", text)
    assert "url(" not in text.replace("url(#", "")


def test_texts_and_names_are_shown_as_they_are(undrawn, tmp_path):
    text = page(Run.read(make_run(tmp_path, "multi_class")))
    found = Reader(text)
    assert TEXT in found.sections["rows"]
    assert TEXT not in text
    assert "second of the pair" in found.sections["rows"]
    assert "<b>" in found.sections["classes"]


@pytest.mark.parametrize("kind", ["binary", "multi_label"])
def test_a_fitted_rule_is_told_with_its_intervals(undrawn, tmp_path, kind):
    folder = make_run(tmp_path, kind)
    scores = make_scores(kind)
    rule = fit_rule(
        scores.logits, scores.labels, kind=kind, label_names=scores.label_names, split="validation", criterion=FBeta()
    )
    rule.save(folder / "decision_rule.json")
    said = read(folder).sections["rule"]
    assert "It was fitted on 108 validation rows by FBeta(beta=1.0)." in said
    assert "Thresholds, with 95% intervals" in said
    assert "Costs" not in said


def test_what_a_rule_changes_in_the_test_is_told(undrawn, tmp_path):
    folder = make_run(tmp_path)
    values = {
        f"test_{way}/f1{end}": value
        for way, value in (("rule", 0.9), ("default", 0.7))
        for end in ("", "_low", "_high")
    }
    write_metrics(folder, **values)
    assert "0.9000 (0.9000 to 0.9000)" in read(folder).sections["metrics"]


MISSING = {
    "config.yaml": ("settings", "config.yaml is not there: the run was made from Python."),
    "metrics.csv": ("learning", "metrics.csv is missing or empty: nothing was logged, so that there are no curves."),
    "run.json": ("data", "What the data was like was not noted by this run."),
    "scores": ("decisions", "No scores of a test or validation are in the folder"),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_is_told(undrawn, tmp_path, name):
    folder = make_run(tmp_path)
    path = folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    section, sentence = MISSING[name]
    found = read(folder)
    assert sentence in found.sections[section]
    assert list(found.sections) == SECTIONS


def test_an_empty_run_is_a_page_that_says_so(tmp_path):
    (tmp_path / "metrics.csv").write_text("")
    found = read(tmp_path)
    assert "svg" not in found.tags
    assert list(found.sections) == SECTIONS
    assert "There was neither a test nor a validation." in found.sections["metrics"]
    assert "The callback GradientMonitor" not in found.sections["gradients"]
    assert "the callback GradientMonitor does" in found.sections["gradients"]


def test_a_run_without_test_or_without_validation(undrawn, tmp_path):
    folder = make_run(tmp_path)
    (folder / "metrics.csv").write_text("step,train/loss,val/loss,val/f1\n0,1,,\n1,,0.5,0.25\n")
    assert "There was no test." in read(folder).sections["metrics"]
    (folder / "metrics.csv").write_text("step,train/loss\n0,1\n")
    assert "No validation was logged." in read(folder).sections["learning"]


def test_values_that_are_not_finite_are_drawn_around(tmp_path):
    folder = make_run(tmp_path)
    lines = ["step,train/loss,val/x,lr/a,grad_norm/a,grad_non_finite/a", "0,nan,inf,0,0,3", "1,inf,-inf,0,inf,0"]
    (folder / "metrics.csv").write_text("\n".join(lines))
    assert "a: not finite in 1 of the logged steps." in read(folder).sections["gradients"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_rows", [0, 1, 2])
def test_few_rows_make_a_page(tmp_path, kind, num_rows):
    make_scores(kind, num_rows).save(tmp_path)
    read(tmp_path)


def test_scores_that_are_not_finite_are_told(tmp_path):
    folder, scores = tmp_path, make_scores("binary")
    scores.logits[5] = float("inf")
    scores.save(folder)
    assert "cannot be used: logits are not finite in row 5." in read(folder).sections["decisions"]


def test_a_page_that_cannot_be_written_is_told(tmp_path):
    run = Run.read(make_run(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file/report\.html cannot be written: "):
        write_page(run, tmp_path / "file" / "report.html")


def test_numbers_and_durations_are_told_as_they_are_read():
    numbers = (None, 0.0, 0.91234, 1.0, 12.345, 1234.0, 0.00001234, 1e9, float("nan"), -3.5)
    assert [number(value) for value in numbers] == [
        "", "0.0000", "0.9123", "1.0000", "12.3", "1,234", "1.23e-05", "1,000,000,000", "nan", "-3.5000",
    ]  # fmt: skip
    assert [duration(seconds) for seconds in (3.4, 112, 7500)] == ["3 s", "1 min 52 s", "2 h 5 min"]
