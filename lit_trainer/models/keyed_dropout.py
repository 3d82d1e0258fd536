"""Dropout whose masks are a function of (seed, epoch, draw, position, layer) and not of a stream.

Any split over ranks and micro-batches and any layout, padded or not, drops the same elements, and a layer that is
recomputed for the backward pass drops them again. There is no state to save, and nothing that validation or logging
could shift. One case is left: attention over rows padded on the left, and not packed, counts its keys from the edge.
"""

import inspect
import logging
import re
from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from lit_trainer.models import attention
from lit_trainer.models.line_dropout import drop
from lit_trainer.models.token_context import Site, TokenContext, untraced

_log = logging.getLogger(__name__)


class KeyedDropout(nn.Dropout):
    """Dropout that asks where it is in the run which elements to drop; the identity in evaluation.

    Args:
        p: The probability of an element being dropped.
        site: The module's place in the model.
    """

    def __init__(self, p: float, site: Site) -> None:
        super().__init__(p)
        self.site = site

    @untraced
    def forward(self, input: Tensor) -> Tensor:
        """Returns the input with elements dropped.

        Args:
            input: ``[R, D]``, ``[R, L, D]``, ``[1, T, D]`` where rows are packed, or ``[R, H, L, L]`` for attention.
        """
        if not self.training or self.p == 0:
            return input
        words = self.site.words(_lines(input), input.device)
        return F.dropout(input, self.p) if words is None else drop(input, words, self.p)


def install(model: nn.Module, seed: int) -> TokenContext:
    """Makes every dropout of a model keyed, its attention's included, and returns what to tell the rows to.

    Call ``set_rows`` on it before each forward pass. Dropout that cannot be keyed stays what it was, and the log says
    so once. A second call changes the seed.

    Args:
        model: A Hugging Face model.
        seed: The run's seed.
    """
    context = TokenContext.of(model)
    if context.seed is None:
        for name, module in list(model.named_modules()):
            for child_name, child in list(module.named_children()):
                if type(child) is nn.Dropout:
                    site = context.site(f"{name}.{child_name}" if name else child_name)
                    keyed = KeyedDropout(child.p, site).train(child.training)
                    setattr(module, child_name, keyed)
        attention.install(model, context)
        left = [*_not_keyed(model), *_attention_dropout(model)]
        if left:
            _log.warning("ordinary dropout, which differs between splits of a batch, in %s", ", ".join(sorted(left)))
    context.seed = seed
    return context


def _lines(x: Tensor) -> tuple[int, ...]:
    return (x.shape[0], x.shape[2]) if x.dim() == 4 else tuple(x.shape[:-1])


def _not_keyed(model: nn.Module) -> Iterator[str]:
    """Yields the names of the classes that drop by themselves."""
    for kind in {type(module) for module in model.modules()}:
        if issubclass(kind, KeyedDropout):
            continue
        is_own = not kind.__module__.startswith("torch.")
        if issubclass(kind, nn.modules.dropout._DropoutNd) or (is_own and _calls_dropout(kind)):
            yield kind.__name__


def _calls_dropout(kind: type[nn.Module]) -> bool:
    """Looks at one function after another: to find the source of a class, Python parses its whole file."""
    functions = [inspect.unwrap(each) for each in vars(kind).values() if inspect.isfunction(each)]
    try:
        return any(re.search(r"\b(functional|F)\.dropout\(", inspect.getsource(each)) for each in functions)
    except (OSError, TypeError):  # defined where there is no source file
        return False


def _attention_dropout(model: nn.Module) -> Iterator[str]:
    """Yields what attention functions other than ours drop, with the settings that make them."""
    if not isinstance(model, PreTrainedModel) or not model._can_set_attn_implementation():
        return
    implementation = model.config._attn_implementation
    settings = [name for name in model.config.to_dict() if re.search("att.*drop", name) and getattr(model.config, name)]
    if implementation != attention.NAME and settings:
        yield f"{implementation} attention ({', '.join(settings)})"
