"""What has to be the same on all nodes: code, packages, settings and data; and where it is not, what differs."""

import hashlib
import importlib.metadata
import os
import socket
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from lit_trainer.preflight.findings import Finding, Kind
from lit_trainer.preflight.intended_run import IntendedRun

Content = dict[str, dict[str, str]]

PACKAGE = Path(__file__).parents[1]
WHOLE_BYTES = 64 * 2**20
"""Of a data setting's files this much is read in all; beyond it sizes and samples tell them apart."""

_SAMPLE, _NUM_SAMPLES = 2**16, 16
_MAX_FILES = 2000
_ADVICE: dict[str, tuple[Kind, str]] = {
    "package": ("wrong", "install the same versions on all nodes"),
    "code": ("wrong", "give all nodes the same files"),
    "setting": ("wrong", "start all nodes with the same files and flags"),
    "data": ("wrong", "copy the files anew, or keep them where all nodes see the same ones"),
    "variable": ("look", "export the same on all nodes"),
    "folder": ("look", "start all nodes in the same one, on a file system that they share"),
}


def content_of_node(run: IntendedRun) -> Content:
    """Describes what is to be the same on all nodes, by kind and name.

    Args:
        run: The run that is intended.
    """
    installed = {str(found.name): found.version for found in importlib.metadata.distributions()}
    return {
        "package": {**installed, "Python": sys.version.split()[0]},
        "code": {name: _hash(path) for name, path in _code()},
        "setting": {name: repr(value) for name, value in run.settings.items()},
        "data": {name: fingerprint(paths) for name, paths in data_files(run.settings)},
        "variable": {name: value for name, value in os.environ.items() if _is_to_be_same(name)},
        "folder": {"working folder": str(Path.cwd())},
    }


def _is_to_be_same(variable: str) -> bool:
    """Tells whether a variable changes what is computed or exchanged; networks may have another name on each node."""
    is_of_node = variable.endswith(("_IFNAME", "_HCA", "_DEBUG", "_DEBUG_FILE"))
    return variable.startswith(("NCCL_", "TORCH_NCCL_")) and not is_of_node


def _code() -> Iterator[tuple[str, Path]]:
    """Yields the files of this package, those in the working folder, and what else was imported from there."""
    for path in PACKAGE.rglob("*.py"):
        yield f"lit_trainer/{path.relative_to(PACKAGE).as_posix()}", path
    here = Path.cwd()
    imported = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    files = {Path(file) for file in imported if file and file.endswith(".py")} | set(here.glob("*.py"))
    for path in files:
        is_own = path.is_relative_to(here) and not path.is_relative_to(PACKAGE)
        if is_own and "site-packages" not in path.parts and path.is_file():
            yield path.relative_to(here).as_posix(), path


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def data_files(settings: Mapping[str, Any]) -> Iterator[tuple[str, list[Path]]]:
    """Yields the settings of data and of the pretrained model that name files or folders, with these.

    Args:
        settings: By dotted key.
    """
    for key, value in settings.items():
        if not key.startswith(("data.", "model.pretrained")) or key.endswith(".root"):
            continue
        root = settings.get(f"{key.rpartition('.')[0]}.root")
        folder = Path(root) if isinstance(root, str) else Path()
        texts = [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str) and text]
        paths = [path for text in texts for path in _paths(folder, text)]
        if paths:
            yield key, paths


def _paths(folder: Path, text: str) -> list[Path]:
    try:
        if (folder / text).exists():
            return [folder / text]
        is_pattern = any(sign in text for sign in "*?[") and not Path(text).is_absolute()
        return sorted(islice(folder.glob(text), _MAX_FILES)) if is_pattern else []
    except (OSError, ValueError, NotImplementedError):  # a text, and no path at all
        return []


def fingerprint(paths: Sequence[Path]) -> str:
    """Returns what tells the content of files and folders apart from that of others.

    Small ones are read whole. Beyond `WHOLE_BYTES` in all, a file counts by its size and by samples of it.

    Args:
        paths: The files and folders.
    """
    told = hashlib.sha256()
    left = WHOLE_BYTES
    for name, path in islice((found for top in paths for found in _files_in(top)), _MAX_FILES):
        told.update(name.encode(errors="surrogateescape"))
        try:
            size = path.stat().st_size
            told.update(f" {size}\n".encode())
            with path.open("rb") as file:
                if size <= left:
                    left -= size
                    told.update(hashlib.file_digest(file, "sha256").digest())
                else:
                    for number in range(_NUM_SAMPLES):
                        file.seek(number * max(0, size - _SAMPLE) // (_NUM_SAMPLES - 1))
                        told.update(file.read(_SAMPLE))
        except OSError as error:
            told.update(str(error.errno).encode())
    return told.hexdigest()[:16]


def _files_in(top: Path) -> Iterator[tuple[str, Path]]:
    """Yields a file, or those in a folder, one after the other: there may be more than anybody wants to list."""
    if top.is_file():
        yield top.name, top
    for place, folders, names in os.walk(top):
        folders.sort()
        for name in sorted(names):
            path = Path(place) / name
            yield path.relative_to(top).as_posix(), path


def differences(content: Mapping[int, Content], hosts: Mapping[int, str]) -> Iterator[Finding]:
    """Compares nodes with the first one; a line for each kind, with the names of what differs.

    Args:
        content: By rank, that of one rank a node.
        hosts: The name of each rank's node.
    """
    ranks = sorted(content)
    if not ranks:
        return
    first = ranks[0]
    for kind, (how_bad, advice) in _ADVICE.items():
        odd: dict[str, list[int]] = defaultdict(list)
        for rank in ranks[1:]:
            mine, theirs = content[first].get(kind, {}), content[rank].get(kind, {})
            for name in sorted(mine.keys() | theirs.keys()):
                if mine.get(name) != theirs.get(name):
                    odd[name].append(rank)
        if odd:
            named = [_told(kind, name, odd[name], content, hosts, first) for name in islice(odd, 3)]
            more = f", and {len(odd) - 3} more" if len(odd) > 3 else ""
            yield Finding(how_bad, f"{'; '.join(named)}{more}: {advice}")


def _told(
    kind: str, name: str, odd: Sequence[int], content: Mapping[int, Content], hosts: Mapping[int, str], first: int
) -> str:
    """Says how something differs; values are short enough to show, files are not."""
    where = ", ".join(f"{hosts[rank]} (rank {rank})" for rank in odd[:4])
    where += f" and {len(odd) - 4} more" if len(odd) > 4 else ""
    there = f"{hosts[first]} (rank {first})"
    if kind in ("code", "data"):
        states = content[odd[0]][kind].get(name), content[first][kind].get(name)
        if None in states:
            has, lacks = (there, where) if states[0] is None else (where, there)
            return f"{kind}: {name} is on {has} and not on {lacks}"
        return f"{kind}: {name} on {where} is not the one on {there}"
    theirs, mine = (content[rank][kind].get(name, "not there")[:80] for rank in (odd[0], first))
    return f"{kind}: {name} is {theirs} on {where}, {mine} on {there}"


def host() -> str:
    """Returns the name of this machine."""
    return socket.gethostname()
