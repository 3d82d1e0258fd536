"""Faults that users reported of other systems, each made on the smallest input: the whole kind must be absent here.

The names of the tests are those of the reports. Reports about one loss, callback or file are tested beside it.
"""

import csv
import json
import warnings
from types import SimpleNamespace

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch import nn
from transformers import pipeline

from lit_trainer.callbacks.best_checkpoint import BestCheckpoint
from lit_trainer.callbacks.export_pretrained import ExportPretrained
from lit_trainer.callbacks.lr_schedule import LRSchedule
from lit_trainer.callbacks.prediction_writer import PredictionWriter
from lit_trainer.data.checks import Policies
from lit_trainer.data.plan import StepPlan, evaluation_batches, micro_batches
from lit_trainer.data.sources.memory import Table
from lit_trainer.data.splits import Splits
from lit_trainer.data.text import TextData
from lit_trainer.decision.criteria import FBeta
from lit_trainer.decision.fitting import fit_rule
from lit_trainer.losses.cross_entropy import CrossEntropy
from lit_trainer.optim.optimizer import OptimizerSpec
from lit_trainer.optim.schedules import Linear
from lit_trainer.tasks.sequence_classification import SequenceClassification
from tests.tasks import runs

STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LIT_TRAINER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")


class Seen(pl.Callback):
    """Notes of each optimizer step its rows, its loss and the norm of its gradient; stops where it is told to."""

    def __init__(self, stop_at=None, checkpoint=None):
        self.rows, self.losses, self.norms, self.rates = [], [], [], []
        self.stop_at, self.checkpoint = stop_at, checkpoint

    def on_train_batch_start(self, trainer, module, batch, index):
        if batch["micro_batch"] == 0:
            self.rows.append([])
        self.rows[-1] += [row for row in batch["row"].tolist() if row >= 0]

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.norms.append(float(nn.utils.get_total_norm([p.grad for p in module.parameters() if p.grad is not None])))
        self.rates.append(optimizer.param_groups[0]["lr"])

    def on_train_batch_end(self, trainer, module, *_):
        if trainer.fit_loop._should_accumulate():
            return
        self.losses.append(float(trainer.logged_metrics["train/loss"]))
        if trainer.global_step == self.stop_at:
            trainer.save_checkpoint(self.checkpoint)
            raise runs.KilledError


