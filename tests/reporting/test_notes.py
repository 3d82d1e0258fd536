"""Notes of a run come back as they were, and say so where they are none."""

import pytest

from lit_trainer.reporting.notes import FILE_NAME, RunNotes
from tests.reporting.folders import notes


def test_what_is_saved_is_loaded(tmp_path):
    saved = notes()
    saved.save(tmp_path / "new")
    assert RunNotes.load(tmp_path / "new") == saved
    assert [path.name for path in (tmp_path / "new").iterdir()] == [FILE_NAME]


def test_there_may_be_none(tmp_path):
    assert RunNotes.load(tmp_path) is None


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"version": "one"}', '{"version": 2}'])
def test_something_else_is_told(tmp_path, text):
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(ValueError, match=r"run\.json does not tell about a run"):
        RunNotes.load(tmp_path)


def test_what_a_later_version_adds_is_passed_over(tmp_path):
    (tmp_path / FILE_NAME).write_text('{"version": 1, "status": "failed", "colour": "red"}')
    assert RunNotes.load(tmp_path) == RunNotes(status="failed")
