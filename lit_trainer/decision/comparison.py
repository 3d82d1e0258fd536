"""A rule's decisions beside those without it, on rows that nothing was fitted on."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lit_trainer.decision import criteria
from lit_trainer.decision.counts import Counts, share
from lit_trainer.decision.criteria import BalancedAccuracy, Criterion, ExpectedCost, FBeta, Precision, Recall
from lit_trainer.decision.intervals import Bootstrap, Estimate
from lit_trainer.decision.measuring import measure
from lit_trainer.decision.probabilities import Array, Floats, read_labels, read_logits
from lit_trainer.decision.rule import DecisionRule


class Comparison(NamedTuple):
    """One measure of two ways to decide the same rows."""

    by_rule: Estimate
    by_default: Estimate


@dataclass(frozen=True)
class Accuracy(Criterion):
    """Share of the decisions that are right. To measure by; where a class is rare it says little."""

    def value(self, counts: Counts) -> Floats:
        """Returns the accuracy of two classes."""
        return share(counts.tp + counts.tn, counts.tp + counts.fp + counts.fn + counts.tn)

    def of_confusion(self, confusion: Floats) -> Floats:
        """Returns the accuracy of C classes."""
        return share(np.trace(confusion, axis1=-2, axis2=-1), confusion.sum(axis=(-2, -1)))


def compare(rule: DecisionRule, logits: Array, labels: Array) -> dict[str, Comparison]:
    """Measures a rule, and what is most probable by the model alone, on the same rows.

    Args:
        rule: The rule.
        logits: ``[N, C]`` of any float type, of rows that neither the model nor the rule was fitted on.
        labels: ``[N]`` with class numbers, or ``[N, C]`` with 0 and 1 for multi_label; -100, or NaN in floats, is
            ignored.

    Returns:
        By name: measures that ``test/`` also has, which for binary are about the last class, and what the rule was
        chosen by, with what that requires, about the rule's positive label. Without rows there is nothing.
    """
    names = rule.label_names
    z = read_logits(logits, rule.kind, len(names))
    y = read_labels(labels, rule.kind, len(names), len(z))
    by_rule = rule.decide(z).labels
    by_default = DecisionRule(rule.kind, names, rule.positive_label).decide(z).labels
    record = rule.fitted_on
    bootstrap = Bootstrap(level=record.level) if record else Bootstrap()
    measured = {}
    for name, (asked, criterion) in _measures(rule).items():
        both = Comparison(*(measure(asked, decided, y, criterion, bootstrap) for decided in (by_rule, by_default)))
        if (y >= 0).any() and not np.isnan(both.by_rule.value):
            measured[name] = both
    return measured


def _measures(rule: DecisionRule) -> dict[str, tuple[DecisionRule, Criterion]]:
    """Returns by name what is measured, and the rule whose kind of decisions it is about."""
    names = rule.label_names
    own = criterion_from_dict(rule.fitted_on.criterion) if rule.fitted_on else None
    asked = [own, (own.requirement() or (None,))[0]] if own else []
    chosen_by = {_name(criterion, rule): (rule, criterion) for criterion in asked if criterion}
    if rule.kind == "multi_label":
        return {_name(FBeta(), rule): (rule, FBeta()), **chosen_by}
    classes = DecisionRule("multi_class", names)
    usual: dict[str, tuple[DecisionRule, Criterion]] = {
        "accuracy": (classes, Accuracy()),
        "balanced_accuracy": (classes, BalancedAccuracy()),
        "f1_macro": (classes, FBeta()),
    }
    if rule.kind == "binary":
        last = DecisionRule("binary", names)
        usual |= {"f1": (last, FBeta()), "precision": (last, Precision()), "recall": (last, Recall())}
    return {**usual, **chosen_by}


def criterion_from_dict(data: Mapping[str, Any] | None) -> Criterion | None:
    """Reads what `Criterion.to_dict` gave; None if it is not a criterion of this package."""
    if data is None:
        return None
    module, _, name = str(data.get("class_path")).rpartition(".")
    found = getattr(criteria, name, None)
    if module != criteria.__name__ or not (isinstance(found, type) and issubclass(found, Criterion)):
        return None
    return found(**data.get("init_args", {}))


def _name(criterion: Criterion, rule: DecisionRule) -> str:
    """Returns what a criterion is called as a metric, such as ``expected_cost``."""
    if isinstance(criterion, FBeta):
        name = f"f{criterion.beta:g}" + "_macro" * (rule.kind == "multi_class")
    else:
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(criterion).__name__).lower()
    if rule.kind == "multi_class" or isinstance(criterion, ExpectedCost):
        return name
    if rule.kind == "multi_label":
        return f"{name}_of_labels"
    return name if rule.positive == 1 else f"{name}/{rule.positive_label}"
