"""Logits of some tokens alone: a vocabulary has more entries than all other layers have widths together."""

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel


class ChosenLogits:
    """Runs a language model whose last layer sees nothing but the tokens that are asked for.

    Args:
        model: A model with a layer that makes logits of hidden states (``get_output_embeddings``). One that has none,
            or gives it something else than one state for each token, computes all logits, of which some are taken.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._chosen: Tensor | None = None
        self._was_asked = False
        layer = model.get_output_embeddings()
        if layer is not None:
            layer.register_forward_pre_hook(self._choose)

    def __call__(self, chosen: Tensor, **inputs: Any) -> Tensor:
        """Returns the logits ``[K, V]`` of K chosen tokens, in their order.

        Args:
            chosen: bool ``[B, L]``.
            inputs: What the model's forward takes.
        """
        self._chosen, self._was_asked = chosen, False
        try:
            logits: Tensor = self._model(**inputs).logits
        finally:
            self._chosen = None
        return logits if self._was_asked else logits[chosen]

    def _choose(self, module: Any, states: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if self._chosen is None or states[0].shape[:-1] != self._chosen.shape:
            return None
        self._was_asked = True
        return (states[0][self._chosen], *states[1:])