@pytest.fixture
def fit(tiny_bert):
    """Trains on rows; returns what each step was, the task and the trainer."""

    def run(rows, *, batch_size=8, accumulate=1, epochs=1, resume=None, seen=None, callbacks=(), data=None, **task):
        data = {"bucket_steps": 0, "splits": Splits(validation=0, test=0), **(data or {})}
        module = SequenceClassification(
            str(tiny_bert), **{"config": STILL, "optimizer": OptimizerSpec(lr=1e-3), **task}
        ).double()
        seen = seen or Seen()
        table = TextData(rows if isinstance(rows, Table) else Table(rows), batch_size=batch_size, **data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Lightning's advice, which is not what is tested
            trainer = pl.Trainer(
                accelerator="cpu",
                max_epochs=epochs,
                accumulate_grad_batches=accumulate,
                callbacks=[seen, *callbacks],
                logger=False,
                enable_checkpointing=any(isinstance(callback, BestCheckpoint) for callback in callbacks),
                enable_progress_bar=False,
                enable_model_summary=False,
                log_every_n_steps=1,
                num_sanity_val_steps=0,
            )
            try:
                trainer.fit(module, datamodule=table, ckpt_path=resume)
            except runs.KilledError:
                assert seen.stop_at is not None
        return SimpleNamespace(seen=seen, task=module, trainer=trainer, data=table)

    return run


def rows_of(films, number):
    return {name: column[:number] for name, column in films.items()}


# -- gradients and logged losses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [CrossEntropy(), CrossEntropy(label_smoothing=0.1)], ids=["47688", "46731"])
def test_transformers_47688_and_46731_accumulation_does_not_multiply_the_gradient(fit, films, loss):
    norms = [fit(rows_of(films, 8), accumulate=n, loss=loss).seen.norms for n in (1, 4)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)


def test_transformers_37766_the_logged_loss_does_not_grow_with_accumulation(fit, films):
    losses = [fit(rows_of(films, 8), accumulate=n).seen.losses for n in (1, 2, 4)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    assert losses[2] == pytest.approx(losses[0], rel=1e-6)


def test_lightning_19987_a_short_last_window_has_the_whole_gradient(fit):
    rows = {"text": ["good film"] * 10, "label": ["good"] * 10}
    data = {"classes": ["good", "bad"], "checks": Policies(single_class="keep")}
    found = fit(rows, batch_size=4, accumulate=4, data=data, optimizer=OptimizerSpec(lr=1e-12))
    assert [len(step) for step in found.seen.rows] == [4, 4, 2]
    assert found.seen.norms == pytest.approx([found.seen.norms[0]] * 3, rel=1e-4)


def test_automodel_3829_neither_accumulation_nor_ranks_multiply_the_learning_rate(tiny_bert, tmp_path, run_python):
    settings = {"folder": str(tiny_bert), "max_steps": 2, "out": str(tmp_path / "out.pt")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs.run(settings)
    alone = torch.load(settings["out"])["weights"]
    split = json.dumps({**settings, "ranks": 2, "accumulate": 4})
    run_python(f"import runpy; runpy.run_path({runs.__file__!r}, run_name='__main__')", split)
    found = torch.load(settings["out"])["weights"]
    assert max(float((alone[name] - found[name]).abs().max()) for name in alone) < 1e-12


def test_pytorch_116349_and_olmo_core_657_a_batch_without_labels_contributes_nothing(fit, films):
    rows = rows_of(films, 24)
    rows["label"] = [None if index % 3 == 0 else label for index, label in enumerate(rows["label"])]
    found = fit(rows, batch_size=1, data={"checks": Policies(missing_label="keep")})
    assert found.seen.losses.count(0.0) == found.seen.norms.count(0.0) == 8
    assert np.isfinite(found.seen.losses).all()
    assert all(torch.isfinite(p).all() for p in found.task.parameters())


def test_olmo_core_657_a_step_of_rows_that_weigh_nothing_has_loss_and_gradient_0(fit, films):
    found = fit(rows_of(films, 8), batch_size=1, loss=CrossEntropy(class_weights={"bad": 0.0, "good": 1.0}))
    weightless = [films["label"][row] == "bad" for (row,) in found.seen.rows]
    assert sum(weightless) == 2
    assert [loss == 0.0 for loss in found.seen.losses] == weightless
    assert [norm == 0.0 for norm in found.seen.norms] == weightless


def test_transformers_23018_and_accelerate_2017_checkpointing_is_not_re_entrant(fit, films):
    rows = rows_of(films, 8)
    plain, checkpointed = fit(rows), fit(rows, gradient_checkpointing=True)
    function = checkpointed.task.model.bert.encoder.layer[0]._gradient_checkpointing_func
    assert getattr(function, "checkpoint", function).keywords == {"use_reentrant": False}
    assert checkpointed.seen.norms == pytest.approx(plain.seen.norms, rel=1e-6)


# -- sampling ----------------------------------------------------------------------------------------------------------


def dealt(plan, epoch, ranks, accumulate=1):
    """The rows that each rank draws in an epoch."""
    return [
        [
            row
            for batch in micro_batches(plan, epoch, rank=rank, num_ranks=ranks, num_micro_batches=accumulate)
            for row, draw in batch
            if draw >= 0
        ]
        for rank in range(ranks)
    ]


def test_lightning_10946_weights_hold_over_all_ranks_together():
    plan = StepPlan(1200, batch_size=100, weights=[5.0] * 200 + [1.0] * 1000, seed=3)
    ranks = dealt(plan, 0, 2)
    assert abs(len(ranks[0]) - len(ranks[1])) <= len(plan.epoch(0))
    for rows in ranks:
        assert sum(row < 200 for row in rows) / len(rows) == pytest.approx(0.5, abs=0.08)


def test_pytorch_77154_and_transformers_5958_ranks_share_one_draw_whatever_they_drew_before():
    for epoch in range(3):
        ranks = []
        for rank in range(2):
            torch.rand(rank)
            np.random.default_rng(rank).random(rank)
            plan = StepPlan(12, batch_size=4, weights=[1.0, 5.0] * 6, replacement=False, num_draws=10, seed=3)
            ranks.append(dealt(plan, epoch, 2)[rank])
        assert not set(ranks[0]) & set(ranks[1])
        assert len(ranks[0]) + len(ranks[1]) == 10


def test_lightning_1995_and_2703_nobody_replaces_the_plan(fit, films):
    rows = rows_of(films, 24)
    found = fit(rows, epochs=2)
    plan = found.data.plan
    assert found.seen.rows == [plan.epoch(epoch).step(step)[0].tolist() for epoch in range(2) for step in range(3)]
    assert found.seen.rows[:3] != found.seen.rows[3:]


def test_pytorch_46176_text_1295_audio_2299_and_automodel_3473_token_budgets_are_shared_out_between_ranks():
    lengths = np.random.default_rng(0).integers(3, 60, 500)
    plan = StepPlan(500, max_tokens=400, lengths=lengths, seed=3)
    steps = plan.epoch(0)
    assert all(lengths[steps.step(index)[0]].sum() <= 400 for index in range(len(steps)))
    batches = [list(micro_batches(plan, 0, rank=rank, num_ranks=2, num_micro_batches=2)) for rank in range(2)]
    assert len(batches[0]) == len(batches[1]) == 2 * len(steps)
    assert sorted(row for rank in dealt(plan, 0, 2, 2) for row in rank) == list(range(500))


# -- resume ------------------------------------------------------------------------------------------------------------


def test_lightning_18780_a_run_resumed_within_an_epoch_sees_the_rest_of_it_once(fit, films, tmp_path):
    rows, checkpoint = rows_of(films, 24), str(tmp_path / "2.ckpt")
    before = fit(rows, seen=Seen(2, checkpoint)).seen.rows
    after = fit(rows, resume=checkpoint).seen.rows
    assert [len(before), len(after)] == [2, 1]
    assert sorted(row for step in before + after for row in step) == list(range(24))


def test_transformers_17032_dropout_and_order_after_a_resume_are_those_of_a_run_without(fit, films, tmp_path):
    rows, checkpoint = rows_of(films, 24), str(tmp_path / "3.ckpt")
    settings = {"epochs": 2, "config": {"hidden_dropout_prob": 0.5}}
    whole = fit(rows, **settings)
    fit(rows, seen=Seen(3, checkpoint), **settings)
    torch.rand(5)
    resumed = fit(rows, resume=checkpoint, **settings)
    assert resumed.seen.losses == whole.seen.losses[3:]
    pairs = zip(whole.task.parameters(), resumed.task.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_lightning_20310_20801_and_21455_a_checkpoint_does_not_bring_its_own_settings(fit, films, tmp_path):
    rows, checkpoint = rows_of(films, 24), str(tmp_path / "2.ckpt")
    fit(rows, seen=Seen(2, checkpoint), optimizer=OptimizerSpec(lr=1e-3))
    resumed = fit(rows, resume=checkpoint, optimizer=OptimizerSpec(lr=5e-4), callbacks=[LRSchedule(Linear(1.0))])
    assert resumed.seen.rates == [5e-4]


def test_lightning_18727_the_best_value_so_far_survives_a_resume(fit, films, tmp_path):
    rows, checkpoint = rows_of(films, 90), str(tmp_path / "12.ckpt")

    def best():
        return BestCheckpoint("val/loss", "min", dirpath=str(tmp_path / "best"))

    settings = {"epochs": 2, "data": {"splits": Splits(validation=0.2, test=0)}, "batch_size": 24}
    first, second = best(), best()
    fit(rows, seen=Seen(5, checkpoint), callbacks=[first], **settings)
    assert first.best_model_score is not None
    worse = {**settings, "optimizer": OptimizerSpec(lr=0.5)}
    fit(rows, resume=checkpoint, callbacks=[second], **worse)
    assert float(second.best_model_score) == float(first.best_model_score)
    assert second.best_model_path == first.best_model_path


# -- evaluation, prediction and export ---------------------------------------------------------------------------------


@pytest.mark.parametrize("num_rows", [5, 1])
def test_lightning_4732_pytorch_25162_and_rf_detr_1507_rows_are_scored_once_on_any_number_of_ranks(num_rows):
    for ranks in (1, 2, 3):
        shares = evaluation_batches(num_rows, 2, ranks)
        assert len({len(share) for share in shares}) == 1
        assert sorted(row for share in shares for batch in share for row in batch) == list(range(num_rows))


def test_lightning_5257_17521_and_20334_all_rows_are_predicted_once_in_the_order_of_the_data(fit, films, tmp_path):
    found = fit(rows_of(films, 24), data={"predict": Table(rows_of(films, 15)), "eval_batch_size": 4})
    path = tmp_path / "predictions.csv"
    found.trainer.callbacks.append(PredictionWriter(str(path)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found.trainer.predict(found.task, datamodule=found.data, return_predictions=False)
    with path.open(newline="") as file:
        written = list(csv.DictReader(file))
    assert [int(row["row"]) for row in written] == list(range(15))
    assert [row["text"] for row in written] == films["text"][:15]


def test_lightning_transformers_188_167_lightning_21366_and_litgpt_1359_a_run_ends_in_a_folder_for_transformers(
    fit, films, tmp_path
):
    export = ExportPretrained(str(tmp_path / "export"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(rows_of(films, 24), callbacks=[export])
        classify = pipeline("text-classification", str(tmp_path / "export"), device="cpu")
    assert classify("a good film")[0]["label"] in ("good", "bad")


def test_autogluon_1038_and_4119_the_threshold_is_chosen_by_the_metric_that_counts():
    rng = np.random.default_rng(0)
    labels = (rng.random(2000) < 0.1).astype(int)
    margin = rng.normal(2 * labels - 3, 1.2)
    rule = fit_rule(
        np.stack([-margin / 2, margin / 2], axis=1),
        labels,
        kind="binary",
        label_names=("ham", "spam"),
        split="validation",
        criterion=FBeta(),
    )
    (threshold,) = rule.thresholds
    assert 0.05 < threshold < 0.4
