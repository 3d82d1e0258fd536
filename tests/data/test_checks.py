"""Everything that is wrong with the data is said at once, before the first batch, with the rows that have it."""

import json

import numpy as np
import pytest
from datasets import Dataset, DatasetDict

from lit_trainer.data.checks import Policies, check
from lit_trainer.data.labels import LabelMap
from lit_trainer.data.splits import Origin, Splits


def table(*rows) -> Dataset:
    return Dataset.from_dict({"text": [row[0] for row in rows], "label": [row[1] for row in rows]})


GOOD = table(("one", "a"), ("two", "b"), ("three", "a"))


def look(dataset, kind="classes", classes=None, policies=None, **options):
    label_map = LabelMap.from_dataset(dataset, "label", kind, classes)
    return check(dataset, ["text"], "label", label_map, policies, **options)


def test_good_data_passes_unchanged_and_is_described():
    dataset = DatasetDict(train=GOOD, test=table(("four", "b")))
    checked, report = look(dataset)
    assert {split: rows[:] for split, rows in checked.items()} == {split: rows[:] for split, rows in dataset.items()}
    assert report.findings == []
    assert str(report).splitlines() == [
        "train: 3 rows; a 2, b 1; text of 3 characters (95 %: 5, longest: 5)",
        "test: 1 row; a 0, b 1; text of 4 characters (95 %: 4, longest: 4)",
    ]
    assert report.origins["train"].rows.tolist() == [0, 1, 2]
    plain = report.as_dict()
    assert plain["splits"]["train"]["num_characters"] == {"text": (3, 3, 5, 5)}
    json.dumps(plain)


def test_all_problems_are_in_one_error_with_their_rows_and_the_key_to_set():
    dataset = DatasetDict(
        train=table(("x", "a"), (None, "a"), ("", "a"), (" \n", "a"), ("y", None), ("z", "")),
        test=table(("t", "c"), (None, "a"), ("u", "c")),
    )
    with pytest.raises(ValueError, match="5 problems") as caught:
        look(dataset)
    assert str(caught.value).splitlines() == [
        "the data has 5 problems (rows count from 0 in the source):",
        "- missing text: 2 rows (train 1; test 1); mend that or set data.checks.missing_text to drop",
        "- empty text: 2 rows (train 2, 3); mend that or set data.checks.empty_text to drop or keep",
        "- missing label: 2 rows (train 4, 5); mend that or set data.checks.missing_label to drop or keep",
        "- a label that is none of a ('c'): 2 rows (test 0, 2); "
        "mend that or set data.checks.unknown_label to drop or keep",
        "- all training rows have the label 'a'; mend that or set data.checks.single_class to keep",
    ]


def test_dropped_rows_are_gone_and_reported_and_the_others_know_where_they_come_from():
    dataset = DatasetDict(
        train=table(("one", "a"), (None, "a"), ("", "b"), ("two", "b"), ("three", None)), test=table(("four", "c"))
    )
    policies = Policies(missing_text="drop", empty_text="drop", missing_label="drop", unknown_label="keep")
    checked, report = look(dataset, policies=policies)
    assert checked["train"]["text"][:] == ["one", "two"]
    assert report.origins["train"].rows.tolist() == [0, 3]
    assert report.splits["train"].num_dropped == 3
    assert report.splits["test"].num_unlabelled == 1
    assert str(report).splitlines()[2:] == [
        "dropped: missing text: 1 row (train 1)",
        "dropped: empty text: 1 row (train 2)",
        "dropped: missing label: 1 row (train 4)",
        "kept: a label that is none of a, b ('c'): 1 row (test 0)",
    ]


def test_rows_are_named_as_in_the_source_after_a_cut():
    texts = [f"text {row}" for row in range(40)]
    texts[7] = texts[23] = texts[31] = None
    dataset = DatasetDict(data=Dataset.from_dict({"text": texts, "label": ["a", "b"] * 20}))
    made, origins = Splits(validation=0.3, test=0.3).make(dataset, ["text"], "label")
    with pytest.raises(ValueError, match=r"missing text: 3 rows \(data 7, 23, 31\)"):
        look(made, origins=origins)
    checked, report = look(made, origins=origins, policies=Policies(missing_text="drop"))
    for split, origin in report.origins.items():
        assert checked[split]["text"][:] == [texts[row] for row in origin.rows]
    assert sum(len(origin.rows) for origin in report.origins.values()) == 37


