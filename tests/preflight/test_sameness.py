"""What is not the same on all nodes is named, and files are told apart by their content."""

import os
from pathlib import Path

import pytest

from lit_trainer.preflight import sameness
from lit_trainer.preflight.intended_run import IntendedRun
from lit_trainer.preflight.sameness import content_of_node, data_files, differences, fingerprint
from tests.preflight.told import only, texts

HOSTS = {rank: f"n{rank}" for rank in range(10)}


def content(**kinds: dict[str, str]) -> sameness.Content:
    return dict(kinds)


def test_what_is_the_same_is_not_mentioned() -> None:
    same = content(package={"torch": "2.13"}, code={"a.py": "x"})
    assert not list(differences({0: same, 4: same}, HOSTS))
    assert not list(differences({0: same}, HOSTS))
    assert not list(differences({}, HOSTS))


def test_a_node_with_another_version_is_named_with_both() -> None:
    both = {0: content(package={"torch": "2.13"}), 4: content(package={"torch": "2.12"})}
    assert only(differences(both, HOSTS)) == (
        "wrong", "package: torch is 2.12 on n4 (rank 4), 2.13 on n0 (rank 0): install the same versions on all nodes"
    )  # fmt: skip


def test_a_file_that_is_on_one_node_alone_is_said_to_be() -> None:
    first, other = content(code={"a.py": "x"}), content(code={"b.py": "x"})
    (text,) = texts(differences({0: first, 1: other}, HOSTS), "wrong")
    assert text == (
        "code: a.py is on n0 (rank 0) and not on n1 (rank 1); code: b.py is on n1 (rank 1) and not on n0 (rank 0):"
        " give all nodes the same files"
    )


def test_many_differences_are_one_line_of_a_few_names() -> None:
    first = content(code={f"{index}.py": "x" for index in range(100)})
    other = content(code={f"{index}.py": "y" for index in range(100)})
    (text,) = texts(differences({0: first, **dict.fromkeys(range(1, 10), other)}, HOSTS), "wrong")
    assert text.startswith("code: 0.py on n1 (rank 1), n2 (rank 2), n3 (rank 3), n4 (rank 4) and 5 more is not the one")
    assert text.endswith(", and 97 more: give all nodes the same files")


def test_folders_and_variables_that_differ_are_no_more_than_worth_a_look() -> None:
    first, other = content(folder={"working folder": "/a"}, variable={}), content(folder={"working folder": "/b"})
    other["variable"] = {"NCCL_ALGO": "Ring"}
    assert [text.partition(":")[0] for text in texts(differences({0: first, 1: other}, HOSTS), "look")] == [
        "variable",
        "folder",
    ]


def test_a_change_anywhere_in_a_file_changes_its_fingerprint(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "rows.csv"
    file.write_bytes(bytes(2**20))
    before = fingerprint([file])
    assert before == fingerprint([file])
    monkeypatch.setattr(sameness, "WHOLE_BYTES", 2**10)
    sampled = fingerprint([file])
    monkeypatch.undo()
    file.write_bytes(bytes(2**19) + b"x" + bytes(2**19 - 1))
    assert fingerprint([file]) != before
    monkeypatch.setattr(sameness, "WHOLE_BYTES", 2**10)
    file.write_bytes(bytes(2**20 - 1) + b"x")
    assert fingerprint([file]) != sampled, "the end of a large file is among its samples"
    file.write_bytes(bytes(2**20 + 1))
    assert fingerprint([file]) != sampled, "and so is its size"


def test_a_file_in_a_folder_counts_by_its_name_and_content(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.txt").write_text("one")
    before = fingerprint([tmp_path])
    (tmp_path / "deep" / "a.txt").rename(tmp_path / "deep" / "b.txt")
    renamed = fingerprint([tmp_path])
    (tmp_path / "deep" / "b.txt").write_text("two")
    assert len({before, renamed, fingerprint([tmp_path])}) == 3
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    fingerprint([tmp_path])
    assert fingerprint([]) == fingerprint([tmp_path / "nowhere"])


def test_settings_that_name_files_are_found_with_their_root_and_wildcards(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.csv", "test.csv", "model"):
        (tmp_path / name).touch()
    settings = {
        "data.source.files": ["*.csv"],
        "data.source.root": str(tmp_path),
        "data.text": "train",
        "data.kind": "x" * 5000,
        "data.odd": "\0",
        "model.pretrained": "model",
        "trainer.default_root_dir": "model",
    }
    assert dict(data_files(settings)) == {
        "data.source.files": [tmp_path / "test.csv", tmp_path / "train.csv"],
        "model.pretrained": [Path("model")],
    }


def test_code_in_the_working_folder_and_variables_of_nccl_belong_to_a_node(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("x = 1\n")
    monkeypatch.setattr(os, "environ", {"NCCL_ALGO": "Ring", "NCCL_SOCKET_IFNAME": "ib0", "HOME": "/root"})
    found = content_of_node(IntendedRun(settings={"data.batch_size": 8}))
    assert {"own.py", "lit_trainer/cli.py"} <= found["code"].keys()
    assert not any(name.startswith("tests/") for name in found["code"])
    assert found["variable"] == {"NCCL_ALGO": "Ring"}
    assert found["setting"] == {"data.batch_size": "8"}
    assert found["package"]["torch"]


@pytest.mark.parametrize("pattern", ["[", "**", "/no/such/*"])
def test_a_text_that_looks_like_a_pattern_breaks_nothing(tmp_path, monkeypatch, pattern: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert [key for key, _ in data_files({"data.text": pattern})] in ([], ["data.text"])
