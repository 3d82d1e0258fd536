"""What is a matter of speed alone is chosen for the machine, said, and can be set."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from lit_trainer.runtime import allocator, machine, processor
from lit_trainer.runtime.machine import Machine


@pytest.fixture
def trainer():
    return SimpleNamespace(
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
        precision="32-true",
        optimizers=[torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], fused=True)],
        datamodule=SimpleNamespace(num_workers=2),
    )


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setattr(machine, "keep_freed_memory", lambda: True)  # it lasts as long as the process
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_what_was_chosen_is_said_in_one_line(trainer, monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "10000")
    chosen = Machine(num_threads=1)
    chosen.setup(trainer, None, "fit")
    task = SimpleNamespace(model=SimpleNamespace(config=SimpleNamespace(_attn_implementation="lit_trainer")))
    assert ", ".join(chosen.choices(trainer, task)) == (
        "1 CPU thread, soon asleep while waiting, 32-true precision, sdpa attention, fused AdamW, 2 loading processes, "
        "freed memory is kept"
    )


def test_how_threads_wait_is_said_as_the_user_has_it(trainer, monkeypatch):
    monkeypatch.setenv("GOMP_SPINCOUNT", "10000")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert "2 CPU threads, waiting is passive" in choices_of_two_threads(trainer)
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setenv("GOMP_SPINCOUNT", "300000")
    assert "2 CPU threads" in choices_of_two_threads(trainer)


def choices_of_two_threads(trainer):
    chosen = Machine(num_threads=2)
    chosen.setup(trainer, None, "fit")
    return chosen.choices(trainer, None)


def test_automatic_threads_are_torchs_own_within_the_quota(trainer):
    torch.set_num_threads(3)
    for quota, expected in ((None, 3), (8, 3), (2, 2)):
        chosen = Machine()
        chosen.max_threads = quota
        chosen.setup(trainer, None, "fit")
        assert torch.get_num_threads() == expected


def test_freed_memory_is_given_back_where_that_is_asked_for(trainer):
    chosen = Machine(keep_freed_memory=False)
    chosen.setup(trainer, None, "fit")
    assert "freed memory is kept" not in chosen.choices(trainer, None)


def test_no_threads_are_refused():
    with pytest.raises(ValueError, match="num_threads is 0; it has to be at least 1, or auto"):
        Machine(num_threads=0)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("processor: 0\nflags\t\t: fpu avx512f amx_bf16\n", True),
        ("flags\t\t: fpu avx2\n", False),
        ("Features\t: fp asimd bf16\n", True),
        ("", False),
    ],
)
def test_bf16_is_taken_where_the_processor_has_it(tmp_path, text, found):
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    assert processor.has_bf16(file) == found
    expected = "bf16-mixed" if found else "32-true"
    assert processor.fastest_precision(torch.device("cpu"), file) == expected
    assert not processor.has_bf16(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("capability", "expected"), [((9, 0), "bf16-mixed"), ((7, 5), "16-mixed"), ((6, 1), "32-true")]
)
def test_a_gpu_computes_in_what_it_has_instructions_for(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert processor.fastest_precision(torch.device("cuda")) == expected
    assert processor.fastest_precision(torch.device("mps")) == "32-true"


@pytest.mark.skipif(sys.platform != "linux" or not os.confstr("CS_GNU_LIBC_VERSION"), reason="glibc's own")
def test_freed_memory_stays_with_the_process():
    code = """
import resource, sys
from lit_trainer.runtime.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
bytearray(2**25)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    bytearray(2**25)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    faults = [
        int(subprocess.run([sys.executable, "-c", code, how], capture_output=True, text=True, check=True).stdout)
        for how in ("keep", "give back")
    ]
    assert faults[0] < faults[1] / 5


def test_other_allocators_are_left_alone(monkeypatch):
    monkeypatch.setattr(allocator.platform, "libc_ver", lambda: ("", ""))
    assert not allocator.keep_freed_memory()
