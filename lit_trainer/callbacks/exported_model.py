"""A model as a Hugging Face folder: written beside its place, reloaded and compared, then moved there."""

import copy
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lit_trainer.models.quiet import quiet

_NUM_ROWS, _NUM_TOKENS = 4, 16


def write_model(model: PreTrainedModel, state: Mapping[str, Tensor], tokenizer: Any, folder: Path) -> None:
    """Writes weights, configuration and tokenizer, and makes sure that what was written computes what it should.

    Args:
        model: The model, for its class and configuration.
        state: Its weights by name, all of them, on the CPU.
        tokenizer: What has a ``save_pretrained``, or None.
        folder: An empty or absent folder.

    Raises:
        RuntimeError: If the folder, loaded again, is another model than the one with these weights.
    """
    with quiet():
        model.save_pretrained(folder, state_dict=dict(state))
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        reloaded = type(model).from_pretrained(folder).eval()
    expected = type(model)(copy.deepcopy(model.config)).eval()
    expected.load_state_dict(state, strict=True, assign=True)
    _compare(reloaded, expected, folder)


def _compare(reloaded: PreTrainedModel, expected: PreTrainedModel, folder: Path) -> None:
    weights = reloaded.state_dict()
    for name, weight in expected.state_dict().items():
        if name not in weights or not torch.equal(_bytes(weights[name]), _bytes(weight)):
            raise RuntimeError(f"the model exported to {folder} has another {name} than the one it was made from")
    for row, ids in enumerate(_rows(expected)):
        inputs = {"input_ids": ids, **({"decoder_input_ids": ids} if expected.config.is_encoder_decoder else {})}
        with torch.inference_mode():
            difference = (reloaded(**inputs)[0] - expected(**inputs)[0]).abs().max()
        if difference > 1e-5:
            raise RuntimeError(
                f"the model exported to {folder} computes other logits than the one it was made from: they differ by"
                f" {float(difference):g} on row {row} of the comparison"
            )


def _rows(model: PreTrainedModel) -> Iterator[Tensor]:
    """Yields fixed token ids ``[1, L]`` from all over the vocabulary; none for a model of something other than text."""
    if model.main_input_name != "input_ids":
        return
    config = model.config.get_text_config()
    length = min(_NUM_TOKENS, getattr(config, "max_position_embeddings", None) or _NUM_TOKENS)
    ids = torch.arange(_NUM_ROWS * length) * 7919 % config.vocab_size
    yield from ids.view(_NUM_ROWS, 1, length)


def _bytes(tensor: Tensor) -> Tensor:
    """Makes NaN comparable, and a difference in dtype one in size."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def put_in_place(new: Path, place: Path) -> Path | None:
    """Moves a folder to its place. What is there already is moved aside, never removed.

    Args:
        new: The folder.
        place: Where it goes, in the same parent folder.

    Returns:
        Where what was there is now, or None when there was nothing.
    """
    if not place.exists():
        new.rename(place)
        return None
    number = 1
    while (aside := place.with_name(f"{place.name}.{number}")).exists():
        number += 1
    place.rename(aside)
    new.rename(place)
    return aside


def empty_sibling(place: Path) -> Path:
    """Returns a path beside a folder to be written, free of what an interrupted export has left there."""
    sibling = place.with_name(f".{place.name}.part")
    if sibling.exists():
        shutil.rmtree(sibling)
    sibling.parent.mkdir(parents=True, exist_ok=True)
    return sibling
