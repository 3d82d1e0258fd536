"""Where a run keeps the rule that it has fitted, and which of its checkpoints the rule is for."""

import logging
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from lit_trainer.decision.rule import FILE_NAME, DecisionRule

_log = logging.getLogger(__name__)


def rule_path(checkpoint: str | PathLike[str]) -> Path:
    """Returns the file of the rule that a run has fitted: in its folder, of which checkpoints are in a subfolder.

    Args:
        checkpoint: A checkpoint of the run.
    """
    folder = Path(checkpoint).parent
    return (folder.parent if folder.name == "checkpoints" else folder) / FILE_NAME


def is_for(rule: DecisionRule, step: int) -> bool:
    """Tells whether a rule is for the weights of an optimizer step; one that was not fitted is for any.

    Args:
        rule: The rule.
        step: The number of optimizer steps that the weights have been trained for.
    """
    return rule.fitted_on is None or rule.fitted_on.step in (None, step)


def read_rule(path: Path, step: int, label_names: Sequence[str]) -> DecisionRule | None:
    """Returns the rule that a run has fitted if it is for the weights of a step, else None.

    Args:
        path: The rule's file.
        step: The optimizer step of the weights.
        label_names: The labels of the model, which must be the rule's.

    Raises:
        ValueError: If the file holds no rule, one of a newer version, or one for other labels.
    """
    rule = DecisionRule.load(path, label_names)
    if is_for(rule, step):
        return rule
    assert rule.fitted_on is not None
    _log.info(
        "%s is for the weights of step %d, not for those of step %d, for which labels are decided without a rule",
        path, rule.fitted_on.step, step,
    )  # fmt: skip
    return None
