import pytest
import torch
from jsonargparse import ArgumentParser
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision

from lit_trainer.callbacks.lr_schedule import LRSchedule
from lit_trainer.optim.optimizer import OptimizerSpec
from lit_trainer.optim.schedules import Constant, Cosine, Linear
from lit_trainer.optim.warmup import multiplier
from tests.callbacks.toy_task import quiet_trainer, rows, toy_task, weights

# Raised inside Lightning 2.6.6 with torch 2.13.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")


class RatesUsed(Callback):
    """Writes down the rates that each optimizer step really used, by group."""

    def __init__(self):
        self.steps = []

    def on_fit_start(self, trainer, pl_module):
        for optimizer in trainer.optimizers:
            optimizer.register_step_post_hook(
                lambda optimizer, args, kwargs: self.steps.append([float(g["lr"]) for g in optimizer.param_groups])
            )

    @property
    def first_group(self):
        return [rates[0] for rates in self.steps]


def fit(tmp_path, schedule, num_steps, num_batches=4, spec=None, ckpt_path=None, task=None, **kwargs):
    used = RatesUsed()
    task = task or toy_task(spec or OptimizerSpec(name="torch.optim.SGD", lr=0.5), num_steps_total=num_steps)
    callbacks = [schedule, used, *kwargs.pop("callbacks", [])]
    trainer = quiet_trainer(tmp_path, **{"max_epochs": 1, "callbacks": callbacks} | kwargs)
    trainer.fit(task, rows(num_batches), ckpt_path=ckpt_path)
    return used, trainer, task


def test_every_step_uses_base_rate_times_schedule(tmp_path):
    used, _, _ = fit(tmp_path, LRSchedule(Cosine(floor=0.1), warmup_steps=2), num_steps=8, max_epochs=2)
    assert used.first_group == [0.5 * multiplier(Cosine(floor=0.1), k, 8, 2) for k in range(8)]
    assert used.first_group[:3] == [0.0, 0.25, 0.5]


def test_constant_without_warmup_changes_nothing(tmp_path):
    _, _, plain = fit(tmp_path, RatesUsed(), num_steps=4)
    _, _, scheduled = fit(tmp_path, LRSchedule(Constant()), num_steps=4)
    for name, weight in weights(plain).items():
        assert torch.equal(weight, weights(scheduled)[name])


@pytest.mark.parametrize("warmup_fraction", [None, 0.2])
def test_steps_are_optimizer_steps_under_accumulation(tmp_path, warmup_fraction):
    """Lightning #1476: 17 batches, accumulated by 4, are 5 optimizer steps, and the rate ends at 0 after the last."""
    schedule = LRSchedule(Linear(), warmup_fraction=warmup_fraction)
    used, _, _ = fit(tmp_path, schedule, num_steps=10, num_batches=17, accumulate_grad_batches=4, max_epochs=2)
    warmup = 0 if warmup_fraction is None else 2
    assert used.first_group == [0.5 * multiplier(Linear(), k, 10, warmup) for k in range(10)]
    assert used.first_group[-1] == pytest.approx(0.5 / (10 - warmup))
    assert multiplier(Linear(), 10, 10, warmup) == 0.0


def test_groups_keep_their_ratio(tmp_path):
    """Automodel #2961: layer-wise rates together with groups that do not decay, under a schedule."""
    spec = OptimizerSpec(name="torch.optim.SGD", lr=0.5, layer_decay=0.5, head_lr=2.0, head="head", weight_decay=0.1)
    used, trainer, _ = fit(tmp_path, LRSchedule(Linear(), warmup_steps=1), num_steps=4, spec=spec)
    names = [group["name"] for group in trainer.optimizers[0].param_groups]
    bases = [group["initial_lr"] for group in trainer.optimizers[0].param_groups]
    assert len(names) > 4
    for step, rates in enumerate(used.steps):
        assert rates == [base * multiplier(Linear(), step, 4, 1) for base in bases]
    assert dict(zip(names, bases, strict=True))["head.no_decay"] == 2.0


