"""What the package imports is what pyproject.toml declares, and the other way round."""

import sys
import tomllib
from importlib.metadata import packages_distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.documents import ROOT
from tests.test_architecture import MODULES, imported

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
USED_WITHOUT_AN_IMPORT = {
    "tensorboard": "Lightning's logger writes with it",
    "pip": "it fetches wheels, in a process of its own",
}


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(requirement).name) for requirement in requirements}


def imported_distributions() -> set[str]:
    roots = {name.partition(".")[0] for path in MODULES for name in imported(path)} - set(sys.stdlib_module_names)
    found = packages_distributions()
    return {canonicalize_name(found[root][0]) if root in found else root for root in roots - {"lit_trainer"}}


def test_every_import_is_declared() -> None:
    optional = (requirement for extra in PROJECT["optional-dependencies"].values() for requirement in extra)
    assert not imported_distributions() - names([*PROJECT["dependencies"], *optional])


def test_every_dependency_is_used() -> None:
    declared = PROJECT["dependencies"]
    assert not names(declared) - imported_distributions() - USED_WITHOUT_AN_IMPORT.keys()
    assert len(names(declared)) == len(declared), "one is declared twice"


def test_every_dependency_says_from_which_version_on_it_is_known_to_work() -> None:
    for requirement in map(Requirement, PROJECT["dependencies"]):
        assert any(part.operator == ">=" for part in requirement.specifier), requirement
