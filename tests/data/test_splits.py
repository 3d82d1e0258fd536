"""Given splits are used as they are; missing ones are cut evenly, the same everywhere, and without leaks."""

from collections import Counter

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from hypothesis import given
from hypothesis import strategies as st

from lit_trainer.data.splits import Splits, cut_groups, cut_rows


def table(labels, **columns) -> Dataset:
    return Dataset.from_dict({"text": [f"text {row}" for row in range(len(labels))], "label": labels} | columns)


def source(labels, **columns) -> DatasetDict:
    return DatasetDict(train=table(labels, **columns))


def make(dataset, kind="classes", **settings):
    return Splits(**settings).make(dataset, ["text"], "label", kind)


def test_given_splits_are_used_as_they_are():
    dataset = DatasetDict(train=table(["a", "b"]), validation=table(["b"]), test=table(["a", "a", "b"]))
    made, origins = make(dataset)
    assert list(made) == ["train", "validation", "test"]
    assert [made[split][:] for split in made] == [dataset[split][:] for split in dataset]
    assert origins["test"].split == "test"
    assert origins["test"].rows.tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["validation", "valid", "val", "dev"])
def test_usual_names_of_a_validation_split_are_known(name):
    made, origins = make(DatasetDict({"train": table(["a"] * 8), name: table(["b"]), "test": table(["a"])}))
    assert made["validation"]["label"] == ["b"]
    assert origins["validation"].split == name


def test_any_split_can_be_named_and_others_are_left_alone():
    dataset = DatasetDict(train=table(["a", "b"]), matched=table(["b"]), mismatched=table(["a"]), test=table([None]))
    made, _ = make(dataset, validation="matched", test="mismatched")
    assert {split: made[split]["label"][:] for split in made} == {
        "train": ["a", "b"],
        "validation": ["b"],
        "test": ["a"],
    }


def test_a_split_of_the_source_can_be_taken_as_not_there():
    dataset = DatasetDict(train=table(["a", "b"] * 10), test=table([None] * 7))
    made, origins = make(dataset, leave_out=("test",))
    assert origins["test"].split == "train"
    assert None not in made["test"]["label"]
    assert set(make(dataset, test=0)[0]) == {"train", "validation"}


def test_one_split_of_any_name_is_the_training_split():
    made, origins = make(DatasetDict(data=table(["a", "b"] * 10)))
    assert set(made) == {"train", "validation", "test"}
    assert origins["train"].split == "data"


@given(
    st.lists(st.integers(0, 4), min_size=12, max_size=200),
    st.floats(0.05, 0.45),
    st.floats(0.05, 0.45),
    st.integers(0, 3),
)
def test_a_cut_is_complete_disjoint_and_even_in_every_class(labels, validation, test, seed):
    shares = [validation, test]
    sides = cut_rows(np.array(labels), shares, np.random.default_rng(seed))
    assert len(sides) == len(labels)
    for label, total in Counter(labels).items():
        counts = np.bincount(sides[np.array(labels) == label], minlength=3)
        assert counts[0] >= 1
        for side, share in enumerate(shares, start=1):
            assert counts[side] < share * total + 1
            assert counts[side] > share * total - 1 or counts[0] <= 1
    assert all(np.sum(sides == side) <= max(1, round(share * len(labels))) for side, share in enumerate(shares, 1))


def test_the_shares_are_of_all_training_rows():
    made, origins = make(source(["ham"] * 87 + ["spam"] * 13), validation=0.2, test=0.1)
    assert {split: len(made[split]) for split in made} == {"train": 70, "validation": 20, "test": 10}
    spam = {split: made[split]["label"][:].count("spam") for split in made}
    assert spam["validation"] in (2, 3)
    assert spam["test"] in (1, 2)
    assert sorted(np.concatenate([origin.rows for origin in origins.values()])) == list(range(100))
    for split, origin in origins.items():
        assert made[split]["text"] == [f"text {row}" for row in origin.rows]
        assert sorted(origin.rows) == origin.rows.tolist()


def test_the_cut_is_the_same_on_every_machine_and_another_for_another_seed():
    dataset = source(["ham"] * 80 + ["spam"] * 20)
    _, origins = make(dataset)
    assert origins["test"].rows.tolist() == make(dataset)[1]["test"].rows.tolist()
    assert origins["test"].rows.tolist() != make(dataset, seed=1)[1]["test"].rows.tolist()
    assert origins["test"].rows.tolist() == [15, 21, 32, 55, 61, 62, 66, 69, 84, 96]


def test_the_cut_does_not_touch_the_global_generator():
    np.random.seed(0)  # noqa: NPY002 - it is the legacy generator that must not move
    expected = np.random.RandomState(0).rand()
    make(source(["a", "b"] * 20))
    assert np.random.rand() == expected  # noqa: NPY002


