"""What the processor, or the GPU, of this machine is good at."""

from pathlib import Path
from typing import Literal

import torch

_BF16_FLAGS = {"amx_bf16", "avx512_bf16", "avx_ne_convert", "bf16"}  # of x86, and the last of ARM
Computes = Literal["bf16-mixed", "16-mixed", "32-true"]


def fastest_precision(device: torch.device, cpuinfo: Path = Path("/proc/cpuinfo")) -> Computes:
    """Returns the fastest precision that trains like float32 and that the device has instructions for.

    Args:
        device: Where the model is to be.
        cpuinfo: Where the processor's flags are listed.
    """
    if device.type == "cpu":
        return "bf16-mixed" if has_bf16(cpuinfo) else "32-true"
    if device.type == "cuda":
        # Older GPUs would emulate bfloat16, and those before Volta are no faster in float16.
        major, _ = torch.cuda.get_device_capability(device)
        return "bf16-mixed" if major >= 8 else "16-mixed" if major >= 7 else "32-true"
    return "32-true"


def has_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Tells whether the processor multiplies in bfloat16 itself, as far as it says so."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return not _BF16_FLAGS.isdisjoint(flags.split())
