"""Loading a Hugging Face model the way training needs it: float32, in train mode, with the head of the task."""

import logging
import os
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedModel

from lit_trainer.models.quiet import quiet

_log = logging.getLogger(__name__)


def load_pretrained(
    auto_class: Any,
    pretrained: str | os.PathLike[str],
    *,
    seed: int,
    config: Mapping[str, Any] | None = None,
    gradient_checkpointing: bool = False,
    trust_remote_code: bool = False,
    is_to_be_trained: bool = True,
) -> PreTrainedModel:
    """Loads a pretrained model to be trained.

    The weights are float32 whatever the file holds, since mixed precision keeps its own copies; the model is in train
    mode, since Lightning leaves the mode as it is and Transformers loads for evaluation. A head whose shape differs
    from the file's is made anew, the same on every rank; a body that does not fit is an error.

    Args:
        auto_class: For instance ``AutoModelForSequenceClassification``.
        pretrained: A folder, or a model's name on the Hub.
        seed: Of newly made weights.
        config: Entries that replace those of the model's configuration.
        gradient_checkpointing: Whether activations are computed again in the backward pass instead of kept.
        trust_remote_code: Whether code that comes with the model may run.
        is_to_be_trained: Whether new weights are going to be learnt, which the log then says, or filled from a
            checkpoint.

    Raises:
        ValueError: If nothing is there to load, a configuration entry is unknown, or the body does not fit.
    """
    path = os.fspath(pretrained)
    try:
        settings = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise ValueError(f"pretrained: no model can be loaded from {path!r}: {_first_line(error)}") from error
    overrides = dict(config or {})
    unknown = sorted(key for key in overrides if not hasattr(settings, key))
    if unknown:
        raise ValueError(
            f"config: {settings.model_type} has no {', '.join(unknown)}; it has {', '.join(sorted(settings.to_dict()))}"
        )
    settings.update(overrides)
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model, report = auto_class.from_pretrained(
                path,
                config=settings,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                trust_remote_code=trust_remote_code,
            )
        except (OSError, ValueError) as error:
            raise ValueError(f"pretrained: no weights can be loaded from {path!r}: {_first_line(error)}") from error
    new_weights = _new_weights(model, report, path)
    if new_weights and is_to_be_trained:
        _log.info("New weights, to be learnt: %s", new_weights)
    if gradient_checkpointing:
        if not model.supports_gradient_checkpointing:
            raise ValueError(f"gradient_checkpointing: {type(model).__name__} does not support it")
        model.activation_checkpointing_enable({"use_reentrant": False})
    model.train()
    return model


def _new_weights(model: PreTrainedModel, report: Mapping[str, Any], path: str) -> str:
    """Refuses a body of other shape and describes which weights did not come from the file."""
    body = f"{model.base_model_prefix}."
    mismatched = {name: (tuple(old), tuple(new)) for name, old, new in report["mismatched_keys"]}
    wrong = sorted(name for name in mismatched if name.startswith(body))
    if wrong:
        old, new = mismatched[wrong[0]]
        raise ValueError(
            f"pretrained: {path!r} does not fit its configuration: {wrong[0]} is {old} in the file and {new} in the "
            f"model ({len(wrong)} such weights)"
        )
    new_names = sorted(set(report["missing_keys"]) | set(mismatched))
    body_names = [name for name, _ in model.named_parameters() if name.startswith(body)]
    if body_names and set(body_names) <= set(new_names):
        raise ValueError(f"pretrained: {path!r} holds no weights of {type(model.base_model).__name__}")
    reason = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in sorted(mismatched.items()))
    return ", ".join(new_names) + (f" (other shape: {reason})" if reason else "")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
