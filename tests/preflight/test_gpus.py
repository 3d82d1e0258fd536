"""Why PyTorch sees no GPU, or none that it can use, is said with what to do."""

import subprocess
from types import SimpleNamespace

import pytest
import torch

from lit_trainer.preflight import gpus
from tests.preflight.told import only, texts

SMI = """
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
"""


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver for CUDA 12.4, whose GPUs PyTorch does not see."""
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=SMI))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_a_driver_says_which_cuda_it_reaches(driver: None) -> None:
    assert gpus.driver_versions() == ("550.54.15", "12.4")


@pytest.mark.parametrize(
    ("built", "message"),
    [
        (None, "is for CPUs: install one for CUDA 12.4"),
        ("13.0", "PyTorch is for CUDA 13.0 but the driver 550.54.15 reaches CUDA 12.4: update the driver, or install a"
         " PyTorch for CUDA 12"),
        ("12.8", "PyTorch for CUDA 12.8 sees no GPU: look at CUDA_VISIBLE_DEVICES"),
    ],
)  # fmt: skip
def test_a_pytorch_that_does_not_go_with_the_driver_is_wrong(driver, monkeypatch, built, message) -> None:
    monkeypatch.setattr(torch.version, "cuda", built)
    kind, text = only(gpus.gpus())
    assert kind == "wrong"
    assert message in text


def test_no_gpu_is_wrong_only_where_one_is_asked_for(monkeypatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert only(gpus.gpus()) == ("ok", "no GPU: training uses the CPU")
    assert only(gpus.gpus(uses_gpus=True))[0] == "wrong"
    assert not list(gpus.gpus(uses_gpus=False))


@pytest.mark.parametrize(
    ("capability", "built_for", "expected"),
    [
        ((9, 0), ["sm_80", "sm_90"], True),
        ((8, 6), ["sm_80"], True),
        ((8, 0), ["sm_86"], False),
        ((7, 0), ["sm_75", "sm_80"], False),
        ((10, 0), ["sm_90"], False),
        ((10, 0), ["sm_90", "compute_90"], True),
        ((12, 0), ["sm_100", "sm_120a"], True),
        ((9, 0), ["gfx90a"], True),
        ((9, 0), [], True),
    ],
)
def test_code_runs_on_its_own_generation_or_is_compiled_for_a_later_one(capability, built_for, expected) -> None:
    assert gpus.runs_on(capability, built_for) == expected


@pytest.fixture
def old_gpu(monkeypatch: pytest.MonkeyPatch, driver: None) -> None:
    """A GPU that is older than what PyTorch was built for, and in use."""
    for name, value in {
        "is_available": True,
        "device_count": 1,
        "mem_get_info": (2**30, 2**34),
        "get_device_name": "Tesla V100",
        "get_device_capability": (7, 0),
        "get_arch_list": ["sm_75", "sm_90"],
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)


def test_a_gpu_that_pytorch_was_not_built_for_is_wrong(old_gpu: None) -> None:
    assert texts(gpus.gpus(), "wrong") == [
        "GPU 0: Tesla V100, 1 of 16 GiB free: this PyTorch was built for sm_75, sm_90 and not for sm_70: install"
        " another build"
    ]


def test_a_gpu_in_use_is_worth_a_look(old_gpu: None, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert texts(gpus.gpus(), "look") == [
        "GPU 0: Tesla V100, 1 of 16 GiB free: another process uses it; nvidia-smi shows which"
    ]


def test_another_nccl_than_the_installed_one_is_worth_a_look(monkeypatch) -> None:
    found = [SimpleNamespace(name="nvidia-nccl-cu13", version="2.28.9"), SimpleNamespace(name=None, version="1")]
    monkeypatch.setattr("importlib.metadata.distributions", lambda: found)
    assert gpus.nccl_version("2.28.9").kind == "ok"
    other = gpus.nccl_version("2.18.5")
    assert other.kind == "look"
    assert other.text.startswith("NCCL 2.18.5 was loaded but nvidia-nccl-cu13 is 2.28.9")
