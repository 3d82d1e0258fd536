"""The decision rule: plain data that turns a model's logits into labels, the same wherever the model goes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np

from lit_trainer.decision.calibration import Calibration, calibration_from_dict
from lit_trainer.decision.costs import least_cost
from lit_trainer.decision.criteria import read_costs
from lit_trainer.decision.probabilities import (
    Array,
    Floats,
    Integers,
    Kind,
    check_kind,
    listed,
    probabilities_of,
    read_logits,
)
from lit_trainer.decision.record import FitRecord, check_keys, record_from_dict

VERSION: Final = 1
"""The version of the saved form. It is raised when an older reader would decide otherwise."""

FILE_NAME: Final = "decision_rule.json"
"""What the saved rule is called beside a model."""

CONFIG_KEY: Final = "decision_rule"
"""Where a model's configuration has the rule, too."""

_KEYS: Final = {"version", "kind", "label_names", "positive_label", "calibration", "thresholds", "costs", "fitted_on"}


class Decision(NamedTuple):
    """What a rule makes of logits.

    Shapes: ``probabilities`` float64 ``[N, C]``, calibrated; ``labels`` int64 ``[N]`` with class numbers, or
    ``[N, C]`` with 0 and 1 for multi_label.
    """

    probabilities: Floats
    labels: Integers


