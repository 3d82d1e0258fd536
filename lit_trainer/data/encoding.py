"""From text to token ids: once, in parallel, kept on disk by the content of what was encoded."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from lit_trainer.cache import cache_folder
from lit_trainer.data.plan import Ints

_LENGTH, _LOST = "num_tokens", "num_lost_tokens"
_NO_LIMIT = 10**6  # a tokenizer without a limit of its own says so by an astronomically large one


@dataclass(frozen=True)
class EncodedText:
    """The token ids of a split.

    Args:
        tokens: One row of token columns (``input_ids``, ``attention_mask``, ...) for each row of the split.
        lengths: int64 ``[R]``, tokens of each row, special ones included.
        lost: int64 ``[R]``, tokens of each row that were cut off.
    """

    tokens: Dataset
    lengths: Ints
    lost: Ints

    def truncation(self) -> str | None:
        """Says how many rows were cut and how much of them was lost; None if nothing was."""
        rows = int(np.count_nonzero(self.lost))
        if not rows:
            return None
        share = self.lost.sum() / (self.lost.sum() + self.lengths.sum())
        return f"{rows:,} of {len(self.lost):,} rows were cut, losing {int(self.lost.sum()):,} tokens ({share:.1%})"


def encode(
    rows: Dataset, text: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int | None
) -> EncodedText:
    """Tokenises one or two text columns of a split.

    The result is kept in the cache folder under a name made from the texts, the tokenizer and the settings, so the same
    rows are never encoded twice, whichever source they come from.

    Args:
        rows: The split.
        text: One column, or two that are encoded as a pair.
        tokenizer: A tokenizer of Transformers.
        max_length: Tokens that a row may have; longer ones are cut. None takes the tokenizer's own limit.
    """
    limit = max_length or (tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None)
    fingerprint = _fingerprint(rows, text, tokenizer, limit)
    folder = cache_folder() / "encoded"
    folder.mkdir(parents=True, exist_ok=True)

    def tokenize(batch: dict[str, list[Any]]) -> dict[str, Any]:
        columns = [batch[name] for name in text]
        encoded = dict(tokenizer(*columns, truncation=limit is not None, max_length=limit))
        lengths = [len(ids) for ids in encoded["input_ids"]]
        full = [index for index, length in enumerate(lengths) if limit is not None and length >= limit]
        lost = [0] * len(lengths)
        if full:
            whole = tokenizer(*[[column[index] for index in full] for column in columns], verbose=False)
            for index, ids in zip(full, whole["input_ids"], strict=True):
                lost[index] = len(ids) - lengths[index]
        return {**encoded, _LENGTH: lengths, _LOST: lost}

    # The tokenizer's own threads do the work: processes would each pay for a copy of it.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    tokens = rows.map(
        tokenize,
        batched=True,
        remove_columns=rows.column_names,
        cache_file_name=str(Path(folder) / f"{fingerprint}.arrow"),
        new_fingerprint=fingerprint,
        load_from_cache_file=True,
        desc="Tokenising",
    )
    columns = tokens.select_columns([_LENGTH, _LOST]).with_format("arrow")[:]  # whole; a row at a time takes seconds
    lengths, lost = (columns[name].to_numpy().astype(np.int64) for name in (_LENGTH, _LOST))
    return EncodedText(tokens.remove_columns([_LENGTH, _LOST]), lengths, lost)


def _fingerprint(rows: Dataset, text: Sequence[str], tokenizer: PreTrainedTokenizerBase, limit: int | None) -> str:
    """Hashes what the encoding depends on. A tokenizer's pickle changes with use, so its settings are hashed."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr([*_settings(tokenizer), limit]).encode())
    for batch in rows.select_columns(list(text)).iter(batch_size=10_000):
        for name in text:
            digest.update("\0".join(batch[name]).encode("utf-8", "surrogatepass") + b"\1")
    return digest.hexdigest()


def _settings(tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    settings = [type(tokenizer).__name__, tokenizer.padding_side]
    if backend is None:
        return [*settings, sorted(tokenizer.get_vocab().items())]
    state = json.loads(backend.to_str())  # its vocabulary included; what it was last used for is left out
    return [*settings, {**state, "truncation": None, "padding": None}]
