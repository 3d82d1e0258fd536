"""Whatever labels the data has, a model sees 0 to C-1, the same in every split, and the names are kept."""

import math

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from hypothesis import given
from hypothesis import strategies as st

from lit_trainer.data.labels import LabelMap, is_missing, label_name, label_values


def learn(values, **options):
    return LabelMap.from_columns({"train": values}, **options)


# The device-side assert of transformers#10449 and #14563, neuml/txtai#647, modelscope/ms-swift#9539 and
# simpletransformers#748: labels with gaps, from 1, of text or of booleans reach the loss as they are.
@pytest.mark.parametrize(
    ("values", "names", "numbers"),
    [
        ([0, 2, 5, 2], ("0", "2", "5"), [0, 1, 2, 1]),
        ([3, 1, 2], ("1", "2", "3"), [2, 0, 1]),
        (["pos", "neg", "pos"], ("neg", "pos"), [1, 0, 1]),
        ([True, False, True], ("False", "True"), [1, 0, 1]),
        (["1", 1, "0", 0, 1.0, "1.0", np.int8(1), np.float32(0)], ("0", "1"), [1, 1, 0, 0, 1, 1, 1, 0]),
        ([1.0, 0.0, 2.0], ("0", "1", "2"), [1, 0, 2]),
        ([10, 9, -1], ("-1", "9", "10"), [2, 1, 0]),
        (["10", "9"], ("9", "10"), [1, 0]),
        (["4.5", "10", "5"], ("4.5", "5", "10"), [0, 2, 1]),
        (["10", "nan", "9"], ("10", "9", "nan"), [0, 2, 1]),
        (["Ja", "nein", "ach"], ("Ja", "ach", "nein"), [0, 2, 1]),
    ],
)
def test_transformers_10449_any_labels_become_0_to_c_with_their_names(values, names, numbers):
    labels = learn(values)
    assert labels.names == names
    assert labels.encode_column(values).tolist() == numbers
    assert labels.encode_column(values).dtype == np.int64
    assert labels.id2label == dict(enumerate(names))
    assert labels.label2id == {name: number for number, name in enumerate(names)}
    assert type(labels.encode(values[0])) is int


def test_transformers_10449_a_class_that_only_validation_has_is_an_error_with_its_rows():
    splits = {"train": ["ham", "spam"], "validation": ["spam", "Spam", None, "eggs", "eggs"]}
    labels = LabelMap.from_columns(splits)
    assert labels.names == ("ham", "spam")
    assert labels.unknown(splits["validation"]) == {"Spam": [1], "eggs": [3, 4]}
    with pytest.raises(ValueError, match=r"'Spam' \(row 1\) is none of the classes ham, spam; did you mean 'spam'\?; "):
        labels.encode_column(splits["validation"])
    with pytest.raises(ValueError, match=r"the label 'eggs' \(rows 3, 4\) is none of the classes ham, spam"):
        labels.encode_column(splits["validation"])
    assert labels.encode_column(splits["validation"], unknown="ignore").tolist() == [1, -100, -100, -100, -100]


@given(st.lists(st.one_of(st.integers(-50, 50), st.booleans(), st.text(min_size=1)), min_size=1), st.randoms())
def test_the_map_does_not_depend_on_the_order_of_rows_and_loses_nothing(values, random):
    values = [value for value in values if not is_missing(value)] or [0]
    labels = learn(values)
    shuffled = random.sample(values, len(values))
    assert learn(shuffled) == labels
    numbers = labels.encode_column(values)
    assert set(numbers) == set(range(len(labels.names)))
    assert [labels.names[number] for number in numbers] == [label_name(value) for value in values]


def test_missing_labels_are_ignored_and_not_a_class():
    values = ["a", None, "", "  ", math.nan, np.float32("nan"), "b"]
    labels = learn(values)
    assert labels.names == ("a", "b")
    assert labels.encode_column(values).tolist() == [0, -100, -100, -100, -100, -100, 1]


def test_only_missing_labels_are_an_error():
    with pytest.raises(ValueError, match="every label of the training split is missing"):
        learn([None, ""])


def test_a_given_order_decides_the_class_numbers():
    assert learn(["ham", "spam"], classes=["spam", "ham"]).encode("ham") == 1
    assert learn([1, 2], classes=[2, 1, 7]).names == ("2", "1", "7")
    with pytest.raises(ValueError, match="classes has ham more than once"):
        learn(["ham"], classes=["ham", "ham"])


def test_a_value_is_not_taken_for_a_class():
    with pytest.raises(ValueError, match=r"train, row 1: the label 0.5 is not text.*kind: regression"):
        learn([1.0, 0.5])
    with pytest.raises(ValueError, match="kind: multi_label"):
        learn([["a"], ["b"]])
    with pytest.raises(ValueError, match="kind is 'binary', not one of classes, multi_label, regression"):
        learn([0, 1], kind="binary")


