"""The multiplier of each optimizer step: a linear warm-up, composed with any schedule.

Of N optimizer steps, counted k = 0 ... N-1, the first W warm up. Step k runs at the multiplier of its beginning:

- while it warms up (k < W), at ``k / W`` of where the schedule starts, so that the first step has rate 0;
- after that, at ``schedule((k - W) / (N - W))``, so that step W has where the schedule starts, the last step is one
  short of the end, and the end itself, ``schedule(1)``, is where the rate is once all N are done.

These are the rates that the schedules of Transformers give, step by step.
"""

import math

from lit_trainer.optim.schedules import Schedule


def count_warmup_steps(num_steps: int, warmup_steps: int | None, warmup_fraction: float | None) -> int:
    """Returns the number of optimizer steps that warm up.

    Args:
        num_steps: Optimizer steps of the whole run.
        warmup_steps: Optimizer steps that warm up; may be more than the run has.
        warmup_fraction: The share of the run that warms up, in [0, 1], rounded up to a step.

    Raises:
        ValueError: If both are given, or one is out of its range.
    """
    if warmup_steps is not None and warmup_fraction is not None:
        raise ValueError(
            f"give warmup_steps or warmup_fraction, not both (warmup_steps={warmup_steps}, "
            f"warmup_fraction={warmup_fraction})"
        )
    if warmup_steps is not None:
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must be 0 or more, not {warmup_steps}")
        return warmup_steps
    if warmup_fraction is not None:
        if not 0.0 <= warmup_fraction <= 1.0:
            raise ValueError(f"warmup_fraction must be in [0, 1], not {warmup_fraction}")
        # 0.07 * 100 is a little above 7 in floating point, and must not be rounded up to 8.
        return math.ceil(warmup_fraction * num_steps - 1e-9)
    return 0


def multiplier(schedule: Schedule, step: int, num_steps: int, num_warmup_steps: int = 0) -> float:
    """Returns what the base rate is multiplied by for one optimizer step.

    Args:
        schedule: From progress in [0, 1] to a multiplier.
        step: The number of optimizer steps that were applied before this one. From `num_steps` on it is the end.
        num_steps: Optimizer steps of the whole run.
        num_warmup_steps: How many of them warm up.

    Raises:
        ValueError: If the schedule returns what cannot be a rate.
    """
    if step < num_warmup_steps:
        progress, warmth = 0.0, step / num_warmup_steps
    else:
        progress, warmth = min(1.0, (step - num_warmup_steps) / max(1, num_steps - num_warmup_steps)), 1.0
    value = schedule(progress)
    try:
        valid = math.isfinite(value) and value >= 0.0
    except TypeError:
        valid = False
    if not valid:
        name = getattr(schedule, "__qualname__", None) or repr(schedule)
        raise ValueError(
            f"schedule: {name} returned {value!r} at progress {progress:.6g}; "
            "a multiplier is a finite number and not negative"
        )
    return warmth * float(value)