def test_many_rows_are_counted_and_the_first_are_named():
    dataset = DatasetDict(train=table(("x", "a"), *[(None, "b")] * 1234))
    with pytest.raises(ValueError, match=r"missing text: 1,234 rows \(train 1, 2, 3, 4, 5 and 1,229 more\)"):
        look(dataset)


def test_classes_that_are_left_out_are_unknown_labels_and_can_be_dropped():
    dataset = DatasetDict(train=table(("one", "fresh"), ("two", "rotten"), ("three", "plot")))
    with pytest.raises(ValueError, match=r"a label that is none of rotten, fresh \('plot'\): 1 row \(train 2\)"):
        look(dataset, classes=["rotten", "fresh"])
    checked, report = look(dataset, classes=["rotten", "fresh"], policies=Policies(unknown_label="drop"))
    assert checked["train"]["label"][:] == ["fresh", "rotten"]
    assert report.splits["train"].class_counts == {"rotten": 1, "fresh": 1}


def test_the_same_text_in_two_splits_is_reported_and_dropped_from_the_earlier_one_if_asked():
    dataset = DatasetDict(
        train=table(("one", "a"), ("two", "b"), ("three", "a"), ("three", "a"), ("five", "b")),
        validation=table(("two", "b"), ("four", "a")),
        test=table(("three", "a"), ("four", "a")),
    )
    checked, report = look(dataset)
    assert [str(finding) for finding in report.findings] == [
        "text that another split has too: 7 rows (train 1, 2, 3; validation 0, 1; test 0, 1)"
    ]
    assert checked["train"].num_rows == 5
    checked, report = look(dataset, policies=Policies(duplicate_text="drop"))
    assert {split: rows["text"][:] for split, rows in checked.items()} == {
        "train": ["one", "five"],
        "validation": ["two"],
        "test": ["three", "four"],
    }
    with pytest.raises(ValueError, match=r"set data.checks.duplicate_text to drop or keep"):
        look(dataset, policies=Policies(duplicate_text="error"))


def test_one_text_with_two_labels_is_reported():
    dataset = DatasetDict(
        train=table(("one", "a"), ("one", "b"), ("two", "b"), ("two", "b")), test=table(("two", "a"), ("x", "a"))
    )
    _, report = look(dataset)
    assert [finding.kind for finding in report.findings] == ["duplicate_text", "conflicting_labels"]
    assert str(report.findings[1]) == "text that has different labels: 5 rows (train 0, 1, 2, 3; test 0)"
    checked, _ = look(
        DatasetDict(train=table(("one", "a"), ("one", "b"), ("two", "b"), ("three", "a"), ("one", None))),
        policies=Policies(conflicting_labels="drop", missing_label="keep"),
    )
    assert checked["train"]["text"][:] == ["two", "three"]


def test_missing_texts_are_no_duplicates():
    dataset = DatasetDict(train=table(("", "a"), ("x", "b")), test=table(("", "a")))
    _, report = look(dataset, policies=Policies(empty_text="keep"))
    assert [finding.kind for finding in report.findings] == ["empty_text"]


def test_two_texts_are_looked_at_as_a_pair():
    rows = {"a": ["x", "x", None], "b": ["1", "", "3"], "label": ["n", "y", "n"]}
    dataset = DatasetDict(
        train=Dataset.from_dict(rows), test=Dataset.from_dict({"a": ["x"], "b": ["2"], "label": ["n"]})
    )
    label_map = LabelMap.from_dataset(dataset, "label")
    _, report = check(dataset, ["a", "b"], "label", label_map, Policies(missing_text="drop", empty_text="keep"))
    assert [str(finding) for finding in report.findings] == [
        "missing text: 1 row (train 2)",
        "empty text: 1 row (train 1)",
    ]
    assert list(report.splits["train"].num_characters) == ["a", "b"]


def test_fewer_rows_than_a_step_takes_are_reported():
    _, report = look(DatasetDict(train=GOOD), batch_size=4)
    assert str(report.findings[0]) == "3 training rows are fewer than the 4 of a step (data.batch_size)"
    assert look(DatasetDict(train=GOOD), batch_size=3)[1].findings == []
    with pytest.raises(ValueError, match=r"set data.checks.small_training_split to keep"):
        look(DatasetDict(train=GOOD), batch_size=4, policies=Policies(small_training_split="error"))


def test_one_class_can_be_allowed():
    dataset = DatasetDict(train=table(("x", "a"), ("y", "a")))
    _, report = look(dataset, policies=Policies(single_class="keep"))
    assert str(report).splitlines()[-1] == "kept: all training rows have the label 'a'"


