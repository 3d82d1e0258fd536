"""Checks of what is installed: there at all, new enough, and not mixed with what does not go with it."""

import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

from lit_trainer import __version__
from lit_trainer.preflight.findings import Finding

PACKAGES = ("torch", "lightning", "transformers", "datasets", "torchmetrics", "jsonargparse")
DEMANDING = ("torchvision", "torchaudio", "transformers", "tokenizers", "accelerate", "peft", "lightning", "datasets")
"""Packages that work only with certain versions of those above and of one another, and say with which."""


def versions() -> Iterator[Finding]:
    """Looks at the packages, and for code that mixes Lightning's two names."""
    found = []
    for name in PACKAGES:
        version = _version(name)
        if version is None:
            yield Finding("wrong", f"{name} is not installed: pip install lit_trainer")
        else:
            found.append(f"{name} {version}")
    yield Finding("ok", f"lit_trainer {__version__}, Python {sys.version.split()[0]}, {', '.join(found)}")
    yield from demands()
    yield from both_lightnings()


def demands() -> Iterator[Finding]:
    """Looks whether packages have the versions of others that they need."""
    from packaging.requirements import Requirement

    for name in ("lit_trainer", *DEMANDING):
        if _version(name) is None:
            continue
        for line in importlib.metadata.requires(name) or []:
            needed = Requirement(line)
            version = _version(needed.name)
            if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
                continue
            if version is not None and not needed.specifier.contains(version, prereleases=True):
                yield Finding(
                    "wrong" if name == "lit_trainer" else "look",
                    f"{needed.name} is {version} but {name} {_version(name)} needs {needed.name}{needed.specifier}:"
                    f" pip install '{needed.name}{needed.specifier}'",
                )


def both_lightnings() -> Iterator[Finding]:
    """Looks for pytorch_lightning beside lightning: the same classes twice, each unknown to the other."""
    mixed = [path for path in sorted(Path.cwd().glob("*.py")) if _imports_other_lightning(path)]
    if mixed:
        yield Finding(
            "wrong",
            f"{', '.join(path.name for path in mixed)}: imports pytorch_lightning, whose classes are not those of"
            " lightning.pytorch: import lightning.pytorch instead",
        )
    elif "pytorch_lightning" in sys.modules and "lightning.pytorch" in sys.modules:
        yield Finding("look", "something imports pytorch_lightning beside lightning.pytorch: a callback or model of"
                      " its classes is not one to the Trainer; import lightning.pytorch everywhere")  # fmt: skip
    mine, other = _version("lightning"), _version("pytorch_lightning")
    if None not in (mine, other) and mine != other:
        yield Finding("look", f"lightning is {mine} but pytorch_lightning, which comes with it, is {other}: pip install"
                      f" pytorch_lightning=={mine}")  # fmt: skip


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _imports_other_lightning(path: Path) -> bool:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return any(line.strip().startswith(("import pytorch_lightning", "from pytorch_lightning")) for line in lines)
