"""Calibration: probabilities that mean what they say, by a small correction fitted on held-out rows.

Temperature and vector scaling are fitted by likelihood. So that it has an optimum for any rows, also for a class
without rows or classes that the logits separate perfectly, one more row is thought to be there, spread evenly over
all rows and classes: N perfect rows among C classes then end at a mean probability of (N + 1/C) / (N + 1), not at 1.
"""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np

from lit_trainer.batch import IGNORED_LABEL
from lit_trainer.decision.isotonic import IDENTITY, RisingCurve, fit_rising_curve
from lit_trainer.decision.probabilities import Floats, Integers, Kind, listed, one_hot, probabilities_of

MAX_TEMPERATURE = 100.0
"""Temperatures stay between this and its inverse."""


class Calibration(ABC):
    """A correction of the probabilities that a model's logits stand for."""

    method: ClassVar[str]

    @classmethod
    @abstractmethod
    def fit(cls, logits: Floats, labels: Integers, kind: Kind) -> Self:
        """Fits the correction.

        Args:
            logits: float64 ``[N, C]``; N at least 1.
            labels: int64 ``[N]``, or ``[N, C]`` for multi_label, in which -100 is ignored.
            kind: What the logits decide.
        """

    @abstractmethod
    def probabilities(self, logits: Floats, kind: Kind) -> Floats:
        """Returns calibrated probabilities ``[N, C]``."""

    @abstractmethod
    def check(self, kind: Kind, num_classes: int) -> None:
        """Raises a ValueError if the correction is for another number of classes."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the method's name and its numbers, as plain data."""
        return {"method": self.method, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class TemperatureScaling(Calibration):
    """Divides all logits by one number, which changes how sure the model is, never what it holds most probable.

    With temperature 1 it changes nothing.

    Args:
        temperature: Above 1 the probabilities are less extreme, below 1 more.

    Raises:
        ValueError: If the temperature is not a positive number.

    Source: C. Guo et al., On calibration of modern neural networks, ICML 2017, section 4.2.
    """

    method = "temperature"

    temperature: float

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature={self.temperature}; it is a positive number")

    @classmethod
    def fit(cls, logits: Floats, labels: Integers, kind: Kind) -> Self:
        """Fits the temperature by likelihood, which is convex in its inverse: Newton steps kept inside a bracket."""
        targets, counted = _targets(labels, kind, logits.shape[1])
        if kind != "multi_label":
            logits = logits - logits.mean(axis=1, keepdims=True)
        low, high, inverse = 1 / MAX_TEMPERATURE, MAX_TEMPERATURE, 1.0
        enough = 1e-10 * float(np.abs(logits * counted).sum())
        for _ in range(100):
            p = probabilities_of(inverse * logits, kind)
            slope = float(((p - targets) * logits * counted).sum())
            if abs(slope) <= enough or high - low < 1e-12:
                break
            low, high = (inverse, high) if slope < 0 else (low, inverse)
            mean = 0.0 if kind == "multi_label" else (p * logits).sum(axis=1, keepdims=True)
            spread = p * (1 - p) if kind == "multi_label" else p
            curvature = float((spread * (logits - mean) ** 2 * counted).sum())
            newton = inverse - slope / curvature if curvature > 0 else np.nan
            inverse = newton if low < newton < high else (low + high) / 2
        return cls(1 / inverse)

    def probabilities(self, logits: Floats, kind: Kind) -> Floats:
        """Returns the probabilities of the logits divided by the temperature."""
        return probabilities_of(logits / self.temperature, kind)

    def check(self, kind: Kind, num_classes: int) -> None:
        """Fits any number of classes."""


@dataclass(frozen=True)
class VectorScaling(Calibration):
    """Gives each class its own factor and offset: ``factor * logit + offset``.

    With factors 1 and offsets 0 it changes nothing. For multi_label it is Platt scaling of each class; of two classes
    both have the same factor, so that it is Platt scaling of the difference of their logits.

    Args:
        factors: C numbers.
        offsets: C numbers.

    Raises:
        ValueError: If the numbers are not finite or not as many of each.

    Source: C. Guo et al., On calibration of modern neural networks, ICML 2017, section 4.2; J. Platt,
    Probabilistic outputs for support vector machines, 1999.
    """

    method = "vector"

    factors: tuple[float, ...]
    offsets: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.factors) != len(self.offsets) or not np.isfinite([*self.factors, *self.offsets]).all():
            raise ValueError(
                f"factors=[{listed(self.factors)}], offsets=[{listed(self.offsets)}]; they are finite numbers, as many "
                "of each"
            )

    @classmethod
    def fit(cls, logits: Floats, labels: Integers, kind: Kind) -> Self:
        """Fits factors and offsets by likelihood, which is convex in them, with L-BFGS on standardised logits."""
        import torch  # here, so that applying a rule does not wait for it
        from torch.nn import functional as F

        num_classes = logits.shape[1]
        if kind == "binary":  # only the difference tells something
            logits = logits - logits.mean(axis=1, keepdims=True)
        targets, counted = _targets(labels, kind, num_classes)
        rows = np.maximum(counted.sum(axis=0), 1)
        center = (logits * counted).sum(axis=0) / rows
        scale = np.sqrt((((logits - center) * counted) ** 2).sum(axis=0) / rows)
        scale[scale == 0] = 1.0
        # Evaluation may run this without gradients, so they are switched on here.
        with torch.inference_mode(False), torch.enable_grad():
            x = torch.from_numpy((logits - center) / scale)
            y, mask = torch.from_numpy(targets), torch.from_numpy(counted)
            slopes = torch.from_numpy(scale.copy()).requires_grad_()
            shifts = torch.from_numpy(center.copy()).requires_grad_()
            optimizer = torch.optim.LBFGS(
                [slopes, shifts],
                max_iter=500,
                tolerance_grad=1e-9,
                tolerance_change=1e-14,
                line_search_fn="strong_wolfe",
            )

            def loss() -> torch.Tensor:
                optimizer.zero_grad()
                z = slopes * x + shifts
                if kind == "multi_label":
                    value = F.binary_cross_entropy_with_logits(z, y, weight=mask, reduction="sum") / mask.sum().clamp(
                        min=1
                    )
                else:
                    value = F.cross_entropy(z, y)
                value.backward()
                return value

            optimizer.step(loss)
            factors = slopes.detach().numpy() / scale
            if kind == "binary":  # which they are but for rounding
                factors[:] = factors.mean()
            offsets = shifts.detach().numpy() - factors * center
        return cls(tuple(factors.tolist()), tuple(offsets.tolist()))

    def probabilities(self, logits: Floats, kind: Kind) -> Floats:
        """Returns the probabilities of the scaled and shifted logits."""
        return probabilities_of(logits * np.array(self.factors) + np.array(self.offsets), kind)

    def check(self, kind: Kind, num_classes: int) -> None:
        """Raises a ValueError unless there is a factor for each class."""
        if len(self.factors) != num_classes:
            raise ValueError(f"calibration has {len(self.factors)} factors and there are {num_classes} labels")


