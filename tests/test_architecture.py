"""The layout is a promise: which part may import which, how big a file may get, and no place for odds and ends."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "lit_trainer"
MAX_LINES = 350

FLOORS = [
    {"__main__"},
    {"cli"},
    {"studies"},
    {"doctor"},
    {"training_cli", "inference", "submit", "report"},
    {"parsing", "saved_settings", "terminal", "preflight"},
    {"tasks", "callbacks", "data", "runtime"},
    {"reporting"},
    {"models", "losses", "optim", "decision"},
    {"wheel"},
    {"batch", "cache", "mistakes", "signals", "slurm", "__init__"},
]
"""A part may import what stands below it, and itself; never a neighbour on its own floor."""

PLAIN_TORCH = {"reporting", "losses", "optim", "decision", "batch", "cache", "wheel"}
WITHOUT_LIGHTNING = PLAIN_TORCH | {"models"}
ODDS_AND_ENDS = {"util", "utils", "helper", "helpers", "common", "misc", "core", "base_utils"}

MODULES = sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Yields the dotted names that a module imports, also those inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path):
    part = part_of(path)
    floor = next(index for index, parts in enumerate(FLOORS) if part in parts)
    below = {name for parts in FLOORS[floor + 1 :] for name in parts}
    for name in imported(path):
        root, *rest = name.split(".")
        if root == "lit_trainer" and rest[0] != "__version__":
            assert rest[0] in below | {part}, f"{part} may not import {rest[0]}"
        assert root != "pytorch_lightning", "its classes are not those of lightning.pytorch"
        assert not (root == "lightning" and part in WITHOUT_LIGHTNING), f"{part} is to stay free of Lightning"
        assert not (root == "transformers" and part in PLAIN_TORCH), f"{part} is to stay free of Transformers"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_is_small_and_says_what_it_is_for(path):
    assert ast.get_docstring(ast.parse(path.read_text())), "it has no docstring"
    assert len(path.read_text().splitlines()) <= MAX_LINES
    assert path.stem not in ODDS_AND_ENDS


def test_a_package_face_hands_nothing_on():
    for path in PACKAGE.rglob("__init__.py"):
        assert not list(imported(path)), f"{path} re-exports"
