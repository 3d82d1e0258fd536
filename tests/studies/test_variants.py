"""What a variant changes is read as it is written, and what cannot be meant is refused."""

from pathlib import Path

import pytest

from lit_trainer.studies.variants import Variant, as_arguments, parse_variants, split_changes


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("focal.yaml").touch()
    Path("a=b.yaml").touch()


def test_a_name_alone_changes_nothing() -> None:
    assert Variant.parse("none") == Variant.parse("none=") == Variant("none", ())


def test_files_and_settings_can_be_mixed() -> None:
    variant = Variant.parse("x=focal.yaml,model.optimizer.lr=1e-4,trainer.callbacks+=a.B")
    assert variant.name == "x"
    assert variant.arguments == [
        "--config", "focal.yaml", "--model.optimizer.lr=1e-4", "--trainer.callbacks+=a.B",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        ("a=1,b=2", ["a=1", "b=2"]),
        ("a={x: 1, y: [2, 3]}, b=2", ["a={x: 1, y: [2, 3]}", "b=2"]),
        ("a='1,2',b=\"],\"", ["a='1,2'", 'b="],"']),
        ("a=[1, 2", ["a=[1, 2"]),
    ],
)
def test_commas_within_a_value_do_not_split_it(text: str, parts: list[str]) -> None:
    assert split_changes(text) == parts


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "--variant is missing"),
        (["a", "a=focal.yaml"], "--variant: a is given 2 times; each needs a name of its own"),
        (["a b=focal.yaml"], "a name of letters, digits"),
        (["../x"], "a name of letters, digits"),
    ],
)
def test_names_are_checked(texts: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_variants(texts)


def test_what_is_neither_a_file_nor_a_setting_is_refused() -> None:
    with pytest.raises(ValueError, match=r"focl\.yaml is neither a file nor KEY=VALUE"):
        as_arguments("focl.yaml")