@dataclass(frozen=True)
class IsotonicScaling(Calibration):
    """Replaces each class's probability by the rising curve nearest to how often the class came true.

    For C classes each has its own curve, against the rest, and a row's probabilities are then divided by their sum.
    A class that has no rows, or all of them, keeps its probability. Curves reach 0 and 1, so the likelihood of new
    rows can be infinite, and level stretches make ties: it takes more rows than the other methods, about 1,000.

    Args:
        curves: One per class; one for binary, that of the second class.

    Source: B. Zadrozny, C. Elkan, Transforming classifier scores into accurate multiclass probability estimates,
    KDD 2002.
    """

    method = "isotonic"

    curves: tuple[RisingCurve, ...]

    @classmethod
    def fit(cls, logits: Floats, labels: Integers, kind: Kind) -> Self:
        """Fits a curve for each class."""
        p = probabilities_of(logits, kind)
        truth = labels if kind == "multi_label" else one_hot(labels, logits.shape[1]).astype(np.int64)
        classes = [1] if kind == "binary" else range(logits.shape[1])
        return cls(tuple(_class_curve(p[:, k], truth[:, k]) for k in classes))

    def probabilities(self, logits: Floats, kind: Kind) -> Floats:
        """Returns the heights of the curves, which sum to 1 unless classes are independent."""
        p = probabilities_of(logits, kind)
        if kind == "binary":
            second = self.curves[0](p[:, 1])
            return np.stack([1 - second, second], axis=1)
        calibrated = np.stack([curve(p[:, k]) for k, curve in enumerate(self.curves)], axis=1)
        if kind == "multi_label":
            return calibrated
        total = calibrated.sum(axis=1, keepdims=True)
        # Where every curve says 0 nothing is known; the model's own probabilities stay.
        return np.where(total > 0, calibrated / np.where(total > 0, total, 1), p)

    def check(self, kind: Kind, num_classes: int) -> None:
        """Raises a ValueError unless there is a curve for each class."""
        expected = 1 if kind == "binary" else num_classes
        if len(self.curves) != expected:
            raise ValueError(
                f"calibration has {len(self.curves)} curves; {kind} with {num_classes} labels takes {expected}"
            )


def _class_curve(scores: Floats, truth: Integers) -> RisingCurve:
    counted = truth != IGNORED_LABEL
    if len(np.unique(truth[counted])) < 2:
        return IDENTITY
    return fit_rising_curve(scores[counted], truth[counted].astype(np.float64))


def _targets(labels: Integers, kind: Kind, num_classes: int) -> tuple[Floats, Floats]:
    """Returns what the probabilities are fitted to, and 1 where a target counts, both ``[N, C]``."""
    if kind == "multi_label":
        counted = (labels != IGNORED_LABEL).astype(np.float64)
        return (len(labels) * (labels * counted) + 0.5) / (len(labels) + 1), counted
    true = one_hot(labels, num_classes)
    return (len(labels) * true + 1 / num_classes) / (len(labels) + 1), np.ones_like(true)


def calibration_from_dict(data: dict[str, Any]) -> Calibration:
    """Reads what `Calibration.to_dict` gave.

    Raises:
        ValueError: If the method is unknown or its numbers are not those it takes.
    """
    numbers = {key: value for key, value in data.items() if key != "method"}
    try:
        match data.get("method"):
            case "temperature":
                return TemperatureScaling(**numbers)
            case "vector":
                return VectorScaling(**{key: tuple(value) for key, value in numbers.items()})
            case "isotonic":
                curves = [RisingCurve(tuple(curve["scores"]), tuple(curve["values"])) for curve in data["curves"]]
                return IsotonicScaling(**{**numbers, "curves": tuple(curves)})
    except (TypeError, KeyError) as error:
        raise ValueError(f"calibration by {data['method']} has other numbers than it takes: {error}") from error
    raise ValueError(f"calibration method is {data.get('method')!r}; it can be temperature, vector or isotonic")
