"""The contract of a transform: it changes a batch by random numbers that belong to its rows, not to a stream.

A transform of your own is a class with a `__call__`, in any module that can be imported::

    class RepeatTokens(Transform):
        def __call__(self, batch, tokenizer, random):
            ids = batch["input_ids"]
            repeated = random.uniform("repeat") < 0.05
            return {**batch, "input_ids": torch.where(repeated, ids.roll(1, dims=1), ids)}

In YAML it is ``data.transforms: [{class_path: my_transforms.RepeatTokens}]``. Because its numbers are a function of the
draw and the token's position, a row is changed alike on any split of the hardware, with any number of workers and after
a resume, and differently each time it is drawn.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from lit_trainer.batch import DRAW, Batch
from lit_trainer.models.keyed_random import keyed_uniform

_EVALUATION = -1  # the epoch of what is evaluated: always the same, and none of the training's


@dataclass(frozen=True)
class DrawRandom:
    """Random numbers for the tokens of a batch.

    Args:
        seed: The seed of the batches.
        epoch: The epoch of the plan.
        draws: int64 ``[B]``, the draws' numbers in it.
        attention_mask: int64 ``[B, L]``, 1 for real tokens. Positions are counted in those, so that padding changes
            nothing.
    """

    seed: int
    epoch: int
    draws: Tensor
    attention_mask: Tensor

    def uniform(self, purpose: str) -> Tensor:
        """Returns numbers from [0, 1) as float32 ``[B, L]``.

        Args:
            purpose: What they are for. The same name gives the same numbers, another one independent ones.
        """
        positions = self.attention_mask.long().cumsum(1)
        return keyed_uniform(self.seed, self.epoch, self.draws.unsqueeze(1), positions, purpose)


class Transform(ABC):
    """Changes a padded batch, in training whenever its rows are drawn."""

    evaluates = False
    """Whether it is done in evaluation, too, where a row is changed alike each time."""

    @abstractmethod
    def __call__(self, batch: Batch, tokenizer: PreTrainedTokenizerBase, random: DrawRandom) -> Batch:
        """Returns the changed batch; the one given stays as it is.

        Args:
            batch: ``input_ids`` and ``attention_mask`` ``[B, L]``, and what else a batch has.
            tokenizer: The one that made it.
            random: The numbers to go by.
        """


class Transforms:
    """Some transforms, one after the other, as the loaders want them.

    Args:
        transforms: In their order.
        tokenizer: The one that makes the batches.
        seed: Of the batches.
    """

    def __init__(self, transforms: Sequence[Transform], tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        self._transforms, self._tokenizer, self._seed = transforms, tokenizer, seed

    def train(self, batch: Batch, epoch: int) -> Batch:
        """Transforms a batch of the training.

        Args:
            batch: As it was collated.
            epoch: The epoch of the plan.
        """
        return self._apply(self._transforms, batch, epoch)

    def evaluate(self, batch: Batch) -> Batch:
        """Transforms a batch to evaluate by those that `Transform.evaluates` is true of."""
        return self._apply([each for each in self._transforms if each.evaluates], batch, _EVALUATION)

    def _apply(self, transforms: Sequence[Transform], batch: Batch, epoch: int) -> Batch:
        for transform in transforms:
            random = DrawRandom(self._seed, epoch, batch[DRAW], batch["attention_mask"])
            batch = transform(batch, self._tokenizer, random)
        return batch


def ordinary_tokens(batch: Batch, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """Tells which tokens are text: neither padding nor special; bool ``[B, L]``."""
    special = batch["input_ids"].new_tensor(sorted(set(tokenizer.all_special_ids)))
    ordinary: Tensor = (batch["input_ids"].unsqueeze(-1) != special).all(-1) & batch["attention_mask"].bool()
    return ordinary
