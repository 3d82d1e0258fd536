"""A checkpoint is whole or absent, and a damaged one is never loaded."""

import enum
import logging
import os
import pathlib
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from lit_trainer.runtime.checkpoint_files import AtomicCheckpointIO, DamagedCheckpointError, find_fault, newest_valid


class Colour(enum.Enum):
    RED = 1


def checkpoint(step: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "global_step": step,
        "state_dict": OrderedDict(weight=torch.full((50, 10), float(step))),
        "optimizer_states": [{"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 0.1}]}],
        **more,
    }


def save(path: Path, step: int = 1, **more: Any) -> Path:
    AtomicCheckpointIO().save_checkpoint(checkpoint(step, **more), path)
    return path


def flip_a_bit_of_the_weights(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(torch.full((8,), float(step_of(path))).numpy().tobytes()) + 100] ^= 1
    path.write_bytes(content)


def step_of(path: Path) -> int:
    return int(torch.load(path, weights_only=True)["global_step"])


def test_what_is_saved_is_what_is_loaded(tmp_path):
    path = save(tmp_path / "new" / "folder" / "a.ckpt", 7)
    loaded = AtomicCheckpointIO().load_checkpoint(path)
    assert loaded["global_step"] == 7
    assert torch.equal(loaded["state_dict"]["weight"], torch.full((50, 10), 7.0))
    assert list(path.parent.iterdir()) == [path]


def test_a_file_is_an_ordinary_checkpoint_for_lightning_and_torch(tmp_path):
    assert torch.load(save(tmp_path / "a.ckpt"), weights_only=True)["global_step"] == 1


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_torn_file_is_detected_wherever_it_ends(tmp_path: Path, share: float):
    path = save(tmp_path / "a.ckpt")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert "is torn" in str(find_fault(path))
    with pytest.raises(DamagedCheckpointError, match="is torn or not a checkpoint"):
        AtomicCheckpointIO().load_checkpoint(path)


def test_a_flipped_bit_that_torch_would_load_is_detected(tmp_path):
    path = save(tmp_path / "a.ckpt")
    flip_a_bit_of_the_weights(path)
    assert not torch.equal(torch.load(path, weights_only=True)["state_dict"]["weight"], torch.ones(50, 10))
    with pytest.raises(DamagedCheckpointError, match=r"part archive/data/\d fails its checksum.*no other"):
        AtomicCheckpointIO().load_checkpoint(path)


def test_any_flipped_bit_is_detected_or_harmless(tmp_path):
    path = tmp_path / "a.ckpt"
    content = {"global_step": 1, "weight": torch.arange(8.0)}
    AtomicCheckpointIO().save_checkpoint(content, path)
    original = path.read_bytes()
    num_detected = 0
    for position in range(len(original)):
        altered = bytearray(original)
        altered[position] ^= 1 << position % 8
        path.write_bytes(altered)
        if find_fault(path):
            num_detected += 1
            continue
        loaded = torch.load(path, weights_only=True)
        assert loaded.keys() == content.keys()
        assert loaded["global_step"] == 1
        assert torch.equal(loaded["weight"], content["weight"])
    assert num_detected > len(original) / 3


def test_the_error_of_a_damaged_file_names_the_one_to_use_instead(tmp_path):
    before, path = save(tmp_path / "a.ckpt", 1), save(tmp_path / "b.ckpt", 2)
    flip_a_bit_of_the_weights(path)
    with pytest.raises(DamagedCheckpointError, match=f"newest whole one beside it is {before}"):
        AtomicCheckpointIO().load_checkpoint(path)


def test_newest_is_the_one_with_the_most_steps_whatever_its_name_or_age(tmp_path):
    newest = save(tmp_path / "a.ckpt", 30)
    save(tmp_path / "b.ckpt", 4)
    save(tmp_path / "z.ckpt", 20)
    assert newest_valid(tmp_path) == newest


def test_of_two_at_the_same_step_the_later_file_is_the_newest(tmp_path):
    later, earlier = save(tmp_path / "a.ckpt", 3), save(tmp_path / "b.ckpt", 3)
    os.utime(later, ns=(0, earlier.stat().st_mtime_ns + 10))
    assert newest_valid(tmp_path) == later


def test_damaged_ones_are_passed_over_and_named(tmp_path, caplog):
    whole = save(tmp_path / "step-1.ckpt", 1)
    flip_a_bit_of_the_weights(save(tmp_path / "step-2.ckpt", 2))
    (tmp_path / "step-3.ckpt").write_bytes(whole.read_bytes()[:1000])
    (tmp_path / "step-4.ckpt").write_bytes(b"")
    torch.save([1, 2], tmp_path / "list.ckpt")
    with caplog.at_level(logging.WARNING):
        assert newest_valid(str(tmp_path)) == whole
    for name in ("step-2", "step-3", "step-4", "list"):
        assert f"{name}.ckpt" in caplog.text


def test_a_file_of_weights_alone_cannot_be_resumed_from(tmp_path):
    path = tmp_path / "a.ckpt"
    AtomicCheckpointIO().save_checkpoint({"global_step": 9, "state_dict": {}}, path)
    assert newest_valid(tmp_path) is None
    assert newest_valid(tmp_path, resumable=False) == path


def test_an_empty_or_absent_folder_has_no_newest(tmp_path):
    assert newest_valid(tmp_path) is None
    assert newest_valid(tmp_path / "absent") is None


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint .*absent\.ckpt"):
        AtomicCheckpointIO().load_checkpoint(tmp_path / "absent.ckpt")


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"path": Path("x")}, "hyper_parameters.path is a pathlib.PosixPath"),
        ({"a": {"b": [1, Colour.RED]}}, r"hyper_parameters.a.b.1 is a .*Colour"),
        ({"size": np.float64(3)}, r"hyper_parameters.size is a numpy.float64"),
        ({"net": nn.Linear(1, 1)}, r"hyper_parameters.net is a torch.nn.modules.linear.Linear"),
        ({"f": lambda x: x}, "hyper_parameters.f is a function"),
        ({"lock": threading.Lock()}, "hyper_parameters.lock is a _thread.lock"),
        ({Colour.RED: 1}, "the key .* of hyper_parameters is a .*Colour"),
    ],
)
def test_what_could_not_be_loaded_again_is_named_and_replaces_nothing(tmp_path, value, where):
    path = save(tmp_path / "a.ckpt", 1)
    with pytest.raises(ValueError, match=where):
        save(path, 2, hyper_parameters=value)
    assert step_of(path) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_one_clear_error_and_leaves_the_file_before(tmp_path, run_python):
    path = save(tmp_path / "a.ckpt", 1)
    said = run_python(
        """
import resource, sys, torch
from lit_trainer.runtime.checkpoint_files import AtomicCheckpointIO
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for size in (200, 2_000_000):
    try:
        AtomicCheckpointIO().save_checkpoint({"global_step": 2, "weight": torch.zeros(size)}, sys.argv[1])
    except OSError as error:
        print(type(error).__name__, error)
""",
        path,
    )
    assert said.count("the checkpoint could not be written: File too large; the files before it are untouched") == 1
    assert step_of(path) == 2, "the small one fitted"
    assert find_fault(path) is None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.ckpt", "script.py"]


