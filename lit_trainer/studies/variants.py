"""Variants of a recipe: what each changes, as it is written on the command line."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_NAME = re.compile(r"[\w.+-]+")
_SETTING = re.compile(r"([A-Za-z_][\w.]*\+?)=(.*)", re.DOTALL)
_BRACKETS = {"[": "]", "{": "}", "(": ")"}


@dataclass(frozen=True)
class Variant:
    """What a variant changes.

    Args:
        name: What it is called in the table.
        changes: Files and ``KEY=VALUE``, in the order in which they are applied.
    """

    name: str
    changes: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads ``NAME=CHANGE,CHANGE,...``; a name alone changes nothing.

        Raises:
            ValueError: If the name cannot be that of a folder, or a file is not there.
        """
        name, _, changes = text.partition("=")
        if not _NAME.fullmatch(name):
            raise ValueError(f"--variant {text}: a name of letters, digits, '_', '.', '+' and '-' must come first")
        return cls(name, tuple(split_changes(changes)))

    @property
    def arguments(self) -> list[str]:
        """What it adds to the command line of a run."""
        return [word for change in self.changes for word in as_arguments(change)]


def parse_variants(texts: Sequence[str]) -> list[Variant]:
    """Reads variants, of which the first is what the others are compared with.

    Raises:
        ValueError: If there is none, or a name occurs twice.
    """
    variants = [Variant.parse(text) for text in texts]
    names = [variant.name for variant in variants]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise ValueError(f"--variant: {twice[0]} is given {names.count(twice[0])} times; each needs a name of its own")
    if not variants:
        raise ValueError("--variant is missing: give each variant as NAME=FILE or NAME=KEY=VALUE, the usual one first")
    return variants


def recipe_files(given: Sequence[str], config: Sequence[str]) -> list[str]:
    """Returns the recipe and the overlays that all runs have.

    Raises:
        ValueError: If there is none.
    """
    files = [*given, *config]
    if not files:
        raise ValueError("the recipe is missing: name its file first, such as configs/recipes/sms_spam_minilm.yaml")
    return files


def as_arguments(change: str) -> list[str]:
    """Returns the words of the command line for a file or ``KEY=VALUE``.

    Raises:
        ValueError: If it is neither.
    """
    if setting := _SETTING.fullmatch(change):
        return [f"--{setting[1]}={setting[2]}"]
    if not Path(change).is_file():
        raise ValueError(f"{change} is neither a file nor KEY=VALUE")
    return ["--config", change]


def split_changes(text: str) -> list[str]:
    """Splits at commas outside brackets and quotes."""
    parts, start, closing = [], 0, list[str]()
    for position, letter in enumerate(text):
        if closing and letter == closing[-1]:
            closing.pop()
        elif closing and closing[-1] in "'\"":
            continue
        elif letter in _BRACKETS:
            closing.append(_BRACKETS[letter])
        elif letter in "'\"":
            closing.append(letter)
        elif letter == "," and not closing:
            parts.append(text[start:position])
            start = position + 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]