def splits(column, feature=None) -> DatasetDict:
    features = Features({"label": feature}) if feature is not None else None
    return DatasetDict({"train": Dataset.from_dict({"label": column}, features=features)})


def test_a_class_label_feature_keeps_its_names_in_its_order():
    data = splits([1, 0, -1, None, 1], ClassLabel(names=["world", "sports", "business"]))
    labels = LabelMap.from_dataset(data, "label")
    assert labels.names == ("world", "sports", "business")
    values = label_values(data["train"], "label")
    assert values == ["sports", "world", None, None, "sports"]
    assert labels.encode_column(values).tolist() == [1, 0, -100, -100, 1]
    other = LabelMap.from_dataset(data, "label", classes=["sports", "world", "business"])
    assert other.encode_column(values).tolist() == [0, 1, -100, -100, 0]


def test_lists_of_a_class_label_feature_are_lists_of_names():
    data = splits([[1], [0, 2], []], List(ClassLabel(names=["joy", "fear", "love"])))
    labels = LabelMap.from_dataset(data, "label", kind="multi_label")
    assert labels.names == ("joy", "fear", "love")
    encoded = labels.encode_column(label_values(data["train"], "label"))
    assert encoded.tolist() == [[0, 1, 0], [1, 0, 1], [0, 0, 0]]


def test_a_number_of_a_plain_feature_stays_a_number():
    data = splits([7, 9], Value("int32"))
    assert LabelMap.from_dataset(data, "label").names == ("7", "9")


# torchmetrics#1367, transformers#10232: binary cross-entropy needs floats here.
def test_several_classes_at_once_are_float_zeros_and_ones():
    values = [["b", "a"], [], None, ["c"]]
    labels = learn(values, kind="multi_label")
    encoded = labels.encode_column(values)
    assert labels.names == ("a", "b", "c")
    assert encoded.dtype == np.float32
    np.testing.assert_array_equal(encoded, [[1, 1, 0], [0, 0, 0], [np.nan] * 3, [0, 0, 1]])
    assert labels.unknown([["a", "z"], ["z"], "a"]) == {"z": [0, 1], "'a'": [2]}
    with pytest.raises(ValueError, match=r"the label 'z' \(row 0\) is none of the classes a, b, c"):
        labels.encode(["a", "z"])


@pytest.mark.parametrize("yes", [1, 1.0, True])
def test_vectors_of_zeros_and_ones_are_taken_as_they_are(yes):
    values = [[0, yes, 0], [yes, yes, None], np.array([0, 0, 0])]
    labels = learn(values, kind="multi_label")
    assert labels.names == ("0", "1", "2")
    np.testing.assert_array_equal(labels.encode_column(values), [[0, 1, 0], [1, 1, np.nan], [0, 0, 0]])
    named = learn(values, kind="multi_label", classes=["x", "y", "z"])
    np.testing.assert_array_equal(named.encode([0, 1, 1]), [0, 1, 1])
    with pytest.raises(ValueError, match=r"the label '1' .* is none of the classes x, y, z"):
        named.encode([1, 0])


def test_lists_of_whole_numbers_that_are_no_vectors_are_names():
    labels = learn([[10, 2], [2], [30, 10]], kind="multi_label")
    assert labels.names == ("2", "10", "30")
    assert labels.encode([10, 30]).tolist() == [0, 1, 1]


def test_text_is_not_taken_for_a_list_of_labels():
    with pytest.raises(ValueError, match=r"train, row 0: kind: multi_label needs a list of labels, not 'drama\|war'"):
        learn(["drama|war"], kind="multi_label")


def test_values_are_floats_and_missing_ones_nan():
    values = [1, "2.5", None, True, math.nan, "", np.float64(0.5)]
    labels = learn(values, kind="regression")
    assert len(labels.names) == 1
    encoded = labels.encode_column(values)
    assert encoded.dtype == np.float32
    np.testing.assert_array_equal(encoded, [1, 2.5, np.nan, 1, np.nan, np.nan, 0.5])


@pytest.mark.parametrize("value", ["good", math.inf, "inf", [1.0]])
def test_what_is_no_finite_number_is_no_value(value):
    with pytest.raises(ValueError, match=r"\(row 1\) is not a finite number, which kind: regression needs"):
        learn([], kind="regression").encode_column([0.5, value])


def test_a_label_in_very_many_rows_is_named_once():
    with pytest.raises(ValueError, match=r"the label 'x' \(rows 0, 1, 2, 3, 4 and 995 more\)"):
        learn(["a"]).encode_column(["x"] * 1000)


def test_no_rows_are_no_labels():
    assert learn(["a", "b"]).encode_column([]).shape == (0,)
    assert learn([["a"], ["b"]], kind="multi_label").encode_column([]).shape == (0, 2)
