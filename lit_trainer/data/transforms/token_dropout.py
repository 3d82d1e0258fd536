"""Leaves words out of the texts that a model learns from."""

import torch
from transformers import PreTrainedTokenizerBase

from lit_trainer.batch import Batch
from lit_trainer.data.transforms.base import DrawRandom, Transform, ordinary_tokens


class TokenDropout(Transform):
    """Puts the mask token in place of a share of the tokens of each text, in training alone; 0 changes nothing.

    Other tokens each time a row is drawn; the labels stay. The unknown token stands in where there is no mask token.

    Args:
        share: The share of tokens to replace.

    Shapes: ``input_ids`` int64 ``[B, L]``.

    Raises:
        ValueError: If the share is not one, or the tokenizer has neither a mask token nor an unknown one.

    Source: Iyyer et al. 2015, "Deep unordered composition rivals syntactic methods for text classification", word
    dropout, section 3.1; with a token in place of the word, so that positions stay.
    """

    def __init__(self, share: float = 0.1) -> None:
        if not 0 <= share < 1:
            raise ValueError(f"TokenDropout.share is {share}; it must be from 0 to below 1")
        self.share = share

    def __call__(self, batch: Batch, tokenizer: PreTrainedTokenizerBase, random: DrawRandom) -> Batch:
        """Replaces tokens."""
        stand_in = tokenizer.unk_token_id if tokenizer.mask_token_id is None else tokenizer.mask_token_id
        if stand_in is None:
            raise ValueError(f"TokenDropout: {type(tokenizer).__name__} has neither a mask token nor an unknown one")
        dropped = ordinary_tokens(batch, tokenizer) & (random.uniform("token_dropout") < self.share)
        return {**batch, "input_ids": torch.where(dropped, stand_in, batch["input_ids"])}
