import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from lit_trainer.decision.calibration import IsotonicScaling, TemperatureScaling, VectorScaling
from lit_trainer.decision.criteria import BalancedAccuracy, ExpectedCost, FBeta
from lit_trainer.decision.fitting import fit_rule
from lit_trainer.decision.intervals import Bootstrap
from lit_trainer.decision.rule import VERSION, DecisionRule

NAMES = {"binary": ("ham", "spam"), "multi_class": tuple("abcde"), "multi_label": tuple("abcdefghi")}
QUICK = Bootstrap(num_resamples=20)


def logits_and_labels(kind, num_rows=300):
    random = np.random.default_rng(0)
    num = len(NAMES[kind])
    logits = random.normal(size=(num_rows, num)).astype(np.float32) * 3
    if kind == "multi_label":
        return logits, (logits + random.normal(size=logits.shape) > 2).astype(int)
    return logits, (logits + random.normal(size=logits.shape) * 2).argmax(axis=1)


def fitted(kind, method):
    criterion = BalancedAccuracy() if kind == "multi_class" else FBeta()
    return fit_rule(
        *logits_and_labels(kind),
        kind=kind,
        label_names=NAMES[kind],
        split="validation",
        criterion=criterion,
        calibration=method,
        bootstrap=QUICK,
    )


every_rule = pytest.mark.parametrize("method", [None, TemperatureScaling, VectorScaling, IsotonicScaling])
every_kind = pytest.mark.parametrize("kind", list(NAMES))


@every_kind
def test_the_default_is_the_most_probable_class_or_half(kind):
    logits, _ = logits_and_labels(kind)
    labels = DecisionRule(kind, NAMES[kind]).decide(logits).labels
    assert (labels == ((logits >= 0) if kind == "multi_label" else logits.argmax(axis=1))).all()
    assert labels.dtype == np.int64


@every_rule
@every_kind
def test_a_row_is_decided_alike_alone_in_any_batch_as_array_and_as_tensor(kind, method):
    rule, (logits, _) = fitted(kind, method), logits_and_labels(kind)
    whole = rule.decide(logits)
    one_by_one = [rule.decide(logits[i : i + 1]) for i in range(len(logits))]
    np.testing.assert_array_equal(whole.probabilities, np.concatenate([one.probabilities for one in one_by_one]))
    np.testing.assert_array_equal(whole.labels, np.concatenate([one.labels for one in one_by_one]))
    for other in (torch.from_numpy(logits), logits.astype(np.float64), np.asfortranarray(logits)):
        again = rule.decide(other)
        np.testing.assert_array_equal(whole.probabilities, again.probabilities)
        np.testing.assert_array_equal(whole.labels, again.labels)


@every_rule
@every_kind
def test_a_saved_rule_comes_back_equal_and_decides_equally(kind, method, tmp_path):
    rule, (logits, _) = fitted(kind, method), logits_and_labels(kind)
    rule.save(tmp_path / "rule.json")
    loaded = DecisionRule.load(tmp_path / "rule.json", label_names=NAMES[kind])
    assert loaded == rule
    np.testing.assert_array_equal(loaded.decide(logits).probabilities, rule.decide(logits).probabilities)
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "rule.json").read_bytes()
    assert DecisionRule.from_dict(rule.to_dict()) == rule


def test_the_file_is_readable_json_with_sorted_keys(tmp_path):
    DecisionRule("binary", ("hæm", "spam"), thresholds=(0.25,)).save(tmp_path / "rule.json")
    text = (tmp_path / "rule.json").read_text(encoding="utf-8")
    assert json.loads(text) == {
        "version": VERSION,
        "kind": "binary",
        "label_names": ["hæm", "spam"],
        "positive_label": "spam",
        "calibration": None,
        "thresholds": [0.25],
        "costs": None,
        "fitted_on": None,
    }
    assert "hæm" in text
    keys = [line.split('"')[1] for line in text.splitlines() if line.startswith('  "')]
    assert keys == sorted(keys)


@pytest.mark.parametrize("positive", ["ham", "spam"])
def test_positive_is_where_the_probability_is_at_least_the_threshold(positive):
    rule = DecisionRule("binary", ("ham", "spam"), positive_label=positive, thresholds=(0.8,))
    k = rule.positive
    p = np.zeros((3, 2))
    p[:, k] = [0.79, 0.8, 0.81]
    p[:, 1 - k] = 1 - p[:, k]
    assert rule.labels(p).tolist() == [1 - k, k, k]


def test_a_threshold_above_one_decides_nothing_positive():
    rule = DecisionRule("binary", ("ham", "spam"), thresholds=(float(np.nextafter(1.0, 2.0)),))
    assert rule.decide(np.array([-500.0, 500.0])).labels.tolist() == [0, 0]


def test_each_label_has_its_own_threshold_zero_included():
    rule = DecisionRule("multi_label", ("a", "b", "c"), thresholds=(0.0, 0.5, 0.9))
    assert rule.labels(np.array([[0.0, 0.5, 0.89], [1.0, 0.49, 0.9]])).tolist() == [[1, 1, 0], [1, 0, 1]]