def test_a_kill_in_the_middle_of_a_save_leaves_the_file_before(tmp_path, run_python):
    path = save(tmp_path / "a.ckpt", 1)
    run_python(
        """
import os, sys, torch
from lit_trainer.runtime import checkpoint_files
checkpoint_files.os.fsync = lambda _: os._exit(0)
checkpoint_files.AtomicCheckpointIO().save_checkpoint({"global_step": 2}, sys.argv[1])
""",
        path,
    )
    assert newest_valid(tmp_path) == path
    assert step_of(path) == 1
    save(path, 3)
    assert [p.name for p in tmp_path.glob("*ckpt*")] == ["a.ckpt"], "the next save clears what the kill left"


def test_a_folder_that_cannot_be_written_is_an_os_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        save(tmp_path / "file" / "a.ckpt")


def test_untrusted_pickles_are_not_run(tmp_path):
    class Payload:
        def __reduce__(self) -> Any:
            return pathlib.Path.touch, (tmp_path / "touched",)

    torch.save({"global_step": 1, "optimizer_states": [], "x": Payload()}, tmp_path / "a.ckpt")
    assert newest_valid(tmp_path) is None
    with pytest.raises(Exception, match="weights_only"):
        AtomicCheckpointIO().load_checkpoint(tmp_path / "a.ckpt")
    assert not (tmp_path / "touched").exists()