def test_rare_classes_stay_in_training():
    made, _ = make(source(["a"] * 40 + ["b", "b"] + ["c"]), validation=0.3, test=0.3)
    assert {"a", "b", "c"} == set(made["train"]["label"])
    assert "c" not in [*made["validation"]["label"], *made["test"]["label"]]


def test_numbers_that_mean_the_same_are_one_class():
    made, _ = make(source(["1", "1.0"] * 10 + ["0"] * 2), validation=0.25, test=0.0)
    assert Counter(label[0] for label in made["validation"]["label"])["1"] == 5


def test_missing_labels_and_class_label_features_can_be_cut():
    features = Features({"text": Value("string"), "label": ClassLabel(names=["x", "y"])})
    rows = Dataset.from_dict({"text": [f"t{i}" for i in range(40)], "label": [0, 1, -1, None] * 10}, features=features)
    made, _ = make(DatasetDict(train=rows), validation=0.25, test=0.25)
    assert made["test"].features == features
    counts = Counter(-1 if label is None else label for label in made["test"]["label"])
    assert counts[0] in (2, 3)
    assert counts[1] in (2, 3)
    assert sum(counts.values()) == 10


def test_several_classes_go_by_their_rarest():
    labels = [["common"]] * 60 + [["common", "rare"]] * 20 + [[]] * 20
    made, _ = make(source(labels), kind="multi_label", validation=0.0, test=0.2)
    assert Counter(map(tuple, made["test"]["label"])) == {("common",): 12, ("common", "rare"): 4, (): 4}


def test_values_go_by_their_decile():
    labels = [float(value) for value in np.random.default_rng(0).permutation(100)]
    made, _ = make(source(labels), kind="regression", validation=0.0, test=0.2)
    assert np.bincount(np.array(made["test"]["label"][:], int) // 10).tolist() == [2] * 10
    assert len(make(source([1.5] * 20), kind="regression")[0]["test"]) == 2


def test_without_stratifying_a_class_can_be_missing():
    made, _ = make(source(["a"] * 3 + ["b", "c", "d"]), stratify=False, validation=1 / 3, test=1 / 3)
    assert {split: len(made[split]) for split in made} == {"train": 2, "validation": 2, "test": 2}


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2)), min_size=30, max_size=300), st.integers(0, 3))
def test_no_group_is_on_two_sides_and_shares_are_met_to_within_the_largest_group(rows, seed):
    groups = np.unique([group for group, _ in rows], return_inverse=True)[1]
    if groups.max() < 2:
        return
    sides = cut_groups(groups, np.array([label for _, label in rows]), [0.2, 0.1], np.random.default_rng(seed))
    assert all(len(set(sides[groups == group])) == 1 for group in set(groups))
    assert set(sides) == {0, 1, 2}
    largest = np.bincount(groups).max()
    counts = np.bincount(sides)
    for side, share in enumerate([0.7, 0.2, 0.1]):
        assert abs(counts[side] - share * len(rows)) <= 2 * largest


def test_groups_stay_together_and_classes_stay_even():
    rng = np.random.default_rng(0)
    authors = [f"author {author}" for author in rng.integers(0, 60, 600)]
    labels = ["spam" if rng.random() < 0.2 else "ham" for _ in authors]
    made, _ = make(source(labels, author=authors), group_by="author", validation=0.2, test=0.2)
    sets = [set(made[split]["author"]) for split in made]
    assert not sets[0] & sets[1]
    assert not sets[0] & sets[2]
    assert not sets[1] & sets[2]
    for split, share in (("train", 0.6), ("validation", 0.2), ("test", 0.2)):
        assert abs(len(made[split]) - share * 600) <= 6
        assert abs(made[split]["label"][:].count("spam") - share * labels.count("spam")) <= 6


def test_a_row_without_a_group_is_a_group_of_its_own():
    made, _ = make(source(["a", "b"] * 50, author=[None] * 100), group_by="author")
    assert {split: len(made[split]) for split in made} == {"train": 80, "validation": 10, "test": 10}


def test_too_few_groups_are_an_error():
    with pytest.raises(ValueError, match="'author' has 2 different values, and 3 are needed to keep train, validation"):
        make(source(["a"] * 20, author=["x", "y"] * 10), group_by="author")
    with pytest.raises(
        ValueError, match=r"data.splits.group_by: .* no column 'writer', only 'text', 'label', 'author'"
    ):
        make(source(["a"] * 20, author=["x", "y"] * 10), group_by="writer")


def test_duplicates_are_dropped_before_the_cut_and_the_first_is_kept():
    texts = ["hello"] * 5 + [f"text {row}" for row in range(20)] + ["hello", "", "", None]
    labels = ["a"] * 6 + ["b"] * 19 + ["other", "a", "a", "a"]
    dataset = DatasetDict(train=Dataset.from_dict({"text": texts, "label": labels}))
    made, origins = make(dataset, drop_duplicates=True)
    rows = sorted(np.concatenate([origin.rows for origin in origins.values()]))
    # Another label for the same text is a contradiction and blank text a hole: neither is hidden by dropping it here.
    assert rows == [0, *range(5, 29)]
    assert sum(len(split) for split in made.values()) == 25
    assert len(make(dataset)[1]["train"].rows) == 23


