"""Texts in folders that are named for their class."""

import pytest

from lit_trainer.data.sources.folders import TextFolders


def write(folder, **texts):
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_folders_are_classes_and_the_order_is_that_of_the_names(tmp_path):
    write(tmp_path, tech__2="b", tech__1="a", sport__1="c\nd")
    (tmp_path / "tech" / "notes.md").write_text("no text")
    assert TextFolders(str(tmp_path)).load()["train"][:] == {
        "text": ["c\nd", "a", "b"],
        "label": ["sport", "tech", "tech"],
        "file": ["sport/1.txt", "tech/1.txt", "tech/2.txt"],
    }


def test_folders_of_splits_have_folders_of_classes(tmp_path):
    write(tmp_path, train__tech__1="a", train__sport__1="b", test__tech__1="c")
    loaded = TextFolders(str(tmp_path)).load()
    assert {split: rows["label"][:] for split, rows in loaded.items()} == {"train": ["sport", "tech"], "test": ["tech"]}


def test_a_renamed_class_is_another_class(tmp_path):
    write(tmp_path, tech__1="a")
    assert TextFolders(str(tmp_path)).load()["train"]["label"][:] == ["tech"]
    (tmp_path / "tech").rename(tmp_path / "sport")
    assert TextFolders(str(tmp_path)).load()["train"]["label"][:] == ["sport"]


def test_bytes_that_the_encoding_does_not_have(tmp_path):
    write(tmp_path, tech__1="a")
    (tmp_path / "tech" / "2.txt").write_bytes(b"x\ny\xa3z")
    with pytest.raises(ValueError, match=r"2.txt, line 2: not utf-8"):
        TextFolders(str(tmp_path)).load()
    assert TextFolders(str(tmp_path), encoding_errors="ignore").load()["train"]["text"][:] == ["a", "x\nyz"]


def test_nothing_to_read_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"there are no files <class>/\*.txt in"):
        TextFolders(str(tmp_path)).load()
    with pytest.raises(ValueError, match="there is no folder /no/where"):
        TextFolders("/no/where").load()
