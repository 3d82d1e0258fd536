"""The commands of TROUBLESHOOTING work, and what it says a run says is what a run says."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from lit_trainer.cli import main
from tests.documents import ROOT, blocks, copy_configs, shrink_recipe
from tests.test_architecture import MODULES
from tests.tiny_recipe import told

TEXT = (ROOT / "TROUBLESHOOTING.md").read_text(encoding="utf-8")
README = [command for block in blocks("README.md") for command in block.commands]
SOURCE = "".join(path.read_text() for path in MODULES) + (ROOT / "lit_trainer/slurm_job.sbatch").read_text()
COMMANDS = [
    pytest.param(command, marks=[pytest.mark.skip(block.reason)] if block.reason else [], id=command)
    for block in blocks("TROUBLESHOOTING.md")
    if block.language == "bash"
    for command in block.commands
    if command not in README  # whose test runs them
]
pytestmark = pytest.mark.slow

RUN = Path("runs/sms_spam_minilm/version_0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Path:
    """A checkout with a tiny recipe and a run of it."""
    folder = tmp_path_factory.mktemp("checkout")
    copy_configs(folder)
    shrink_recipe(folder, tiny_bert)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LIT_TRAINER_CACHE", str(folder / "cache"))
        main(["fit", "--config", "configs/recipes/sms_spam_minilm.yaml", "--test_after_fit=false"])
    return folder


@pytest.fixture(autouse=True)
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LIT_TRAINER_CACHE", str(folder / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))


def words_of(command: str) -> list[str]:
    """Returns what follows the program, with the step of the newest checkpoint."""
    return shlex.split(command.replace("last-step=N", newest().stem))[1:]


def newest() -> Path:
    return max(RUN.glob("checkpoints/last-step=*.ckpt"), key=lambda file: int(file.stem.partition("=")[2]))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_works(command: str) -> None:
    main(words_of(command))


def test_the_command_for_torn_checkpoints_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    command = next(str(command.values[0]) for command in COMMANDS if "validate" in str(command.values[0]))
    file, words = newest(), words_of(command)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    said = told(capsys, *words)
    file.write_bytes(whole)
    assert said.startswith(f"the checkpoint {file} is torn or not a checkpoint")
    assert f"the newest whole one beside it is {RUN / 'checkpoints'}" in said


def test_messages_are_those_that_are_said() -> None:
    """The first column of the tables on nodes and jobs, without what stands for a value."""
    source = re.sub(r'"\s*\n\s*f?"', "", SOURCE)
    quoted = [
        message
        for row in re.findall(r"^\| (.*?) \|", TEXT, re.M)
        for message in re.findall(r"`(.*?)`", row)
        if " " in message and "/" not in message and message not in {"Bus error", "out of memory"}
    ]
    assert len(quoted) > 12
    for message in quoted:
        for part in re.split(r"\b[A-Z]+\b:?|\.\.\.|127.0.1.1|GLOO_SOCKET_IFNAME is ib0", message):
            assert part.strip() in source, message


def test_settings_files_and_metrics_that_it_names_are_there() -> None:
    for name in re.findall(r"`(?:configs/overlays/)?(\w+\.yaml)`", TEXT):
        assert (ROOT / "configs" / "overlays" / name).exists(), name
    header = (RUN / "metrics.csv").read_text().splitlines()[0].split(",")
    for name in re.findall(r"`((?:time_share|throughput|memory)/\w+)`", TEXT):
        assert name in header, name
    settings = (RUN / "config.yaml").read_text()
    for name in set(re.findall(r"`(?:data|model|trainer)\.(?:\w+\.)?(\w+)", TEXT)):
        assert re.search(rf"\b{name}:", settings), name
