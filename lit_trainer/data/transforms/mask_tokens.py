"""Hides tokens for a masked language model to find."""

import torch
from transformers import PreTrainedTokenizerBase

from lit_trainer.batch import IGNORED_LABEL, LABELS, ROW, Batch
from lit_trainer.data.transforms.base import DrawRandom, Transform, ordinary_tokens


class MaskTokens(Transform):
    """Chooses a share of the tokens of each text as what is to be found, and hides most of them.

    The labels become those tokens, -100 elsewhere. Other tokens are chosen each time a row is drawn; a row that is
    evaluated always has the same.

    Args:
        share: The share of tokens to find.
        hidden_share: The share of those that become the mask token.
        random_share: The share of those that become a random token; what is left stays as it is.

    Shapes: ``input_ids`` int64 ``[B, L]``; labels int64 ``[B, L]``.

    Raises:
        ValueError: If a share is not one, or the tokenizer has no mask token.

    Source: Devlin et al. 2019, "BERT", section 3.1.
    """

    evaluates = True

    def __init__(self, share: float = 0.15, hidden_share: float = 0.8, random_share: float = 0.1) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"MaskTokens.share is {share}; it must be above 0 and at most 1")
        if min(hidden_share, random_share) < 0 or hidden_share + random_share > 1:
            raise ValueError(
                f"MaskTokens: hidden_share {hidden_share} and random_share {random_share} must be 0 or above and "
                "at most 1 together"
            )
        self.share, self.hidden_share, self.random_share = share, hidden_share, random_share

    def __call__(self, batch: Batch, tokenizer: PreTrainedTokenizerBase, random: DrawRandom) -> Batch:
        """Hides tokens and makes the labels."""
        if tokenizer.mask_token_id is None:
            raise ValueError(
                f"MaskTokens: {type(tokenizer).__name__} has no mask token; take the tokenizer of a model that was "
                "trained to find masked tokens"
            )
        ids = batch["input_ids"]
        chosen = ordinary_tokens(batch, tokenizer) & (random.uniform("choose") < self.share)
        counted = chosen & (batch[ROW] >= 0).unsqueeze(1)  # rows that only fill up a batch have nothing to find
        what = random.uniform("become")
        others = (random.uniform("token") * len(tokenizer)).long()
        replaced = torch.where(chosen & (what < self.hidden_share + self.random_share), others, ids)
        return {
            **batch,
            "input_ids": torch.where(chosen & (what < self.hidden_share), tokenizer.mask_token_id, replaced),
            LABELS: torch.where(counted, ids, IGNORED_LABEL),
        }
