"""How many floating-point operations training takes, and how many a device can do."""

import re

import torch
from torch import nn
from transformers import PreTrainedModel

_DENSE_TFLOPS = {
    r"H200|H100 (80GB HBM3|SXM)|GH200": (989, 494, 67),
    r"H100 NVL": (835, 417, 60),
    r"H100": (756, 378, 51),
    r"H20\b": (148, 74, 44),
    r"H800": (989, 494, 67),
    r"B200|GB200": (2250, 1100, 80),
    r"A100|A800": (312, 156, 19.5),
    r"A30\b": (165, 82, 10.3),
    r"A10G": (70, 35, 35),
    r"A10\b": (125, 62, 31),
    r"A40\b": (150, 75, 37),
    r"L40S": (362, 183, 92),
    r"L40\b": (181, 90, 90),
    r"L4\b": (121, 60, 30),
    r"V100": (125, 15.7, 15.7),
    r"T4\b": (65, 8.1, 8.1),
    r"RTX 4090": (165, 82, 82),
    r"RTX 3090": (71, 35.5, 35.5),
}
"""TFLOP/s without sparsity in half precision, TF32 and float32, by device name; from NVIDIA's data sheets."""


def flops_of_training(model: nn.Module) -> tuple[float, float]:
    """Returns what training costs for each token, and for each pair of tokens of the same row that attention compares.

    Each parameter outside the embeddings takes part in one multiplication and one addition for each token: 2 operations
    forward and 4 backward, 2 where it is frozen. Attention adds 12 x layers x width for each pair, backward included.
    Norms, activations, dropout and whatever is computed a second time are not counted.

    Args:
        model: A Hugging Face model, or any other, for which pairs cost nothing.

    Source: Kaplan et al. 2020, "Scaling laws for neural language models", section 2.1; Chowdhery et al. 2022, "PaLM",
    appendix B.
    """
    counted: dict[int, float] = {}
    for module in model.modules():
        if not isinstance(module, nn.Embedding):
            for parameter in module.parameters(recurse=False):
                counted[id(parameter)] = parameter.numel() * (6.0 if parameter.requires_grad else 4.0)
    pairs = 0.0
    if isinstance(model, PreTrainedModel):
        config = model.config.get_text_config()
        layers, width = (getattr(config, name, None) for name in ("num_hidden_layers", "hidden_size"))
        pairs = 12.0 * (layers or 0) * (width or 0)
    return sum(counted.values()), pairs


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Returns the operations that a device can do in a second, or None if that is not known.

    Args:
        device: The device; of CPUs nothing is known.
        precision: As Lightning names it, such as ``bf16-mixed``.
    """
    if device.type != "cuda":
        return None
    return peak_of(torch.cuda.get_device_name(device), precision, torch.backends.cuda.matmul.allow_tf32)


def peak_of(name: str, precision: str, allow_tf32: bool) -> float | None:
    """Does the same for the name of a device.

    Args:
        name: As CUDA has it.
        precision: As Lightning names it.
        allow_tf32: Whether float32 may be computed in TF32.
    """
    column = 0 if "16" in precision else 1 if allow_tf32 else 2
    if "64" in precision:
        return None
    return next((row[column] * 1e12 for pattern, row in _DENSE_TFLOPS.items() if re.search(pattern, name)), None)