@dataclass(frozen=True)
class DecisionRule:
    """How labels are decided. Without calibration, thresholds and costs: the most probable class, or 0.5 and above.

    Args:
        kind: Whether a row has one of two labels, one of C, or any number of C.
        label_names: The C names in the order of the class numbers.
        positive_label: For binary, which of the two names the threshold is about.
        calibration: How logits become probabilities; None takes the model's own.
        thresholds: From which probability on a label is decided: one number, for the positive label, for binary; C
            numbers for multi_label.
        costs: For multi_class, ``[C][C]``: what deciding the column's class costs when the row's is true.
        fitted_on: Where the rule comes from; None for a default rule.

    Raises:
        ValueError: If the parts do not belong together.
    """

    kind: Kind
    label_names: tuple[str, ...]
    positive_label: str | None = None
    calibration: Calibration | None = None
    thresholds: tuple[float, ...] | None = None
    costs: tuple[tuple[float, ...], ...] | None = None
    fitted_on: FitRecord | None = None

    def __post_init__(self) -> None:
        check_kind(self.kind)
        num = len(self.label_names)
        if num < (1 if self.kind == "multi_label" else 2) or (self.kind == "binary" and num != 2):
            raise ValueError(
                f"label_names has {num} names; {self.kind} takes {'2' if self.kind == 'binary' else 'more'}"
            )
        if len(set(self.label_names)) < num:
            raise ValueError(f"label_names [{listed(self.label_names)}] has a name twice")
        if self.kind == "binary" and self.positive_label is None:
            object.__setattr__(self, "positive_label", self.label_names[1])
        if self.positive_label is not None and (self.kind != "binary" or self.positive_label not in self.label_names):
            raise ValueError(
                f"positive_label is {self.positive_label!r}; it is for binary, one of [{listed(self.label_names)}]"
            )
        if self.calibration is not None:
            self.calibration.check(self.kind, num)
        self._check_thresholds(num)
        if self.costs is not None:
            object.__setattr__(self, "costs", read_costs(self.costs))
            if self.kind != "multi_class" or len(self.costs) != num:
                raise ValueError(
                    f"costs is {len(self.costs)} x {len(self.costs)}; it is for multi_class with as many labels"
                )

    def _check_thresholds(self, num_labels: int) -> None:
        if self.thresholds is None:
            return
        expected = {"binary": 1, "multi_label": num_labels, "multi_class": 0}[self.kind]
        if len(self.thresholds) != expected:
            raise ValueError(f"thresholds has {len(self.thresholds)} numbers; {self.kind} takes {expected or 'none'}")
        if not all(0 <= threshold <= np.nextafter(1.0, 2.0) for threshold in self.thresholds):
            raise ValueError(f"thresholds are probabilities, from 0 to 1: [{listed(self.thresholds)}]")

    @property
    def positive(self) -> int:
        """The class number of the positive label of binary."""
        return self.label_names.index(self.positive_label or self.label_names[-1])

    def decide(self, logits: Array) -> Decision:
        """Decides labels. A row is decided alike alone and in any batch.

        Args:
            logits: ``[N, C]`` of any float type on any device; for binary also ``[N]`` or ``[N, 1]``, the logit of the
                second label.

        Raises:
            ValueError: If the shape is another one or a logit is not finite.
        """
        read = read_logits(logits, self.kind, len(self.label_names))
        calibration = self.calibration
        p = probabilities_of(read, self.kind) if calibration is None else calibration.probabilities(read, self.kind)
        return Decision(p, self.labels(p))

    def labels(self, probabilities: Floats) -> Integers:
        """Decides labels from probabilities that are calibrated already.

        Args:
            probabilities: float64 ``[N, C]``.
        """
        if self.kind == "multi_label":
            return (probabilities >= np.array(self.thresholds or 0.5)).astype(np.int64)
        if self.costs is not None:
            return least_cost(probabilities, np.array(self.costs))
        if self.thresholds is not None:
            return np.where(probabilities[:, self.positive] >= self.thresholds[0], self.positive, 1 - self.positive)
        return np.asarray(probabilities.argmax(axis=1))

    def check_labels(self, label_names: Sequence[str]) -> None:
        """Raises a ValueError unless the model has the same labels in the same order."""
        if tuple(label_names) != self.label_names:
            raise ValueError(
                f"the decision rule is for the labels [{listed(self.label_names)}], the model has "
                f"[{listed(label_names)}]; fit the rule on this model"
            )

    def to_dict(self) -> dict[str, Any]:
        """Returns the rule as plain data that JSON can hold."""
        data = {
            "version": VERSION,
            "kind": self.kind,
            "label_names": self.label_names,
            "positive_label": self.positive_label,
            "calibration": self.calibration.to_dict() if self.calibration else None,
            "thresholds": self.thresholds,
            "costs": self.costs,
            "fitted_on": self.fitted_on.to_dict() if self.fitted_on else None,
        }
        plain: dict[str, Any] = json.loads(json.dumps(data, allow_nan=False))
        return plain

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Reads what `to_dict` gave.

        Raises:
            ValueError: If the version is newer, or the data are no rule.
        """
        version = data.get("version") if isinstance(data, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise ValueError(
                f"the decision rule has version {version}; this lit_trainer reads up to {VERSION}: install a newer one"
            )
        if version != VERSION:
            raise ValueError(f"no decision rule: version is {version!r}; this lit_trainer reads {VERSION}")
        check_keys("the decision rule", data, _KEYS)
        calibration, thresholds, fitted_on = data["calibration"], data["thresholds"], data["fitted_on"]
        try:
            return cls(
                kind=data["kind"],
                label_names=tuple(data["label_names"]),
                positive_label=data["positive_label"],
                calibration=None if calibration is None else calibration_from_dict(calibration),
                thresholds=None if thresholds is None else tuple(thresholds),
                costs=data["costs"],
                fitted_on=None if fitted_on is None else record_from_dict(fitted_on),
            )
        except (TypeError, AttributeError) as error:
            raise ValueError(f"a part of the decision rule is of another form: {error}") from error

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the rule as JSON with sorted keys."""
        text = json.dumps(self.to_dict(), indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
        Path(path).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str], label_names: Sequence[str] | None = None) -> Self:
        """Reads a rule.

        Args:
            path: A file that `save` wrote.
            label_names: The labels of the model it is for, which must be the rule's.

        Raises:
            ValueError: If the file holds no rule, one of a newer version, or one for other labels.
        """
        try:
            rule = cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
            if label_names is not None:
                rule.check_labels(label_names)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        return rule
