"""Reads the fenced blocks of a Markdown file, and makes a folder in which its commands run in seconds."""

import csv
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

ROOT = Path(__file__).parent.parent

_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^>]+) -->\n)?^(?P<indent> *)```(?P<language>\w+)\n(?P<text>.*?)^(?P=indent)```$",
    re.M | re.S,
)
_FILE_NAME = re.compile(r"# (\w+\.(?:py|yaml))\n")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Args:
        language: What stands after the fence.
        text: Its lines.
        line: The number of its first line.
        reason: Why it is not run, by a comment before it; empty where it is.
    """

    language: str
    text: str
    line: int
    reason: str = ""

    @property
    def file_name(self) -> str | None:
        """The file that it is the content of, by a comment in its first line."""
        match = _FILE_NAME.match(self.text)
        return match[1] if match else None

    @property
    def commands(self) -> list[str]:
        """Its commands one by one, each in a line."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [" ".join(command.split()) for line in lines for command in line.split("&&") if command.strip()]


def blocks(document: str) -> list[Block]:
    """Returns the fenced blocks of a file in the root of the repository."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [
        Block(m["language"], m["text"], text.count("\n", 0, m.start("text")) + 1, m["reason"] or "")
        for m in _BLOCK.finditer(text)
    ]


def write_files(document: str, folder: Path) -> None:
    """Writes the files that a document shows."""
    for block in blocks(document):
        if block.file_name and not block.reason:
            (folder / block.file_name).write_text(block.text, encoding="utf-8")


def copy_configs(folder: Path) -> None:
    """Copies recipes and overlays, as a checkout has them."""
    shutil.copytree(ROOT / "configs", folder / "configs")


def shrink_recipe(folder: Path, tiny_bert: Path) -> None:
    """Has the recipe for SMS train a tiny model on 240 made-up messages, and leaves the rest of it as it is."""
    path = folder / "configs" / "recipes" / "sms_spam_minilm.yaml"
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    recipe["model"]["init_args"]["pretrained"] = str(tiny_bert)
    recipe["data"]["init_args"]["source"]["init_args"]["files"] = "messages.csv"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    write_texts(folder / "messages.csv", "v2", "v1", ["ham", "spam"])


def write_texts(path: Path, text: str, label: str | None, classes: list[str], num_rows: int = 240) -> None:
    """Writes texts of words that the tiny model knows, every eighth of the second class."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(num_rows):
        words = [f"w{index}" for index in rng.integers(0, 40, rng.integers(3, 12))]
        is_second = number % 8 == 0
        rows.append([" ".join([*words, "bad" if is_second else "good"]), classes[int(is_second)]])
    with path.open("w", newline="", encoding="latin-1") as file:
        names = [text] + ([label] if label else [])
        csv.writer(file).writerows([names, *(row[: len(names)] for row in rows)])