class ScalerOnCpu(MixedPrecision):
    """Mixed precision that counts the steps its scaler skips, as the package's plugin does."""

    def __init__(self):
        super().__init__("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=4.0))
        self.num_skipped_steps = 0

    def optimizer_step(self, optimizer, model, closure, **kwargs):
        stepped = []
        handle = optimizer.register_step_post_hook(lambda *args: stepped.append(True))
        result = super().optimizer_step(optimizer, model=model, closure=closure, **kwargs)
        handle.remove()
        self.num_skipped_steps += not stepped
        return result

    def autocast_context_manager(self):
        return torch.autocast("cpu", dtype=torch.bfloat16)  # float16 is not fast, or not there, on every CPU


class OverflowAt(Callback):
    def __init__(self, batches):
        self.batches = batches

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        pl_module.loss_factor = float("inf") if batch_idx in self.batches else 1.0


def test_skipped_steps_do_not_use_up_the_schedule(tmp_path):
    """Lightning #5558, #16228, #21339: three overflows, and the rate stands still."""
    spec = OptimizerSpec(name="torch.optim.SGD", lr=0.5, fused=False)
    schedule = LRSchedule(Linear(), warmup_steps=2)
    used, trainer, _ = fit(
        tmp_path,
        schedule,
        num_steps=7,
        num_batches=7,
        spec=spec,
        plugins=[ScalerOnCpu()],
        callbacks=[OverflowAt({0, 1, 4})],
    )
    assert trainer.global_step == 7
    assert trainer.precision_plugin.num_skipped_steps == 3
    assert used.first_group == [0.5 * multiplier(Linear(), k, 7, 2) for k in range(4)]


@pytest.mark.parametrize("name", ["torch.optim.SGD", "torch.optim.AdamW"])
@pytest.mark.parametrize("own_groups", [True, False])
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(tmp_path, name, own_groups):
    def task():
        task = toy_task(OptimizerSpec(name=name, lr=0.05, head_lr=0.2, head="head"), num_steps_total=8)
        if not own_groups:
            task.configure_optimizers = lambda: torch.optim.AdamW(task.parameters(), lr=0.05)
        return task

    straight, _, whole = fit(tmp_path, LRSchedule(Cosine(), warmup_steps=2), 8, task=task(), max_epochs=2)
    _, trainer, _ = fit(tmp_path, LRSchedule(Cosine(), warmup_steps=2), 8, task=task())
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    rest, _, resumed = fit(
        tmp_path, LRSchedule(Cosine(), warmup_steps=2), 8, task=task(), max_epochs=2, ckpt_path=tmp_path / "half.ckpt"
    )
    assert rest.steps == straight.steps[4:]
    for key, weight in weights(whole).items():
        assert torch.equal(weight, weights(resumed)[key]), key


@pytest.mark.parametrize("own_groups", [True, False])
def test_a_rate_changed_for_the_resume_beats_the_checkpoints(tmp_path, own_groups):
    def task(lr):
        task = toy_task(OptimizerSpec(name="torch.optim.SGD", lr=lr), num_steps_total=12)
        if not own_groups:
            task.configure_optimizers = lambda: torch.optim.SGD(task.parameters(), lr=lr)
        return task

    path = tmp_path / "half.ckpt"
    for lr in (0.5, 0.25, 0.125):  # twice, so that nothing is multiplied twice
        epochs = {0.5: 1, 0.25: 2, 0.125: 3}[lr]
        used, trainer, _ = fit(
            tmp_path, LRSchedule(Linear()), 12, task=task(lr), max_epochs=epochs, ckpt_path=path if epochs > 1 else None
        )
        trainer.save_checkpoint(path)
        first = 4 * (epochs - 1)
        assert used.first_group == [lr * multiplier(Linear(), k, 12) for k in range(first, first + 4)]


def test_a_second_fit_with_the_same_optimizer_starts_from_the_base_rate(tmp_path):
    task = toy_task(num_steps_total=4)
    optimizer = OptimizerSpec(name="torch.optim.SGD", lr=0.5).build(task)
    task.configure_optimizers = lambda: optimizer
    first, _, _ = fit(tmp_path, LRSchedule(Linear()), 4, task=task)
    second, _, _ = fit(tmp_path, LRSchedule(Linear()), 4, task=task)
    assert second.steps[:4] == first.steps[:4]


def test_a_rate_held_in_a_tensor_stays_the_same_tensor(tmp_path):
    task = toy_task(num_steps_total=4)
    rate = torch.tensor(0.5)
    task.configure_optimizers = lambda: torch.optim.AdamW(task.parameters(), lr=rate, capturable=False, foreach=False)
    used, trainer, _ = fit(tmp_path, LRSchedule(Linear()), 4, task=task)
    assert trainer.optimizers[0].param_groups[0]["lr"] is rate
    assert used.first_group == [0.5, 0.375, 0.25, 0.125]


def test_rates_are_logged_by_group_once_for_each_logging_step(tmp_path):
    logger = CSVLogger(tmp_path, name="", version="")
    spec = OptimizerSpec(name="torch.optim.SGD", lr=0.5, head_lr=1.0, head="head")
    fit(
        tmp_path,
        LRSchedule(Linear()),
        num_steps=8,
        num_batches=16,
        spec=spec,
        accumulate_grad_batches=2,
        logger=logger,
        log_every_n_steps=4,
    )
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines[0] == "lr/backbone,lr/head,step"
    assert [[float(value) for value in line.split(",")] for line in lines[1:]] == [
        [0.5 * 5 / 8, 5 / 8, 3],
        [0.5 * 1 / 8, 1 / 8, 7],
    ]


def test_groups_without_names_are_logged_by_number(tmp_path):
    task = toy_task(num_steps_total=2)
    task.configure_optimizers = lambda: torch.optim.SGD(
        [{"params": task.model.embed.parameters()}, {"params": task.model.head.parameters()}], lr=0.5
    )
    logger = CSVLogger(tmp_path, name="", version="")
    fit(tmp_path, LRSchedule(Constant()), 2, num_batches=2, task=task, logger=logger, log_every_n_steps=1)
    assert (tmp_path / "metrics.csv").read_text().splitlines()[0] == "lr/0,lr/1,step"


def test_an_lr_scheduler_beside_it_is_refused(tmp_path):
    task = toy_task(num_steps_total=4)

    def configure_optimizers():
        optimizer = torch.optim.SGD(task.parameters(), lr=0.5)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    task.configure_optimizers = configure_optimizers
    with pytest.raises(ValueError, match="LRSchedule and the lr_scheduler StepLR that configure_optimizers returns"):
        fit(tmp_path, LRSchedule(Linear()), 4, task=task)


def test_two_of_it_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"trainer.callbacks has LRSchedule more than once"):
        fit(tmp_path, LRSchedule(Linear()), 4, callbacks=[LRSchedule(Cosine())])