def test_two_texts_are_duplicates_only_together():
    rows = {"a": ["x", "x", "y", "x"], "b": ["1", "2", "1", "1"], "label": [0, 0, 0, 0]}
    dataset = DatasetDict(train=Dataset.from_dict(rows))
    settings = Splits(drop_duplicates=True, validation=0, test=0)
    assert settings.make(dataset, ["a", "b"], "label")[1]["train"].rows.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"validation": 1.0}, "data.splits.validation is 1.0, not a share from 0 to below 1 or a split's name"),
        ({"test": -0.1}, "data.splits.test is -0.1, not a share"),
        ({"validation": 0.5, "test": 0.5}, "validation and test take 1, so none is left to train on"),
        ({"calibration": 1.5}, "data.splits.calibration is 1.5, not a share"),
        ({"calibration": 0.8}, "validation, test and calibration take 1, so none is left to train on"),
        ({"validation": 0, "test": 0.2, "calibration": 0.8}, "test and calibration take 1, so none is left"),
    ],
)
def test_impossible_shares_are_refused_at_once(settings, message):
    with pytest.raises(ValueError, match=message):
        Splits(**settings)


def test_splits_that_are_not_there_are_listed():
    dataset = DatasetDict(train=table(["a"]), test=table(["a"]))
    with pytest.raises(
        ValueError, match=r"data.splits.validation: the source has no split 'tests', only train, test; did"
    ):
        make(dataset, validation="tests")
    with pytest.raises(ValueError, match="no split called train, only test, other"):
        make(DatasetDict(test=table(["a"]), other=table(["a"])))
    with pytest.raises(ValueError, match="train, validation, test would be train, test, test of the source"):
        make(dataset, validation="test")


def test_missing_columns_are_an_error():
    with pytest.raises(
        ValueError, match=r"data.text: the train split has no column 'txt', only 'text', 'label'; did you"
    ):
        Splits().make(source(["a"] * 20), ["txt"], "label")
    with pytest.raises(ValueError, match=r"data.label: the train split has no column 'class'"):
        Splits().make(source(["a"] * 20), ["text"], "class")


@pytest.mark.parametrize("labels", [["a"], ["a", "b"], ["a", "a"], ["a", "b", "c", "d", "e"]])
def test_too_few_rows_are_an_error(labels):
    with pytest.raises(
        ValueError, match=f"data.splits: {len(labels)} rows are too few to cut validation and test from"
    ):
        make(source(labels))


def test_three_rows_of_a_class_are_enough():
    made, _ = make(source(["a", "a", "a"]))
    assert [len(split) for split in made.values()] == [1, 1, 1]


def test_rows_without_any_label_column_can_be_cut():
    dataset = DatasetDict(train=Dataset.from_dict({"text": [str(row) for row in range(20)]}))
    made, _ = Splits().make(dataset, ["text"])
    assert [len(split) for split in made.values()] == [16, 2, 2]


def test_rows_for_calibration_are_taken_from_training_alone():
    dataset = source(["a", "b", "b"] * 40)
    without, with_it = make(dataset)[1], make(dataset, calibration=0.2)[1]
    for split in ("validation", "test"):
        assert with_it[split].rows.tolist() == without[split].rows.tolist()
    parts = [with_it[split].rows.tolist() for split in ("train", "calibration")]
    assert sorted(parts[0] + parts[1]) == without["train"].rows.tolist()
    assert len(parts[1]) == 24
    made, _ = make(dataset, calibration=0.2)
    assert list(made) == ["train", "validation", "test", "calibration"]
    assert Counter(made["calibration"]["label"]) == {"a": 8, "b": 16}


def test_groups_are_kept_from_calibration_as_well():
    authors = [f"author {row // 4}" for row in range(120)]
    made, _ = make(source(["a", "b"] * 60, author=authors), calibration=0.2, group_by="author")
    sides = [set(made[split]["author"]) for split in made]
    assert sum(map(len, sides)) == 30
    assert len(set.union(*sides)) == 30
    with pytest.raises(ValueError, match="needed to keep train, validation, test and calibration apart"):
        make(source(["a", "b"] * 60, author=["x", "y"] * 60), calibration=0.2, group_by="author")


def test_a_source_can_have_rows_for_calibration():
    dataset = DatasetDict(train=table(["a", "b"] * 20), calibration=table(["b"]), held_out=table(["a"]))
    assert make(dataset, calibration=0.1)[0]["calibration"]["label"][:] == ["b"]
    assert make(dataset, calibration="held_out")[0]["calibration"]["label"][:] == ["a"]
    assert "calibration" not in make(dataset)[0]
    with pytest.raises(ValueError, match=r"data\.splits\.calibration: the source has no split 'calib'"):
        make(dataset, calibration="calib")
