"""Logged metrics are read as they are, whatever state the file is in."""

import numpy as np
import pytest

from lit_trainer.reporting.series import Series, merged, read_series, smoothed, thinned, with_prefix
from tests.reporting.folders import write_metrics


def series(*values: float) -> Series:
    return Series(np.arange(1, len(values) + 1), np.array(values, float))


def test_steps_count_what_is_done_and_only_numbers_are_values(tmp_path):
    write_metrics(tmp_path, num_steps=40)
    found = read_series(tmp_path / "metrics.csv")
    assert found["train/loss"].steps.tolist() == list(range(1, 41))
    assert found["val/f1"].steps.tolist() == [21, 40]
    assert found["test/f1"].last == 0.75
    assert not {"step", "epoch", "x"} & found.keys()


@pytest.mark.parametrize("text", [None, "", "\n", "step,train/loss\n", "a,b\n1,2\n", "\x00\x01"])
def test_a_file_without_metrics_gives_none(tmp_path, text):
    path = tmp_path / "metrics.csv"
    if text is not None:
        path.write_text(text)
    assert read_series(path) == {}


def test_a_line_that_was_cut_short_and_a_step_that_was_logged_again(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("step,train/loss,val/loss\n0,1.0,\n1,0.9,\n0,0.8,\n1,nan,0.5\n2,0.")
    found = read_series(path)
    np.testing.assert_equal(found["train/loss"].values, [0.8, np.nan, 0.0])
    assert found["val/loss"].steps.tolist() == [2]


def test_equal_rates_are_one_line_with_all_names():
    rates = {"backbone": series(1, 2), "backbone.no_decay": series(1, 2), "head": series(1, 2), "other": series(1, 3)}
    assert list(merged(rates)) == ["backbone, head", "other"]
    many = {f"layer.{index}": series(1, 2) for index in range(9)}
    assert list(merged(many)) == ["layer.0 ... layer.8 (9 groups)"]


def test_prefixes_are_cut():
    assert list(with_prefix({"lr/a": series(1), "x/lr/b": series(1)}, "lr/")) == ["a"]


def test_thinning_keeps_the_mean_and_the_end():
    long = series(*range(1000))
    short = thinned(long, 100)
    assert len(short.steps) == 100
    assert short.steps[-1] == 1000
    assert short.values.mean() == pytest.approx(long.values.mean())
    assert thinned(short, 100) is short


def test_smoothing_is_a_running_mean_that_skips_what_is_not_finite():
    smooth = smoothed(series(1, 3, float("nan"), 5, float("inf"), float("inf"), float("inf")), 3)
    np.testing.assert_allclose(smooth.values, [1, 2, 2, 4, 5, 5, np.nan])
