import math

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from lit_trainer.losses.class_weights import ClassWeights

NAMES = ["ham", "spam", "ad"]


def fitted(given, counts=(6, 3, 1), names=NAMES, num_rows=None):
    weights = ClassWeights(given, "class_weights")
    weights.fit(names, counts, num_rows)
    return weights.for_classes(len(names))


def test_balanced_is_what_scikit_learn_calls_so():
    labels = np.repeat([0, 1, 2], [6, 3, 1])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    torch.testing.assert_close(fitted("balanced").double(), torch.tensor(expected), rtol=1e-7, atol=0)


def test_seven_to_three_weighs_one_to_seven_thirds():
    common, rare = fitted("balanced", (70, 30), ["common", "rare"])
    assert rare / common == pytest.approx(7 / 3)


def test_weights_by_name_come_in_the_order_of_the_labels():
    assert fitted({"spam": 5, "ad": 2.5, "ham": 1}).tolist() == [1, 5, 2.5]


def test_names_that_yaml_reads_as_numbers_are_names():
    assert fitted({1: 2.0, 0: 1.0}, (1, 1), ["0", "1"]).tolist() == [1, 2]


@pytest.mark.parametrize(
    "given", [np.bincount([0, 1, 1, 2]).astype(np.float64), np.array([1, 2, 1]), [1, 2, 1], torch.tensor([1, 2, 1])]
)
def test_pytorch_101213_weights_of_any_number_type_become_float32(given):
    weights = ClassWeights(given, "class_weights").for_classes(3)
    assert weights.dtype == torch.float32
    assert weights.tolist() == [1, 2, 1]


def test_pytorch_101213_a_wrong_length_is_told():
    with pytest.raises(ValueError, match="class_weights has 2 weights, and there are 3 classes"):
        ClassWeights([1, 2], "class_weights").for_classes(3)
    with pytest.raises(ValueError, match="class_weights has 2 weights, and there are 3 classes"):
        fitted([1, 2])


def test_pytorch_101213_a_class_without_rows_cannot_be_balanced():
    with pytest.raises(
        ValueError, match="class_weights: balanced needs training rows of every label; none of spam, ad"
    ):
        fitted("balanced", (6, 0, 0))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, -2, 1], "class_weights takes finite numbers of at least 0, not -2.0"),
        ([1, math.nan], "class_weights takes finite numbers of at least 0, not nan"),
        ({"ham": math.inf}, "class_weights takes finite numbers of at least 0, not inf"),
        ([0, 0, 0], "class_weights needs a weight above 0, or nothing is learnt"),
        ([], "class_weights needs a weight above 0, or nothing is learnt"),
        (["heavy"], "class_weights takes one number per class: could not convert string to float: 'heavy'"),
        ([[1, 2], [3, 4]], "class_weights takes one number per class"),
        (2.0, "class_weights takes one number per class"),
        ("auto", "class_weights is 'auto'; it takes balanced, a list, or a mapping by label name"),
    ],
)
def test_what_is_no_set_of_weights_is_refused_at_once(given, message):
    with pytest.raises(ValueError, match=message):
        ClassWeights(given, "class_weights")


def test_an_unknown_name_is_told_with_those_there_are():
    with pytest.raises(ValueError, match="needs one weight for each of ham, spam, ad; unknown: Spam"):
        fitted({"ham": 1, "Spam": 5, "ad": 1})


def test_a_missing_name_is_told():
    with pytest.raises(ValueError, match="class_weights needs one weight for each of ham, spam, ad; missing: ad"):
        fitted({"ham": 1, "spam": 5})


def test_names_and_counts_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="class_weights: 3 label names and 2 counts"):
        fitted("balanced", (1, 2))


def test_weights_that_are_not_known_yet_say_so():
    for given in ("balanced", {"ham": 1}):
        with pytest.raises(ValueError, match=r"class_weights: .* are known once fit_to_labels was called"):
            ClassWeights(given, "class_weights").for_classes(3)
        with pytest.raises(ValueError, match=r"class_weights: .* are known once fit_to_labels was called"):
            ClassWeights(given, "class_weights").of(torch.tensor([0]))


def test_a_second_fit_replaces_the_first():
    weights = ClassWeights("balanced", "class_weights")
    weights.fit(["a", "b", "c"], [1, 1, 1])
    weights.fit(["a", "b"], [1, 3])
    torch.testing.assert_close(weights.for_classes(2), torch.tensor([2, 2 / 3]))


def test_weights_that_are_worked_out_late_go_where_the_module_is():
    weights = ClassWeights("balanced", "class_weights").double()
    weights.fit(["a", "b"], [1, 2])
    assert weights.for_classes(2).dtype == torch.float64
    assert ClassWeights("balanced", "class_weights").to("meta").values.is_meta


def test_without_weights_every_label_that_counts_weighs_one():
    weights = ClassWeights(None, "class_weights")
    weights.fit(["a", "b"], [1, 0])
    assert weights.for_classes(7) is None
    assert weights.of(torch.tensor([[0, -100], [6, 1]])).tolist() == [[1, 0], [1, 1]]


def test_each_label_weighs_as_its_class():
    weights = ClassWeights([1, 0, 5], "class_weights")
    assert weights.of(torch.tensor([2, -100, 0, 1])).tolist() == [5, 0, 1, 0]
