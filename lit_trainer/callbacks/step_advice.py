"""What to do about a share of the step that is larger than it need be, one line each."""

from dataclasses import dataclass

from lit_trainer.callbacks.step_figures import StepFigures

MOST = {"data": 0.10, "padding": 0.30, "communication": 0.15, "optimizer": 0.25, "rest": 0.15, "idle": 0.50}
"""From which share on something is said."""


@dataclass(frozen=True)
class Setting:
    """What the advice depends on besides the figures.

    Args:
        device: The kind of the device: ``cpu``, ``cuda``, ...
        num_workers: Processes that load ahead on a rank.
        is_padding_free: Whether the model runs on real tokens only.
        num_micro_batches: Micro-batches of an optimizer step on a rank.
        attention_dropout: The probability with which attention drops a look.
        slow_dropout: Why dropout on a CPU is not computed by the compiled library, and what helps; empty if it is.
    """

    device: str = "cpu"
    num_workers: int = 0
    is_padding_free: bool = False
    num_micro_batches: int = 1
    attention_dropout: float = 0.0
    slow_dropout: str = ""


def advice(figures: StepFigures, setting: Setting) -> dict[str, str]:
    """Returns by topic what to do.

    Args:
        figures: Of some optimizer steps.
        setting: How they were made.
    """
    shares = {**figures.time_shares, "padding": figures.padding, "idle": figures.idle_share}
    lines = {
        "data": f"of the time goes into waiting for data: raise data.num_workers (now {setting.num_workers}), "
        "or make rows cheaper to load",
        "padding": "of the computed tokens are padding: "
        + (
            "some steps have fewer rows than there are micro-batches and ranks to fill; raise data.batch_size"
            if setting.is_padding_free
            else "set data.padding to auto, which leaves it out where the model can, and data.bucket_steps above 0"
        ),
        "communication": "of the time goes into waiting for the gradients of other ranks: more rows a rank, or more "
        "trainer.accumulate_grad_batches with a larger data.batch_size, need it less often; a slower rank shows here, "
        "too",
        "optimizer": "of the time goes into the optimizer's step, which costs the same for any number of rows: a "
        "larger data.batch_size needs it less often, and a class with a fused step (model.optimizer.fused) is quicker",
        "rest": "of the time goes into what is between the parts of a step: callbacks, logging, checkpoints; "
        "configs/overlays/profile.yaml shows which, and trainer.log_every_n_steps may be raised",
        "idle": "of the steps ended with an idle accelerator, which waited for Python: give it more at a time ("
        + (
            "fewer trainer.accumulate_grad_batches"
            if setting.num_micro_batches > 1
            else "a larger data.batch_size, or model.compile"
        )
        + ")",
    }
    found = {topic: f"{shares[topic]:.0%} {line}" for topic, line in lines.items() if shares[topic] > MOST[topic]}
    if (line := _about_dropout(setting)) is not None:
        found["dropout"] = line
    return found


def _about_dropout(setting: Setting) -> str | None:
    """Returns what the model's attention dropout keeps from being fast."""
    p = setting.attention_dropout
    if not p:
        return None
    if setting.device == "cuda" and setting.is_padding_free:
        return (
            f"attention drops {p:.0%}, which FlashAttention cannot do as it is done here: it runs padded. Without "
            "(model.config, attention dropout 0) a step is faster, and the training another"
        )
    if setting.device == "cpu" and setting.slow_dropout:
        return (
            f"dropout (in attention {p:.0%}) is not computed by compiled code and can take a third of a step: "
            f"{setting.slow_dropout}"
        )
    return None
