"""JSON Lines: types as they are, mixed ones as text, and errors with their line."""

import pytest

from lit_trainer.data.labels import LabelMap
from lit_trainer.data.sources.json_lines import JSONLines


@pytest.fixture
def write(tmp_path):
    def write(content: str) -> str:
        path = tmp_path / "rows.jsonl"
        path.write_text(content)
        return str(path)

    return write


def test_values_keep_their_types(write):
    path = write('{"text": "a", "label": 1, "w": 0.5}\n\n{"text": "NA", "label": null, "w": 1}\r\n{"tags": ["x"]}')
    assert JSONLines(path).load()["train"][:] == {
        "text": ["a", "NA", None],
        "label": [1, None, None],
        "w": [0.5, 1.0, None],
        "tags": [None, None, ["x"]],
    }


def test_columns_come_in_the_order_in_which_they_are_first_seen(write):
    names = [f"column {number}" for number in range(20)]
    path = write('{"text": "a"}\n{' + ", ".join(f'"{name}": 1' for name in names) + "}\n")
    assert JSONLines(path).load()["train"].column_names == ["text", *names]


# transformers#10449: "1" and 1 in one file
def test_text_and_numbers_in_one_column_become_text_of_the_same_name(write):
    path = write('{"text": "a", "label": "1"}\n{"text": "b", "label": 1}\n{"text": "c", "label": 0}\n')
    dataset = JSONLines(path).load()
    assert dataset["train"]["label"][:] == ["1", "1", "0"]
    assert LabelMap.from_dataset(dataset, "label").names == ("0", "1")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{'text': 1}", "no valid JSON, Expecting property name enclosed in double quotes at character 1"),
        ('["a", "b"]', "not an object such as"),
        ('{"text": "a"', "no valid JSON"),
    ],
)
def test_a_line_that_is_no_object_is_named(write, line, message):
    path = write(f'{{"text": "a"}}\n{line}\n')
    with pytest.raises(ValueError, match=rf"rows.jsonl, line 2: {message}"):
        JSONLines(path).load()


def test_what_no_column_can_hold_is_an_error(write):
    path = write('{"label": {"a": 1}}\n{"label": "x"}\n')
    with pytest.raises(ValueError, match="the column 'label' mixes what no column can hold together"):
        JSONLines(path).load()


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file_is_an_error(write, content):
    with pytest.raises(ValueError, match="the train split has no rows"):
        JSONLines(write(content)).load()
