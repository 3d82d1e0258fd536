"""What is predicted, as the columns of a table: the same wherever a model is applied."""

from typing import Any

from lit_trainer.decision.probabilities import Floats
from lit_trainer.decision.rule import DecisionRule


def predicted_columns(logits: Floats, rule: DecisionRule | None) -> dict[str, Any]:
    """Returns the columns that say what is predicted, by name.

    Args:
        logits: ``[N, C]``.
        rule: How labels are decided; None where the logit is the value itself.

    Returns:
        ``label``, or ``labels`` with a list in each row, and ``probability_<name>`` for each class; or ``value``.
    """
    if rule is None:
        return {"value": logits.reshape(len(logits), -1)[:, 0]}
    decision = rule.decide(logits)
    names = rule.label_names
    probabilities = {f"probability_{name}": decision.probabilities[:, index] for index, name in enumerate(names)}
    if rule.kind == "multi_label":
        lists = [[name for name, chosen in zip(names, row, strict=True) if chosen] for row in decision.labels]
        return {"labels": lists, **probabilities}
    return {"label": [names[label] for label in decision.labels], **probabilities}