@pytest.mark.parametrize("policy", ["error", "drop", "keep"])
def test_a_split_without_rows_is_an_error_whatever_the_policies(policy):
    empty = Dataset.from_dict({"text": ["x"], "label": ["a"]}).select([])
    policies = Policies(empty_text=policy, unknown_label=policy)
    with pytest.raises(ValueError, match=r"- validation has no rows$"):
        look(DatasetDict(train=GOOD, validation=empty), policies=policies)


def test_dropping_all_rows_is_an_error():
    with pytest.raises(ValueError, match="- all rows of test are to be dropped"):
        look(DatasetDict(train=GOOD, test=table(("x", None))), policies=Policies(missing_label="drop"))


def test_several_classes_at_once():
    dataset = DatasetDict(
        train=table(("one", ["a", "b"]), ("two", []), ("three", None), ("four", ["b"])),
        test=table(("five", ["b", "z"])),
    )
    checked, report = look(dataset, "multi_label", policies=Policies(missing_label="drop", unknown_label="keep"))
    assert len(checked["train"]) == 3
    assert report.splits["train"].class_counts == {"a": 1, "b": 2}
    assert report.splits["test"].class_counts == {"a": 0, "b": 1}
    assert str(report.findings[1]) == "a label that is none of a, b ('z'): 1 row (test 0)"
    with pytest.raises(ValueError, match="all training rows have the label 'a' and 'b'"):
        look(DatasetDict(train=table(("one", ["a", "b"]), ("two", ["b", "a"]))), "multi_label")


def test_values():
    dataset = DatasetDict(train=table(("one", "1.5"), ("two", "2"), ("three", ""), ("two", "3"), ("four", "x")))
    with pytest.raises(ValueError, match=r"a label that is no finite number \('x'\): 1 row \(train 4\)"):
        look(dataset, "regression")
    policies = Policies(missing_label="keep", unknown_label="drop")
    _, report = look(dataset, "regression", policies=policies)
    assert report.splits["train"].class_counts == {}
    assert report.splits["train"].num_unlabelled == 1
    assert [finding.kind for finding in report.findings] == ["missing_label", "unknown_label"]


def test_rows_to_predict_need_no_labels():
    dataset = DatasetDict(predict=Dataset.from_dict({"text": ["one", "two"]}))
    checked, report = check(dataset, ["text"])
    assert len(checked["predict"]) == 2
    assert str(report) == "predict: 2 rows; text of 3 characters (95 %: 3, longest: 3)"


def test_many_classes_are_summed_up():
    rows = [(f"text {row}", f"class {row % 12}") for row in range(30)]
    assert "30 rows; 12 classes of 2 to 3; text" in str(look(DatasetDict(train=table(*rows)))[1])


def test_a_column_that_is_not_there_lists_those_that_are():
    label_map = LabelMap(("a", "b"))
    with pytest.raises(
        ValueError, match=r"data.text: the train split has no column 'txt', only 'text', 'label'; did you"
    ):
        check(DatasetDict(train=GOOD), ["txt"], "label", label_map)
    unlabelled = GOOD.remove_columns("label")
    with pytest.raises(ValueError, match=r"data.label: the test split has no column 'label', only 'text'"):
        check(DatasetDict(train=GOOD, test=unlabelled), ["text"], "label", label_map)


def test_a_column_of_numbers_is_no_text():
    with pytest.raises(ValueError, match=r"data.text: the column 'text' of train holds int64, not text"):
        check(DatasetDict(train=Dataset.from_dict({"text": [1, 2]})), ["text"])


def test_words_instead_of_text_can_be_checked():
    dataset = DatasetDict(train=Dataset.from_dict({"text": [["a", "b"], [], None]}))
    _, report = check(dataset, ["text"], policies=Policies(missing_text="drop", empty_text="keep"))
    assert [finding.kind for finding in report.findings] == ["missing_text", "empty_text"]


def test_rows_of_two_splits_with_one_origin_are_named_together():
    dataset = DatasetDict(train=table(("one", "a"), ("", "b")), test=table(("", "a"), ("two", "b")))
    origins = {"train": Origin("all", np.array([1, 9])), "test": Origin("all", np.array([4, 5]))}
    with pytest.raises(ValueError, match=r"empty text: 2 rows \(all 4, 9\)"):
        look(dataset, origins=origins)
