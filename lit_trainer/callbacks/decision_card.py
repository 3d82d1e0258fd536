"""What people are told about a decision rule: how it decides, why so, and how good that is."""

from collections.abc import Mapping
from typing import Any

from lit_trainer.decision.calibration import TemperatureScaling
from lit_trainer.decision.intervals import Estimate
from lit_trainer.decision.record import FitRecord
from lit_trainer.decision.rule import FILE_NAME, DecisionRule

_SHOWN_THRESHOLDS = 10


def decision_section(rule: DecisionRule | None, metrics: Mapping[str, Any]) -> str:
    """Returns the part of a model card about decisions, in Markdown; nothing without a rule.

    Args:
        rule: The rule that goes with the model.
        metrics: Those of a test, if there was one; ``test_rule/...`` and ``test_default/...`` are shown.
    """
    if rule is None:
        return ""
    parts = [f"Labels are decided by the rule in `{FILE_NAME}`: {_how(rule)}."]
    if rule.fitted_on is not None:
        parts.append(_fitted(rule.fitted_on))
    if rows := decided_metrics(metrics):
        lines = ["| test | by the rule | without it |", "| --- | --- | --- |"]
        parts.append("\n".join(lines + [f"| {name} | {ours} | {plain} |" for name, (ours, plain) in rows.items()]))
    parts.append(
        "The pipelines of Transformers, and `transformers` in general, know nothing of the rule: they say what is most "
        "probable by the model's own probabilities, so that some labels differ. To decide by the rule:"
    )
    parts.append(
        "```python\nfrom lit_trainer.inference import Predictor\n\n"
        'Predictor(".").predict(["A text to classify"])  # this folder\n```'
    )
    return "\n\n".join(parts)


def decided_metrics(metrics: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Returns the metrics of a test by the rule and without it, each with its interval, by name.

    Args:
        metrics: All metrics by the name they are logged under.
    """
    names = [key.removeprefix("test_rule/") for key in metrics if f"{key}_low" in metrics]
    return {
        name: (_logged(metrics, f"test_rule/{name}"), _logged(metrics, f"test_default/{name}"))
        for name in names
        if f"test_default/{name}" in metrics
    }


def _logged(metrics: Mapping[str, Any], key: str) -> str:
    return told(Estimate(*(float(metrics[f"{key}{end}"]) for end in ("", "_low", "_high"))))


def told(estimate: Estimate) -> str:
    """Returns a number with its interval."""
    return f"{estimate.value:.4f} ({estimate.low:.4f} to {estimate.high:.4f})"


def _how(rule: DecisionRule) -> str:
    """Says in words how the rule decides."""
    calibrated = ""
    if isinstance(rule.calibration, TemperatureScaling):
        calibrated = f", of logits divided by {rule.calibration.temperature:.4g}"
    elif rule.calibration is not None:
        calibrated = f", after {rule.calibration.method} calibration"
    if rule.costs is not None:
        return f"the label with the lowest expected cost{calibrated}"
    if rule.thresholds is None:
        usual = "every label from a probability of 0.5 on" if rule.kind == "multi_label" else "the most probable label"
        return usual + calibrated
    names = rule.label_names if rule.kind == "multi_label" else (str(rule.positive_label),)
    shown = list(zip(names, rule.thresholds, strict=True))[:_SHOWN_THRESHOLDS]
    more = ", ..." if len(names) > _SHOWN_THRESHOLDS else ""
    return f"{', '.join(f'{name} from a probability of {value:.4g} on' for name, value in shown)}{more}{calibrated}"


def _fitted(record: FitRecord) -> str:
    """Says in words where the rule comes from."""
    sentences = [f"It was fitted on {record.num_rows:,} {record.split} rows"]
    if record.criterion is not None:
        sentences[0] += f" by {criterion_name(record)}"
    if record.metric is not None and record.default_metric is not None:
        sentences.append(
            f"On rows that the rule was not fitted on (cross-fitting in {record.folds} parts) that is"
            f" {told(record.metric)}, without the rule {told(record.default_metric)}"
        )
        sentences.append(f"Brackets hold {record.level:.0%} intervals")
    error = record.calibration_error
    if error.after is not None and error.after != error.before:
        sentences.append(f"The calibration error is {error.after:.4f}, before calibration {error.before:.4f}")
    sentences += [f"Note: {note}" for note in record.notes]
    return ". ".join(sentences) + "."


def criterion_name(record: FitRecord) -> str:
    """Returns what a rule was chosen by, such as ``FBeta(beta=1.0)``."""
    criterion = record.criterion or {}
    arguments = criterion.get("init_args", {}).items()
    name = str(criterion.get("class_path")).rpartition(".")[2]
    return f"{name}({', '.join(f'{key}={value}' for key, value in arguments)})" if arguments else name
