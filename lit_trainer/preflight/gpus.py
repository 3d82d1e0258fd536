"""Checks of the GPUs: the driver, what PyTorch was built for, what is free of them, and NCCL."""

import importlib.metadata
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence

from lit_trainer.preflight.findings import GIB, Finding


def gpus(uses_gpus: bool | None = None) -> Iterator[Finding]:
    """Looks at the GPUs that PyTorch sees, and at the driver.

    Args:
        uses_gpus: Whether training is to use some; None if there are any.
    """
    if uses_gpus is False:
        return
    import torch

    driver, reached = driver_versions()
    built = torch.version.cuda
    if not torch.cuda.is_available():
        yield _why_none(driver, reached, built, torch.__version__, bool(uses_gpus))
        return
    yield Finding("ok", f"driver {driver or 'not known'} for CUDA {reached or 'not known'}, PyTorch for CUDA {built}")
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        text = f"GPU {index}: {torch.cuda.get_device_name(index)}, {free / GIB:.0f} of {total / GIB:.0f} GiB free"
        if not runs_on(torch.cuda.get_device_capability(index), torch.cuda.get_arch_list()):
            yield Finding("wrong", f"{text}: this PyTorch was built for {', '.join(torch.cuda.get_arch_list())} and not"
                          f" for sm_{''.join(map(str, torch.cuda.get_device_capability(index)))}: install another"
                          " build")  # fmt: skip
        elif free < total / 2:
            yield Finding("look", f"{text}: another process uses it; nvidia-smi shows which")
        else:
            yield Finding("ok", text)
    if torch.distributed.is_nccl_available():
        yield nccl_version(".".join(map(str, torch.cuda.nccl.version())))
    elif torch.cuda.device_count() > 1:
        yield Finding("wrong", "several GPUs but no NCCL in this PyTorch: install a build for CUDA on Linux")


def _why_none(driver: str | None, reached: str | None, built: str | None, version: str, wanted: bool) -> Finding:
    """Says why PyTorch sees no GPU.

    Args:
        driver: The driver's version, None without one.
        reached: The newest CUDA that it can run.
        built: The CUDA that PyTorch was built for, None for the CPU.
        version: That of PyTorch.
        wanted: Whether training is to use one.
    """
    if driver is None and not wanted:
        return Finding("ok", "no GPU: training uses the CPU")
    if driver is None:
        return Finding("wrong", "trainer.accelerator asks for a GPU but nvidia-smi finds none here: ask the cluster for"
                       " one, or set trainer.accelerator to cpu")  # fmt: skip
    if built is None:
        return Finding("wrong", f"there is an NVIDIA driver, but this PyTorch ({version}) is for CPUs: install one for"
                       f" CUDA {reached or ''}".rstrip())  # fmt: skip
    if reached is not None and int(reached.partition(".")[0]) < int(built.partition(".")[0]):
        return Finding("wrong", f"PyTorch is for CUDA {built} but the driver {driver} reaches CUDA {reached}: update"
                       f" the driver, or install a PyTorch for CUDA {reached.partition('.')[0]}")  # fmt: skip
    return Finding("wrong", f"there is an NVIDIA driver {driver}, but PyTorch for CUDA {built} sees no GPU: look at"
                   " CUDA_VISIBLE_DEVICES, and in a container at --gpus or --nv")  # fmt: skip


def driver_versions() -> tuple[str | None, str | None]:
    """Returns the version of NVIDIA's driver and the newest CUDA that it can run; None without one."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None, None
    done = subprocess.run([program], capture_output=True, text=True, timeout=20)
    driver = re.search(r"Driver Version: *([\d.]+)", done.stdout)
    reached = re.search(r"CUDA(?: UMD)? Version: *([\d.]+)", done.stdout)
    return (driver[1] if driver else None), (reached[1] if reached else None)


def runs_on(capability: tuple[int, int], built_for: Sequence[str]) -> bool:
    """Tells whether code runs on a GPU: built for its generation, or to be compiled for any later one.

    Args:
        capability: That of the GPU.
        built_for: What PyTorch was built for, such as ``sm_80`` and ``compute_90``.
    """
    if not built_for:
        return True
    for name in built_for:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", name)
        if match is None:
            return True  # a kind of device that this knows nothing of
        built = int(match[2]), int(match[3])
        same = built[0] == capability[0] and built[1] <= capability[1]
        if same or (match[1] == "compute" and built <= capability):
            return True
    return False


def nccl_version(loaded: str) -> Finding:
    """Compares the NCCL that was loaded with the one that was installed with PyTorch.

    Args:
        loaded: Its version.
    """
    for found in importlib.metadata.distributions():
        name = str(found.name or "")
        if re.fullmatch(r"nvidia[-_]nccl[-_]cu\d+", name) and not found.version.startswith(loaded):
            return Finding("look", f"NCCL {loaded} was loaded but {name} is {found.version}: LD_LIBRARY_PATH or"
                           " LD_PRELOAD names another one; unset it, unless all nodes are to use that")  # fmt: skip
    return Finding("ok", f"NCCL {loaded}")
