import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jsonargparse import ArgumentParser
from lightning.pytorch import Callback

from lit_trainer.callbacks.plateau_early_stopping import PlateauEarlyStopping
from tests.callbacks.toy_task import ToyTask, quiet_trainer, rows
from tests.callbacks.two_ranks import run_on_two_ranks

# Raised inside Lightning 2.6.6 with torch 2.13.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*ended before the epoch ended and your dataloader is not resumable"),
]

NUM_BATCHES = 4
nan, inf = math.nan, math.inf


class Validated(ToyTask):
    """Logs, after so many optimizer steps, one of a list of values."""

    def __init__(self, values, every=NUM_BATCHES, name="val/loss"):
        super().__init__()
        self.values = values
        self.every = every
        self.name = name
        self.validated = []

    def validation_step(self, batch, batch_idx):
        if self.trainer.sanity_checking:
            self.log(self.name, 1.0, batch_size=1)

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            self.validated.append(self.trainer.global_step)
            self.log(self.name, self.values[self.trainer.global_step // self.every - 1])


def fit(tmp_path, values, stopping, every=NUM_BATCHES, name="val/loss", ckpt_path=None, **kwargs):
    """Trains until it stops; returns the optimizer steps at which there was a validation."""
    task = Validated(values, every, name)
    callbacks = [stopping, *kwargs.pop("callbacks", [])]
    trainer = quiet_trainer(tmp_path, **{"max_epochs": len(values), "callbacks": callbacks} | kwargs)
    trainer.fit(task, rows(NUM_BATCHES), rows(1), ckpt_path=ckpt_path)
    return task.validated, trainer


def stops_after(values, **settings):
    """How many values are taken up until it would stop, without a run; None if it never does."""
    stopping = PlateauEarlyStopping(**settings)
    for count in range(1, len(values) + 1):
        stopping.load_state_dict({"history": [[step + 1, value] for step, value in enumerate(values[:count])]})
        if stopping.verdict().reason:
            return count
    return None


def test_it_stops_after_patience_validations_without_improvement(tmp_path):
    steps, _ = fit(tmp_path, [3.0, 2.0, 2.5, 2.0, 2.1, 1.0, 1.0], PlateauEarlyStopping(patience=3))
    assert len(steps) == 5


def test_it_goes_on_while_the_metric_improves(tmp_path):
    steps, _ = fit(tmp_path, [5.0, 4.0, 4.0, 3.0, 3.0, 2.0], PlateauEarlyStopping(patience=2))
    assert len(steps) == 6


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_direction_counts(mode):
    falling = [0.9, 0.8, 0.7, 0.6, 0.5]
    assert stops_after(falling, mode=mode, patience=2) == (None if mode == "min" else 3)
    assert stops_after(falling[::-1], mode=mode, patience=2) == (3 if mode == "min" else None)


def test_a_relative_improvement_goes_by_the_size_of_the_metric():
    """An absolute difference of 1e-3 would stop a loss of 1e-3 that still improves by a tenth each time."""
    small = [1e-3 * 0.9**k for k in range(8)]
    assert stops_after(small, patience=2, min_improvement=1e-3) == 3
    assert stops_after(small, patience=2, min_improvement=0.05, relative=True) is None
    assert stops_after(small, patience=2, min_improvement=0.15, relative=True) is None  # two of them are 0.19


def test_small_improvements_add_up_against_the_same_best():
    assert stops_after([1.0, 0.96, 0.92, 0.88, 0.84], patience=3, min_improvement=0.1) is None
    assert stops_after([1.0, 0.99, 0.98, 0.97, 0.96], patience=3, min_improvement=0.1) == 4


def test_a_relative_improvement_of_negative_values():
    assert stops_after([-1.0, -1.2, -1.4, -1.7], patience=1, min_improvement=0.1, relative=True) is None
    assert stops_after([-1.0, -1.05, -1.2], patience=1, min_improvement=0.1, relative=True) == 2


def test_an_equal_value_is_no_improvement():
    assert stops_after([1.0, 1.0, 1.0], patience=2) == 3


def test_it_waits_until_the_metric_hardly_fluctuates():
    """Not improved for three validations, and within five per cent of each other."""
    swinging = [1.0, 1.3, 1.1, 1.3, 1.21, 1.2, 1.19]
    assert stops_after(swinging, patience=3) == 4
    assert stops_after(swinging, patience=3, fluctuation=0.05) == 7
    assert stops_after(swinging[:-1], patience=3, fluctuation=0.05) is None


@pytest.mark.parametrize("value", [0.0, -2.0])
def test_a_metric_that_stands_still_has_no_fluctuation(value):
    assert stops_after([value] * 3, patience=2, fluctuation=0.01) == 3


def test_a_swing_around_zero_is_a_fluctuation():
    assert stops_after([-1.0, 1.0, -1.0, 1.0, -1.0], patience=2, fluctuation=0.5) is None


def test_the_first_validations_do_not_count():
    """Lightning #16881: the metric gets worse while the rate warms up, and improves after that."""
    warming = [1.0, 2.0, 3.0, 4.0, 3.5, 3.0, 2.5]
    assert stops_after(warming, patience=3) == 4
    assert stops_after(warming, patience=3, warmup_evaluations=3) is None
    assert stops_after(warming, patience=3, warmup_steps=3) is None
    assert stops_after(warming, patience=3, warmup_steps=2) == 6
    assert stops_after([1.0, 2.0, 3.0, 3.0, 3.0], patience=2, warmup_evaluations=2) == 5


def test_validations_count_not_epochs(tmp_path):
    """Lightning #9151: with a validation every third epoch, patience 2 stops after the third validation."""
    steps, trainer = fit(tmp_path, [1.0] * 30, PlateauEarlyStopping(patience=2), every=12, check_val_every_n_epoch=3)
    assert steps == [12, 24, 36]
    assert trainer.current_epoch == 9


def test_validations_within_an_epoch_count(tmp_path):
    steps, trainer = fit(tmp_path, [1.0] * 9, PlateauEarlyStopping(patience=2), every=2, val_check_interval=0.5)
    assert steps == [2, 4, 6]
    assert trainer.global_step == 6


def test_two_validations_of_the_same_weights_count_once(tmp_path):
    """Two micro-batches apart, with no optimizer step in between."""
    stopping = PlateauEarlyStopping(patience=2)
    steps, _ = fit(
        tmp_path, [1.0] * 9, stopping, every=1, accumulate_grad_batches=4, val_check_interval=0.5, max_epochs=6
    )
    assert steps[-1] == 3
    assert len(steps) > len(set(steps))


@pytest.mark.parametrize("num_sanity_val_steps", [0, 2])
def test_the_sanity_check_does_not_count(tmp_path, num_sanity_val_steps):
    stopping = PlateauEarlyStopping(patience=1)
    steps, _ = fit(tmp_path, [2.0, 1.5, 1.5, 1.0], stopping, num_sanity_val_steps=num_sanity_val_steps)
    assert steps == [4, 8, 12]
    assert stopping.best == 1.5


@pytest.mark.parametrize("limit", [{"min_epochs": 6}, {"min_steps": 24}])
def test_a_metric_that_recovered_before_the_minimum_is_not_stopped_there(tmp_path, limit):
    """Lightning #19966: the wish to stop stayed and was granted at min_epochs."""
    values = [1.0, 2.0, 2.0, 2.0, 0.5, 0.4, 0.3, 0.3, 0.3, 0.3]
    steps, _ = fit(tmp_path, values, PlateauEarlyStopping(patience=2), **limit)
    assert len(steps) == 9


@pytest.mark.parametrize("limit", [{"min_epochs": 5}, {"min_steps": 20}])
def test_a_plateau_that_is_still_there_at_the_minimum_stops_there(tmp_path, limit):
    steps, trainer = fit(tmp_path, [1.0] * 9, PlateauEarlyStopping(patience=1), **limit)
    assert (len(steps), trainer.current_epoch) == (5, 5)


def saved(tmp_path, trainer):
    path = tmp_path / f"{trainer.global_step}.ckpt"
    trainer.save_checkpoint(path)
    return path


def test_a_run_that_is_killed_again_and_again_still_stops(tmp_path):
    """Transformers #28544: each restart forgot how long it had waited."""
    path, seen = None, []
    for max_epochs in (2, 4, 6):
        stopping = PlateauEarlyStopping(patience=3)
        steps, trainer = fit(tmp_path, [1.0] * 6, stopping, ckpt_path=path, max_epochs=max_epochs)
        seen += steps
        path = saved(tmp_path, trainer)
    assert seen == [4, 8, 12, 16]
    assert stopping.reason == "val/loss has not improved on 1 for 3 validations and is now 1"


def test_patience_can_be_changed_for_a_resume_and_the_best_value_comes_back(tmp_path):
    values = [3.0, 1.0, 2.0, 2.0, 2.0, 2.0]
    first, trainer = fit(tmp_path, values, PlateauEarlyStopping(patience=1))
    assert first == [4, 8, 12]
    path = saved(tmp_path, trainer)
    stopping = PlateauEarlyStopping(patience=3)
    rest, _ = fit(tmp_path, values, stopping, ckpt_path=path)
    assert rest == [16, 20]
    assert stopping.best == 1.0
    assert torch.load(path, weights_only=True)["callbacks"][stopping.state_key] == {
        "history": [[4, 3.0], [8, 1.0], [12, 2.0]]
    }


@pytest.mark.parametrize("every", [4, 2])
def test_a_run_interrupted_right_at_its_plateau_stops_at_once(tmp_path, every):
    """Saved within the validation that decided: an uninterrupted run trains no further either."""

    class SaveAfterValidation(Callback):
        def on_validation_end(self, trainer, pl_module):
            if not trainer.sanity_checking:
                saved(tmp_path, trainer)

    settings = {"every": every, "val_check_interval": every, "max_epochs": 9, "callbacks": [SaveAfterValidation()]}
    steps, _ = fit(tmp_path, [1.0] * 20, PlateauEarlyStopping(patience=2), **settings)
    assert steps == [every, 2 * every, 3 * every]
    path = tmp_path / f"{3 * every}.ckpt"
    resumed = PlateauEarlyStopping(patience=2)
    _, trainer = fit(tmp_path, [1.0] * 20, resumed, ckpt_path=path, **settings)
    assert trainer.global_step == 3 * every
    assert resumed.reason is not None


def test_a_second_fit_starts_anew(tmp_path):
    stopping = PlateauEarlyStopping(patience=2)
    assert len(fit(tmp_path, [1.0] * 9, stopping)[0]) == 3
    assert len(fit(tmp_path, [1.0] * 9, stopping)[0]) == 3


def test_validating_outside_of_training_is_no_evaluation(tmp_path):
    stopping = PlateauEarlyStopping(patience=2)
    _, trainer = fit(tmp_path, [1.0, 0.5], stopping)
    history = stopping.state_dict()
    trainer.validate(Validated([9.0, 9.0]), rows(1), verbose=False)
    assert stopping.state_dict() == history


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_what_is_not_finite_stops_if_it_should(tmp_path, value):
    stopping = PlateauEarlyStopping(patience=3, on_nan="stop")
    assert len(fit(tmp_path, [1.0, 0.5, value, 0.4], stopping)[0]) == 3
    assert stopping.reason == f"val/loss is {value}"
    assert stopping.best == 0.5


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_what_is_not_finite_is_passed_over_if_it_should(value):
    values = [1.0, value, 0.5, value, 0.6, value, 0.6]
    assert stops_after(values, patience=2, on_nan="ignore") == 7
    assert stops_after([value, value, 1.0, 0.5], patience=1, on_nan="ignore") is None
    assert stops_after([value] * 5, patience=1, on_nan="ignore", fluctuation=0.1) is None


def test_what_is_not_finite_raises_if_it_should(tmp_path):
    with pytest.raises(ValueError, match="val/loss is nan after optimizer step 8"):
        fit(tmp_path, [1.0, nan], PlateauEarlyStopping(on_nan="raise"))
    warm = PlateauEarlyStopping(on_nan="raise", warmup_evaluations=2)
    assert len(fit(tmp_path, [1.0, nan, 1.0], warm)[0]) == 3


@pytest.mark.parametrize("num_sanity_val_steps", [0, 2])
def test_a_misspelt_metric_is_refused_with_the_names_there_are(tmp_path, num_sanity_val_steps):
    """Transformers #28530: it was silently off."""
    stopping = PlateauEarlyStopping(monitor="val/f1", mode="max")
    with pytest.raises(
        ValueError,
        match=r"PlateauEarlyStopping.monitor: validation logs no single number as val/f1; it logs val/F1. "
        r"Did you mean val/F1\?",
    ):
        fit(tmp_path, [1.0], stopping, name="val/F1", num_sanity_val_steps=num_sanity_val_steps)


def test_a_misspelt_metric_is_refused_before_the_first_step(tmp_path):
    class NoStep(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            pytest.fail("it trained")

    with pytest.raises(ValueError, match="validation logs no single number as val/los; it logs val/loss"):
        fit(tmp_path, [1.0], PlateauEarlyStopping(monitor="val/los"), callbacks=[NoStep()])


def test_a_run_without_validation_says_that_nothing_stops_it(tmp_path):
    trainer = quiet_trainer(tmp_path, max_epochs=1, limit_val_batches=0, callbacks=[PlateauEarlyStopping()])
    with pytest.warns(UserWarning, match="there is no validation to log val/loss, so it stops nothing"):
        trainer.fit(Validated([1.0]), rows(2), rows(1))


def test_two_that_watch_different_metrics_keep_their_own_history(tmp_path):
    class Two(Validated):
        def on_validation_epoch_end(self):
            super().on_validation_epoch_end()
            self.log("val/other", 5.0)

    one, other = PlateauEarlyStopping(patience=9), PlateauEarlyStopping("val/other", patience=2)
    task = Two([3.0, 2.0, 1.0, 0.0])
    quiet_trainer(tmp_path, max_epochs=4, callbacks=[one, other]).fit(task, rows(NUM_BATCHES), rows(1))
    assert len(task.validated) == 3
    assert (one.best, other.best) == (1.0, 5.0)
    assert one.state_key != other.state_key


@given(
    values=st.lists(st.floats(-100, 100), min_size=1, max_size=20),
    patience=st.integers(1, 4),
    mode=st.sampled_from(["min", "max"]),
)
def test_it_stops_exactly_when_the_last_values_are_no_better_than_what_was_before(values, patience, mode):
    better = min if mode == "min" else max
    expected = None
    for count in range(patience + 1, len(values) + 1):
        before, last = values[: count - patience], values[count - patience : count]
        if better(before + last) == better(before):
            expected = count
            break
    assert stops_after(values, patience=patience, mode=mode) == expected


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"mode": "down"}, "mode must be min or max, not down"),
        ({"on_nan": "skip"}, "on_nan must be stop, ignore or raise, not skip"),
        ({"patience": 0}, "patience must be 1 or more, not 0"),
        ({"min_improvement": -0.1}, "min_improvement must be 0 or more, not -0.1"),
        ({"min_improvement": nan}, "min_improvement must be 0 or more, not nan"),
        ({"fluctuation": 0.0}, "fluctuation must be above 0, not 0.0"),
        ({"warmup_steps": -1}, "warmup_evaluations and warmup_steps must be 0 or more, not 0 and -1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, text):
    with pytest.raises(ValueError, match=text):
        PlateauEarlyStopping(**settings)


def test_it_is_set_from_yaml():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--callback", type=Callback)
    text = """
class_path: lit_trainer.callbacks.plateau_early_stopping.PlateauEarlyStopping
init_args: {monitor: val/f1, mode: max, fluctuation: 0.05, on_nan: ignore}"""
    callback = parser.instantiate(parser.parse_args([f"--callback={text}"])).callback
    assert (callback.mode, callback.fluctuation, callback.on_nan) == ("max", 0.05, "ignore")


ON_TWO_RANKS = """
import json
from lit_trainer.callbacks.plateau_early_stopping import PlateauEarlyStopping
from tests.callbacks.test_plateau_early_stopping import Validated
from tests.callbacks.toy_task import quiet_trainer, rows

results = []
for name in ("val/loss", "val/f1"):
    stopping = PlateauEarlyStopping(name, patience=2)
    trainer = quiet_trainer(".", devices=2, strategy="ddp", max_epochs=6, callbacks=[stopping],
                            use_distributed_sampler=False)
    # On rank 0 it is flat from the second value on; on rank 1, which was not synchronised, it improves.
    task = Validated([9.0, 8.0, 8.0, 8.0, 8.0, 8.0] if trainer.global_rank == 0 else [6.0, 5.0, 4.0, 3.0, 2.0, 1.0])
    try:
        trainer.fit(task, rows(4), rows(1))
        results.append([task.validated, stopping.best])
    except ValueError as error:
        results.append(str(error))
print("RESULT" + json.dumps(results))
"""


@pytest.mark.slow
def test_all_ranks_decide_alike(tmp_path):
    for output in run_on_two_ranks(ON_TWO_RANKS, tmp_path):
        stopped, refused = json.loads(output.partition("RESULT")[2])
        assert stopped == [[4, 8, 12, 16], 8.0]
        assert "validation logs no single number as val/f1; it logs val/loss" in refused
