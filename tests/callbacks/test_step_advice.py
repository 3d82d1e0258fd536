"""Advice is given where a share is too large, and names the setting that helps."""

import pytest

from lit_trainer.callbacks.step_advice import Setting, advice
from lit_trainer.callbacks.step_figures import StepFigures

WELL = StepFigures(steps=100, samples=800, tokens=900, slots=1000, data=5, forward=30, backward=55, optimizer=10)


def test_all_is_well() -> None:
    assert advice(WELL, Setting()) == {}
    assert advice(StepFigures(), Setting()) == {}


@pytest.mark.parametrize(
    ("figures", "setting", "text"),
    [
        (StepFigures(data=2, forward=8), Setting(num_workers=3), "20% of the time goes into waiting for data: raise "
         "data.num_workers (now 3)"),
        (StepFigures(forward=1, tokens=4, slots=10), Setting(), "60% of the computed tokens are padding: set "
         "data.padding to auto"),
        (StepFigures(forward=1, tokens=4, slots=10), Setting(is_padding_free=True), "some steps have fewer rows"),
        (StepFigures(backward=8, communication=2), Setting(), "waiting for the gradients of other ranks"),
        (StepFigures(forward=6, optimizer=4), Setting(), "40% of the time goes into the optimizer's step"),
        (StepFigures(forward=6, rest=4), Setting(), "configs/overlays/profile.yaml"),
        (StepFigures(steps=10, forward=6, idle=9), Setting(), "90% of the steps ended with an idle accelerator, which "
         "waited for Python: give it more at a time (a larger data.batch_size, or model.compile)"),
        (StepFigures(steps=10, forward=6, idle=9), Setting(num_micro_batches=4), "fewer trainer.accumulate_grad_"),
        (WELL, Setting("cuda", is_padding_free=True, attention_dropout=0.1), "attention drops 10%, which FlashAtt"),
        (WELL, Setting(attention_dropout=0.1, slow_dropout="install a C++ compiler"), "can take a third of a step: "
         "install a C++ compiler"),
    ],
)  # fmt: skip
def test_one_share_too_large_is_one_line(figures: StepFigures, setting: Setting, text: str) -> None:
    (line,) = advice(figures, setting).values()
    assert text in line
    assert "\n" not in line


def test_dropout_that_costs_little_is_not_mentioned() -> None:
    assert advice(WELL, Setting("cpu", attention_dropout=0.1)) == {}
    assert advice(WELL, Setting("cuda", attention_dropout=0.1)) == {}
    assert advice(WELL, Setting("cpu", slow_dropout="install a C++ compiler")) == {}
