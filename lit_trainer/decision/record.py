"""What a decision rule was fitted on, and how well it did on rows that it was not fitted on."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from lit_trainer.decision.intervals import Estimate


@dataclass(frozen=True)
class BeforeAfter:
    """A number of the model's own probabilities, and of the calibrated ones.

    Args:
        before: Of the model's own.
        after: Of the calibrated ones, each row's calibrated without it; None where that was not measured.
    """

    before: float
    after: float | None


@dataclass(frozen=True)
class FitRecord:
    """Where a rule comes from, and how good its like was on rows that it was not fitted on.

    Args:
        split: The name of the rows' split.
        num_rows: How many rows had labels.
        criterion: What decisions were chosen by, as YAML would have it; None if by nothing.
        folds: The parts of cross-fitting; None if the rows were used whole, which leaves nothing to measure on.
        level: The share of resamples that each interval covers.
        metric: What the criterion says of the decisions; for multi_label the mean over the classes that have both
            outcomes.
        default_metric: The same for the most probable class, or 0.5, on the same rows.
        required: What the criterion requires to be large enough, of the same decisions; None if nothing.
        default_required: The same for the most probable class, or 0.5.
        thresholds: One for each threshold of the rule, its value and interval; None where the default was kept, and
            instead of them all where costs tell the thresholds.
        calibration_error: Before and after calibration.
        brier_score: Before and after calibration.
        notes: What a reader must know, in words.
        step: The optimizer step of the weights that gave the logits; None if that is not known.
    """

    split: str
    num_rows: int
    criterion: Mapping[str, Any] | None
    folds: int | None
    level: float
    metric: Estimate | None
    default_metric: Estimate | None
    required: Estimate | None
    default_required: Estimate | None
    thresholds: tuple[Estimate | None, ...] | None
    calibration_error: BeforeAfter
    brier_score: BeforeAfter
    notes: tuple[str, ...]
    step: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the record as plain data."""
        return asdict(self)


def record_from_dict(data: Mapping[str, Any]) -> FitRecord:
    """Reads what `FitRecord.to_dict` gave.

    Raises:
        ValueError: If a part is missing, unknown or of another form.
    """
    check_keys("fitted_on", data, {field.name for field in fields(FitRecord)})
    estimates = {key: _estimate(data[key]) for key in ("metric", "default_metric", "required", "default_required")}
    thresholds = data["thresholds"]
    try:
        return FitRecord(
            **{
                **data,
                **estimates,
                "thresholds": None if thresholds is None else tuple(_estimate(estimate) for estimate in thresholds),
                "calibration_error": BeforeAfter(**data["calibration_error"]),
                "brier_score": BeforeAfter(**data["brier_score"]),
                "notes": tuple(data["notes"]),
            }
        )
    except TypeError as error:
        raise ValueError(f"fitted_on is of another form: {error}") from error


def check_keys(where: str, data: Mapping[str, Any], expected: set[str]) -> None:
    """Raises a ValueError unless the keys are exactly those expected."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{where} is {data!r}; it is a mapping of {', '.join(sorted(expected))}")
    for what, keys in (("lacks", expected - set(data)), ("has the unknown", set(data) - expected)):
        if keys:
            raise ValueError(f"{where} {what} {', '.join(sorted(map(str, keys)))}")


def _estimate(data: Mapping[str, float] | None) -> Estimate | None:
    return None if data is None else Estimate(**data)
