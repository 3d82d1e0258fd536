"""Packages that are missing, too old or mixed are named."""

import importlib.metadata
import sys
from types import ModuleType

import pytest

from lit_trainer.preflight import packages
from tests.preflight.told import kinds, texts


def pretend(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], requires: dict[str, list[str]]) -> None:
    """Has these packages installed and no others."""

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requires.get(name))


def test_what_is_installed_here_goes_together(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    assert "wrong" not in kinds(packages.versions())


def test_the_other_name_of_lightning_is_found(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.py").write_text("from pytorch_lightning import LightningModule\n")
    assert texts(packages.versions(), "wrong")[0].startswith("task.py: imports pytorch_lightning")


def test_both_lightnings_in_one_process_are_worth_a_look(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    pretend(monkeypatch, {"lightning": "2.6.6", "pytorch_lightning": "1.9.5"}, {})
    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    imported, installed = texts(packages.both_lightnings(), "look")
    assert imported.startswith("something imports pytorch_lightning beside lightning.pytorch")
    assert installed.endswith("is 1.9.5: pip install pytorch_lightning==2.6.6")


def test_a_missing_package_is_wrong(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    pretend(monkeypatch, {}, {})
    assert "torch is not installed: pip install lit_trainer" in texts(packages.versions(), "wrong")


def test_versions_that_do_not_go_together_are_named(monkeypatch) -> None:
    pretend(
        monkeypatch,
        {"lit_trainer": "0.1", "torch": "2.13.0+cu130", "transformers": "4.40", "torchvision": "0.20"},
        {
            "lit_trainer": ["transformers>=5.24", "torch>=2.13", 'wandb>=9; extra == "wandb"'],
            "torchvision": ["torch==2.5.0", "numpy"],
        },
    )
    first, second = packages.demands()
    assert (first.kind, first.text) == (
        "wrong", "transformers is 4.40 but lit_trainer 0.1 needs transformers>=5.24: pip install 'transformers>=5.24'"
    )  # fmt: skip
    assert second.kind == "look"
    assert second.text.startswith("torch is 2.13.0+cu130 but torchvision 0.20 needs torch==2.5.0")
