"""Scores come back from their file as they were."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from lit_trainer.decision.rule import DecisionRule
from lit_trainer.reporting.scores import SplitScores, scores_path
from tests.reporting.folders import KINDS, make_scores


@pytest.mark.parametrize("num_rows", [0, 1, 30])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_is_loaded(tmp_path, kind, num_rows):
    saved = make_scores(kind, num_rows)
    path = saved.save(tmp_path)
    loaded = SplitScores.load(path)
    assert path == tmp_path / "scores" / "test.parquet"
    assert [file.name for file in path.parent.iterdir()] == ["test.parquet"]
    assert (loaded.split, loaded.step, loaded.label_names) == (saved.split, saved.step, saved.label_names)
    assert loaded.rule == saved.rule
    assert loaded.texts == saved.texts
    for column in ("rows", "logits", "labels"):
        np.testing.assert_array_equal(getattr(loaded, column), getattr(saved, column))
        assert getattr(loaded, column).shape == getattr(saved, column).shape


def test_it_is_a_plain_table_for_other_programs(tmp_path):
    table = pq.read_table(make_scores("binary").save(tmp_path))
    assert table.column_names == ["row", "label", "logits", "text"]
    assert json.loads(table.schema.metadata[b"lit_trainer"])["label_names"] == ["ham", "spam"]


def test_only_few_texts_are_kept(tmp_path):
    texts = pq.read_table(make_scores("binary", 500).save(tmp_path))["text"]
    assert 0 < len(texts) - texts.null_count <= 20


@pytest.mark.parametrize("content", [b"", b"PAR1 not really"])
def test_something_else_is_told(tmp_path, content):
    path = scores_path(tmp_path, "test")
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"test\.parquet holds no scores: "):
        SplitScores.load(path)


def test_another_table_and_a_newer_version_are_told(tmp_path):
    path = make_scores("binary").save(tmp_path)
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({}), path)
    with pytest.raises(ValueError, match="holds no scores"):
        SplitScores.load(path)
    pq.write_table(table.replace_schema_metadata({b"lit_trainer": json.dumps({"version": 9}).encode()}), path)
    with pytest.raises(ValueError, match="its version is 9; this lit_trainer reads up to 1"):
        SplitScores.load(path)


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        SplitScores.load(tmp_path / "none.parquet")


def test_half_precision_is_kept_as_numbers(tmp_path):
    rule = DecisionRule("binary", ("a", "b"))
    logits = np.array([[1.5, -2.0]], np.float16)
    scores = SplitScores("test", None, rule.label_names, rule, np.array([3]), logits, np.array([1]))
    np.testing.assert_array_equal(SplitScores.load(scores.save(tmp_path)).logits, logits)