def test_a_task_that_does_not_know_its_steps_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"LRSchedule needs the number of optimizer steps .* give ToyTask an attribute"
    ):
        fit(tmp_path, LRSchedule(Linear()), None)


def test_a_run_without_an_end_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"LRSchedule needs a run with an end, and num_steps_total is -1; set trainer.max"
    ):
        fit(tmp_path, LRSchedule(Linear()), -1)


def test_two_kinds_of_warmup_are_refused_at_once():
    with pytest.raises(ValueError, match="give warmup_steps or warmup_fraction, not both"):
        LRSchedule(Linear(), warmup_steps=1, warmup_fraction=0.1)


def test_a_warmup_longer_than_the_run_is_said(tmp_path):
    with pytest.warns(UserWarning, match="9 warm-up steps leave none of the run's 4; the base rate is never reached"):
        used, _, _ = fit(tmp_path, LRSchedule(Linear(), warmup_steps=9), 4)
    assert used.first_group == [0.5 * k / 9 for k in range(4)]


def test_training_past_the_planned_end_stays_at_the_end(tmp_path):
    used, _, _ = fit(tmp_path, LRSchedule(Linear(floor=0.5)), num_steps=2)
    assert used.first_group == [0.5, 0.375, 0.25, 0.25]


def halving(progress: float) -> float:
    """A user's schedule, found by its import path."""
    return 1.0 - 0.5 * progress


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        (f"{{schedule: {__name__}.halving, warmup_fraction: 0.1}}", 0.75),
        (
            "{schedule: {class_path: lit_trainer.optim.schedules.Cosine, init_args: {floor: 0.5}}, warmup_steps: 3}",
            0.75,
        ),
        (
            "{schedule: {class_path: lit_trainer.optim.schedules.WarmupStableDecay, init_args: {decay_fraction: 1.0, "
            "decay: {class_path: lit_trainer.optim.schedules.Linear, init_args: {floor: 0.2}}}}}",
            0.6,
        ),
    ],
)
def test_it_is_set_from_yaml(yaml, expected):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--callback", type=Callback)
    text = f"{{class_path: lit_trainer.callbacks.lr_schedule.LRSchedule, init_args: {yaml}}}"
    args = parser.parse_args([f"--callback={text}"])
    callback = parser.instantiate(args).callback
    assert callback.schedule(0.5) == pytest.approx(expected)
    again = parser.instantiate(parser.parse_string(parser.dump(args))).callback
    assert again.schedule(0.5) == callback.schedule(0.5)