def test_costs_move_decisions():
    dear = DecisionRule("multi_class", ("a", "b"), costs=((0, 1), (9, 0)))
    assert dear.labels(np.array([[0.95, 0.05], [0.85, 0.15]])).tolist() == [0, 1]


def test_no_rows_are_no_decisions():
    decision = DecisionRule("multi_class", ("a", "b", "c"), costs=tuple(map(tuple, 1 - np.eye(3)))).decide(
        np.zeros((0, 3))
    )
    assert decision.probabilities.shape == (0, 3)
    assert decision.labels.shape == (0,)


def test_half_precision_is_decided_like_the_same_numbers_in_full():
    logits = torch.randn(50, 5, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    rule = DecisionRule("multi_class", NAMES["multi_class"], calibration=TemperatureScaling(2.0))
    np.testing.assert_array_equal(rule.decide(logits).probabilities, rule.decide(logits.float()).probabilities)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "ranking"}, "kind is 'ranking'; it can be binary, multi_class, multi_label"),
        ({"label_names": ("a", "a")}, r"label_names \[a, a\] has a name twice"),
        ({"label_names": ("a", "b", "c")}, "label_names has 3 names; binary takes 2"),
        ({"kind": "multi_class", "label_names": ("a",)}, "label_names has 1 names; multi_class takes more"),
        ({"positive_label": "c"}, r"positive_label is 'c'; it is for binary, one of \[a, b\]"),
        ({"kind": "multi_class", "positive_label": "a"}, "positive_label is 'a'; it is for binary"),
        ({"thresholds": (0.5, 0.5)}, "thresholds has 2 numbers; binary takes 1"),
        ({"kind": "multi_class", "thresholds": (0.5,)}, "thresholds has 1 numbers; multi_class takes none"),
        ({"thresholds": (float("inf"),)}, r"thresholds are probabilities, from 0 to 1: \[inf\]"),
        ({"thresholds": (float("nan"),)}, r"from 0 to 1: \[nan\]"),
        ({"costs": ((0, 1), (1, 0))}, "costs is 2 x 2; it is for multi_class"),
        ({"kind": "multi_class", "costs": tuple(map(tuple, 1 - np.eye(3)))}, "costs is 3 x 3"),
        ({"calibration": VectorScaling((1.0,), (0.0,))}, "calibration has 1 factors and there are 2 labels"),
        ({"calibration": IsotonicScaling(())}, "calibration has 0 curves; binary with 2 labels takes 1"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        DecisionRule(**{"kind": "binary", "label_names": ("a", "b"), **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"version": VERSION + 1},
            f"has version {VERSION + 1}; this lit_trainer reads up to {VERSION}: install a newer",
        ),
        ({"version": None}, "no decision rule: version is None"),
        ({"kind": "ranking"}, "kind is 'ranking'"),
        ({"threshold": 0.5}, "the decision rule has the unknown threshold"),
        ({"calibration": {"method": "beta"}}, "calibration method is 'beta'"),
        ({"calibration": 3}, "a part of the decision rule is of another form"),
        ({"thresholds": ["high"]}, "a part of the decision rule is of another form"),
        ({"thresholds": 0.5}, "a part of the decision rule is of another form"),
        ({"costs": 0.5}, "a part of the decision rule is of another form"),
        ({"label_names": None}, "a part of the decision rule is of another form"),
        ({"fitted_on": {"split": "validation"}}, "fitted_on lacks brier_score, calibration_error, criterion"),
        ({"fitted_on": 3}, "fitted_on is 3; it is a mapping of"),
    ],
)
def test_a_file_that_is_no_rule_for_this_version_says_why(change, message, tmp_path):
    data = {**DecisionRule("binary", ("a", "b")).to_dict(), **change}
    (tmp_path / "rule.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=rf"rule\.json: .*{message}"):
        DecisionRule.load(tmp_path / "rule.json")


@pytest.mark.parametrize("text", ["", "[]", "not json", "{}"])
def test_a_file_of_something_else_says_so(text, tmp_path):
    (tmp_path / "rule.json").write_text(text)
    with pytest.raises(ValueError, match=r"rule\.json: "):
        DecisionRule.load(tmp_path / "rule.json")


@pytest.mark.parametrize("names", [("spam", "ham"), ("ham",), ("ham", "spam", "eggs")])
def test_labels_that_are_not_the_models_are_refused(names, tmp_path):
    DecisionRule("binary", ("ham", "spam")).save(tmp_path / "rule.json")
    with pytest.raises(ValueError, match=r"is for the labels \[ham, spam\], the model has \["):
        DecisionRule.load(tmp_path / "rule.json", label_names=names)


def test_a_rule_is_frozen():
    rule = DecisionRule("binary", ("a", "b"))
    with pytest.raises(AttributeError):
        rule.kind = "multi_class"
    assert replace(rule, thresholds=(0.3,)).thresholds == (0.3,)


def test_lists_of_costs_are_kept_as_tuples():
    assert ExpectedCost([[0, 1], [1, 0]]) == ExpectedCost(((0, 1), (1, 0)))
