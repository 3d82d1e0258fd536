"""Settings as they are saved, and in what two runs differ."""

from pathlib import Path

import pytest

from lit_trainer.parsing import SettingsParser
from lit_trainer.saved_settings import differences, settings_text


class Part:
    """Something with settings."""

    def __init__(self, size: int = 1, other: "Part | None" = None) -> None:
        pass


@pytest.fixture
def parser() -> SettingsParser:
    parser = SettingsParser()
    parser.add_subclass_arguments(Part, "model")
    parser.add_argument("--data", type=int, default=3)
    parser.add_argument("--ckpt_path", type=str | None, default=None)
    return parser


MODEL = f"--model={__name__}.Part"


def test_what_is_replaced_is_replaced_in_the_text_only(parser: SettingsParser) -> None:
    settings = parser.parse_args([MODEL, "--ckpt_path=last"])
    assert "ckpt_path: null" in settings_text(parser, settings, ckpt_path=None)
    assert settings.ckpt_path == "last"
    assert "ckpt_path: last" in settings_text(parser, settings)


def test_the_text_is_read_back_as_it_was(parser: SettingsParser, tmp_path: Path) -> None:
    parser.add_argument("--config", action="config")
    settings = parser.parse_args([MODEL, "--model.size=4", f"--model.other={__name__}.Part"])
    (tmp_path / "config.yaml").write_text(settings_text(parser, settings))
    again = parser.parse_args([f"--config={tmp_path / 'config.yaml'}"])
    assert settings_text(parser, again) == settings_text(parser, settings)


def found(parser: SettingsParser, tmp_path: Path, old: list[str], new: list[str], *parts: str) -> list[str]:
    saved = tmp_path / "config.yaml"
    saved.write_text(settings_text(parser, parser.parse_args([MODEL, *old])))
    lines = differences(parser, parser.parse_args([MODEL, *new]), saved, parts)
    return [line.replace(str(tmp_path), "") for line in lines]


def test_equal_settings_do_not_differ(parser: SettingsParser, tmp_path: Path) -> None:
    assert found(parser, tmp_path, ["--model.size=2"], ["--model.size=2"], "model", "data") == []


def test_differences_are_told_by_key_and_only_of_the_parts_compared(parser: SettingsParser, tmp_path: Path) -> None:
    new = ["--model.size=2", f"--model.other={__name__}.Part", "--model.other.size=5", "--data=4"]
    lines = found(parser, tmp_path, [], new, "model")
    assert "model.size is 2 here, it was 1 in /config.yaml; this run's wins" in lines
    assert "model.other.size is 5 here, it was None in /config.yaml; this run's wins" in lines
    assert not any("data" in line for line in lines)
    assert found(parser, tmp_path, [], ["--data=4"], "data") == [
        "data is 4 here, it was 3 in /config.yaml; this run's wins"
    ]


@pytest.mark.parametrize("content", [b"", b"- a", b"a: [", b"\xff"])
def test_what_cannot_be_read_is_told(parser: SettingsParser, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    (line,) = differences(parser, parser.parse_args([MODEL]), tmp_path / "config.yaml", ["model"])
    assert line.endswith("config.yaml cannot be read, so that nobody knows whether its settings were the same")
