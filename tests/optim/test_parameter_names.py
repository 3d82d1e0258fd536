import pytest

from lit_trainer.optim.parameter_names import matching, sample

NAMES = ["model.embed.weight", "model.layer.0.weight", "model.layer.1.weight", "model.head.bias"]


def test_a_pattern_is_found_anywhere_in_the_name_and_order_is_kept():
    assert matching("layer", NAMES, "key") == NAMES[1:3]
    assert matching(r"\.[01]\.|^model\.embed", NAMES, "key") == NAMES[:3]
    assert matching("", NAMES, "key") == NAMES


def test_a_pattern_that_matches_nothing_names_what_there_is():
    with pytest.raises(ValueError, match=r"frozen: 'encodr' matches no parameter; there are model.embed.weight, model"):
        matching("encodr", NAMES, "frozen")


def test_a_broken_pattern_says_where_it_stands():
    with pytest.raises(ValueError, match=r"frozen: '\(' is not a regular expression: missing \)"):
        matching("(", NAMES, "frozen")


def test_a_long_list_is_cut_to_names_from_all_over_it():
    shown = sample([f"layer.{i}" for i in range(100)])
    assert shown == ", ".join(f"layer.{i}" for i in range(0, 96, 12)) + " ... (100 in all)"
    assert sample([]) == "none"
