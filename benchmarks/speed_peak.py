"""How many floating-point operations a second matrix products reach here: the limit of all training.

Usage: speed_peak.py DEVICE; prints a JSON object, from precision to operations a second.
"""

import json
import sys
import time

import torch


def peak(device: torch.device, dtype: torch.dtype, seconds: float) -> float:
    """Returns the best of some products of square matrices."""
    size = 1536 if device.type == "cpu" else 8192
    a, b = torch.randn(size, size, device=device).to(dtype), torch.randn(size, size, device=device).to(dtype)
    end, best = time.perf_counter() + seconds, 0.0
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(3):
            a @ b
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = max(best, 3 * 2 * size**3 / (time.perf_counter() - start))
    return best


if __name__ == "__main__":
    on = torch.device(sys.argv[1])
    kinds = {"32-true": torch.float32, "bf16-mixed": torch.bfloat16}
    with torch.no_grad():
        print(json.dumps({name: peak(on, dtype, 2.0) for name, dtype in kinds.items()}))
