"""The rule is fitted on the logits of the weights that are kept, and goes where they go."""

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from lit_trainer.callbacks.best_checkpoint import BestCheckpoint
from lit_trainer.callbacks.decision_rule import FitDecisionRule
from lit_trainer.callbacks.evaluation_schedule import EvaluationSchedule
from lit_trainer.callbacks.export_pretrained import ExportPretrained
from lit_trainer.callbacks.last_checkpoint import LastCheckpoint
from lit_trainer.data.sources.memory import Table
from lit_trainer.data.splits import Splits
from lit_trainer.data.text import TextData
from lit_trainer.decision.calibration import VectorScaling
from lit_trainer.decision.criteria import ExpectedCost, FBeta, RecallAtPrecision, YoudenJ
from lit_trainer.decision.fitting import fit_rule
from lit_trainer.decision.intervals import Bootstrap
from lit_trainer.decision.rule import DecisionRule
from lit_trainer.decision.thresholds import operating_points
from lit_trainer.optim.optimizer import OptimizerSpec
from lit_trainer.tasks.sequence_classification import SequenceClassification
from tests.callbacks.tiny_task import QUIET, TinyData, TinyTask, make_trainer
from tests.callbacks.two_ranks import run_on_two_ranks

QUICK = Bootstrap(num_resamples=50)
BY_STEP = {2: 0.2, 4: 0.9, 6: 0.5}


class Scripted(SequenceClassification):
    """The best evaluation is the one that the script says."""

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        if not self.trainer.sanity_checking:
            self.log("val/scripted", torch.tensor(BY_STEP[self.trainer.global_step]))
            self.seen = {**getattr(self, "seen", {}), self.trainer.global_step: self.scores.logits}


@pytest.fixture
def make(tiny_bert, films, tmp_path, monkeypatch):
    monkeypatch.setenv("LIT_TRAINER_CACHE", str(tmp_path / "cache"))

    def run(*callbacks: pl.Callback, root: Path = tmp_path, **settings: Any):
        """Makes a run of six steps, evaluated after every two of them."""
        rows, labels = settings.pop("rows", films), settings.pop("data", {})
        task = Scripted(str(tiny_bert), optimizer=OptimizerSpec(lr=3e-3))
        splits = labels.pop("splits", Splits(0.3, 0.3))
        data = TextData(Table(rows), splits=splits, batch_size=6, **labels)
        settings = {**QUIET, "logger": False, "max_steps": 6, "default_root_dir": root, **settings}
        best = [] if settings.get("enable_checkpointing") is False else [BestCheckpoint("val/scripted", "max")]
        return pl.Trainer(callbacks=[*callbacks, EvaluationSchedule(2), *best], **settings), task, data

    return run


def fit(trainer: pl.Trainer, task: pl.LightningModule, data: pl.LightningDataModule, **kwargs: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "decision rule fitted on")  # so few rows
        warnings.filterwarnings("ignore", "Checkpoint directory .* exists|You're resuming from a checkpoint that ended")
        trainer.fit(task, datamodule=data, **kwargs)


def validation_labels(data: TextData) -> np.ndarray:
    return data.rows("validation").labels


def test_the_rule_is_that_of_the_best_checkpoints_own_logits(make, tmp_path):
    callback = FitDecisionRule(FBeta(), bootstrap=QUICK)
    trainer, task, data = make(callback)
    fit(trainer, task, data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = fit_rule(
            task.seen[4],
            validation_labels(data),
            kind="binary",
            label_names=("bad", "good"),
            split="validation",
            criterion=FBeta(),
            calibration=callback.calibration,
            bootstrap=QUICK,
        )
    assert (callback.rule.calibration, callback.rule.thresholds) == (expected.calibration, expected.thresholds)
    assert callback.rule.fitted_on.metric == expected.fitted_on.metric
    assert callback.rule.fitted_on.step == 4
    assert "also chose the weights" in callback.rule.fitted_on.notes[-1]
    assert DecisionRule.load(tmp_path / "decision_rule.json") == callback.rule
    assert (
        callback.rule.thresholds[0]
        in operating_points(expected.decide(task.seen[4]).probabilities[:, 1], validation_labels(data)).thresholds
    )


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_rule_is_exported_wherever_the_callback_stands(make, tmp_path, order):
    callbacks = [FitDecisionRule(FBeta(), bootstrap=QUICK), ExportPretrained()]
    trainer, task, data = make(*(callbacks[i] for i in order), data={"max_length": 12})
    fit(trainer, task, data)
    export = tmp_path / "export"
    rule = callbacks[0].rule
    assert DecisionRule.load(export / "decision_rule.json") == rule
    assert DecisionRule.from_dict(json.loads((export / "config.json").read_text())["decision_rule"]) == rule
    assert AutoTokenizer.from_pretrained(export).model_max_length == 12, "others cut texts where the run did"
    card = (export / "README.md").read_text()
    assert f"good from a probability of {rule.thresholds[0]:.4g} on" in card
    assert "Predictor" in card
    assert "| f1_macro |" not in card
    trainer.test(task, datamodule=data, ckpt_path="best", verbose=False)
    value = trainer.callback_metrics["test_rule/f1_macro"]
    assert f"| f1_macro | {value:.4f} (" in (export / "README.md").read_text()


def test_a_model_that_goes_on_from_an_export_does_not_keep_its_rule(make, tmp_path):
    fit(*make(FitDecisionRule(FBeta(), bootstrap=QUICK), ExportPretrained(), root=tmp_path / "first"))
    trainer, task, data = make(ExportPretrained(), root=tmp_path / "second")
    task.pretrained = str(tmp_path / "first" / "export")
    fit(trainer, task, data)
    assert "decision_rule" not in json.loads((tmp_path / "second/export/config.json").read_text())
    assert not (tmp_path / "second/export/decision_rule.json").exists()
    assert "## Decisions" not in (tmp_path / "second/export/README.md").read_text()


def test_a_test_of_the_best_decides_by_the_rule_and_says_how_good_it_is(make):
    callback = FitDecisionRule(costs={"bad": {"good": 5.0}, "good": {"bad": 1.0}}, bootstrap=QUICK)
    trainer, task, data = make(callback)
    fit(trainer, task, data)
    trainer.test(task, datamodule=data, ckpt_path="best", verbose=False)
    assert task.decision_rule == callback.rule
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    labels, logits = task.scores.labels.numpy(), task.scores.logits
    for stage, rule in (("test_rule", callback.rule), ("test_default", DecisionRule("binary", ("bad", "good")))):
        decided = rule.decide(logits).labels
        cost = np.where(labels == decided, 0, np.where(labels == 0, 5, 1)).mean()
        assert metrics[f"{stage}/expected_cost"] == pytest.approx(cost)
        assert metrics[f"{stage}/accuracy"] == pytest.approx((labels == decided).mean())
        for name in ("expected_cost", "f1", "f1_macro", "balanced_accuracy", "precision", "recall"):
            low, value, high = (metrics[f"{stage}/{name}{end}"] for end in ("_low", "", "_high"))
            assert low <= value <= high
    for name in ("accuracy", "f1", "precision", "recall"):
        assert metrics[f"test_default/{name}"] == pytest.approx(metrics[f"test/{name}"]), "the same without a rule"


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks used")
def test_the_rule_is_found_from_the_runs_folder_and_only_for_its_own_weights(make, caplog):
    callback = FitDecisionRule(FBeta(), bootstrap=QUICK)
    trainer, task, data = make(callback, LastCheckpoint())
    fit(trainer, task, data)
    best = trainer.checkpoint_callbacks[-1].best_model_path
    (last,) = Path(best).parent.glob("last-*.ckpt")
    assert "decision_rule" not in torch.load(last, weights_only=True), "it is not for the weights at the end"
    trainer, task, data = make()  # a process that knows nothing of the run
    trainer.test(task, datamodule=data, ckpt_path=best, verbose=False)
    assert task.decision_rule == callback.rule
    assert "test_rule/f1" in trainer.callback_metrics
    with caplog.at_level(logging.INFO):
        trainer.test(task, datamodule=data, ckpt_path=last, verbose=False)
    assert "decision_rule.json is for the weights of step 4, not for those of step 6" in caplog.text
    assert task.decision_rule.thresholds is None
    assert "test_rule/f1" not in trainer.callback_metrics


def test_weights_at_the_end_that_are_not_the_best_are_decided_without_it(make):
    trainer, task, data = make(FitDecisionRule(FBeta(), bootstrap=QUICK))
    fit(trainer, task, data)
    assert task.rule_at(4) is not None
    trainer.test(task, datamodule=data, verbose=False)
    assert "test_rule/f1" not in trainer.callback_metrics


def test_a_checkpoint_of_the_same_weights_carries_the_rule_as_plain_data(make, tmp_path):
    callback = FitDecisionRule(FBeta(), bootstrap=QUICK)
    trainer, task, data = make(callback, enable_checkpointing=False)
    fit(trainer, task, data)
    assert callback.rule.fitted_on.step == 6
    path = tmp_path / "elsewhere" / "a.ckpt"
    trainer.save_checkpoint(path)
    assert torch.load(path, weights_only=True)["decision_rule"] == callback.rule.to_dict()
    trainer, task, data = make(enable_checkpointing=False)
    trainer.test(task, datamodule=data, ckpt_path=path, verbose=False)
    assert task.decision_rule == callback.rule


def test_a_resumed_run_fits_the_same_rule(make, tmp_path):
    class KilledError(Exception):
        pass

    class Kill(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            if trainer.global_step == 5:
                raise KilledError

    rules = []
    for resumes in (False, True):
        root = tmp_path / str(resumes)
        if resumes:
            with pytest.raises(KilledError):
                fit(*make(FitDecisionRule(FBeta(), bootstrap=QUICK), LastCheckpoint(4), Kill(), root=root))
        callback = FitDecisionRule(FBeta(), bootstrap=QUICK)
        last = {"ckpt_path": root / "checkpoints/last-step=4.ckpt"} if resumes else {}
        fit(*make(callback, LastCheckpoint(4), root=root), **last)
        rules.append(callback.rule)
    assert rules[0] == rules[1]
    assert rules[0].fitted_on.step == 4


def test_of_two_the_later_one_counts_so_that_an_overlay_wins(make):
    first, second = (
        FitDecisionRule(FBeta(), bootstrap=QUICK),
        FitDecisionRule(YoudenJ(), calibration=VectorScaling, bootstrap=QUICK),
    )
    trainer, task, data = make(first, second)
    fit(trainer, task, data)
    trainer.test(task, datamodule=data, ckpt_path="best", verbose=False)
    assert task.decision_rule == second.rule != first.rule


def test_a_rule_of_an_earlier_fit_is_forgotten_and_one_that_was_set_is_not(make, tmp_path):
    trainer, task, data = make(FitDecisionRule(FBeta(), bootstrap=QUICK))
    fit(trainer, task, data)
    again, _, _ = make(root=tmp_path / "again")
    fit(again, task, data)
    assert task.rule_at(4) is None
    own = DecisionRule("binary", ("bad", "good"), thresholds=(0.25,))
    task.decision_rule = own
    again.test(task, datamodule=data, ckpt_path="best", verbose=False)
    assert task.decision_rule == own
    assert "test_rule/f1" in again.callback_metrics


def test_many_classes_are_decided_by_costs_of_their_own(make):
    rows = {"text": [f"w{index % 3} w{index % 7}" for index in range(120)], "label": ["c0", "c1", "c2"] * 40}
    callback = FitDecisionRule(costs={"c0": {"c1": 9, "c2": 9}, "c1": {"c0": 1, "c2": 1}}, bootstrap=QUICK)
    trainer, task, data = make(callback, rows=rows)
    fit(trainer, task, data)
    assert callback.rule.costs == ((0, 9, 9), (1, 0, 1), (0, 0, 0))
    trainer.test(task, datamodule=data, ckpt_path="best", verbose=False)
    assert {"test_rule/f1_macro", "test_default/expected_cost_high"} <= set(trainer.callback_metrics)


def test_several_labels_have_a_threshold_each(make):
    rows = {"text": [f"w{index % 3} w{index % 7}" for index in range(120)]}
    rows["label"] = [[f"c{index % 3}", f"d{index % 2}"] for index in range(120)]
    callback = FitDecisionRule(costs={"present": {"absent": 5}, "absent": {"present": 1}}, bootstrap=QUICK)
    trainer, task, data = make(callback, rows=rows, data={"kind": "multi_label"})
    fit(trainer, task, data)
    assert callback.rule.kind == "multi_label"
    assert len(callback.rule.thresholds) == 5
    trainer.test(task, datamodule=data, ckpt_path="best", verbose=False)
    assert {"test_rule/f1_of_labels", "test_rule/expected_cost"} <= set(trainer.callback_metrics)


def test_where_nothing_can_be_fitted_the_run_ends_without_a_rule_and_says_why(make, tmp_path):
    one_class = {"text": ["w1 w2", "w3"] * 60, "label": ["good"] * 119 + ["bad"]}
    callback = FitDecisionRule(YoudenJ())
    trainer, task, data = make(callback, rows=one_class, data={"classes": ["bad", "good"]}, limit_val_batches=1)
    with pytest.warns(UserWarning, match="no decision rule was fitted, labels are decided without: .* needs positive"):
        trainer.fit(task, datamodule=data)
    assert callback.rule is None
    assert not (tmp_path / "decision_rule.json").exists()
    trainer, task, data = make(FitDecisionRule(YoudenJ()), enable_checkpointing=False, limit_val_batches=0)
    with pytest.warns(UserWarning, match="there was no evaluation of the weights to keep, those of step 6"):
        trainer.fit(task, datamodule=data)


def test_a_dry_run_fits_nothing(make, tmp_path):
    callback = FitDecisionRule(FBeta())
    trainer, task, data = make(callback, enable_checkpointing=False, fast_dev_run=True)
    BY_STEP[1] = 0.0
    fit(trainer, task, data)
    del BY_STEP[1]
    assert callback.rule is None
    assert not (tmp_path / "decision_rule.json").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"criterion": FBeta(), "costs": {"a": {"b": 1}}}, "criterion and costs are given but only one can be"),
        ({"calibration": None}, "criterion, costs and calibration are all null"),
        ({"criterion": FBeta(), "folds": 1}, "folds is 1 but must be at least 2, or null"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        FitDecisionRule(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"costs": {"bad": {"god": 1}}}, r"costs names god \(FitDecisionRule\); the labels are bad, good"),
        ({"criterion": FBeta(), "positive_label": "ham"}, "positive_label is 'ham'.* one of .bad, good"),
        ({"criterion": ExpectedCost(((0, 1, 1), (1, 0, 1), (1, 1, 0)))}, "costs has 3 rows; binary"),
        ({"costs": {"bad": {"bad": 5.0}}}, "less than the right decision"),
    ],
)
def test_settings_that_do_not_fit_the_labels_are_refused_before_training(make, settings, message):
    trainer, task, data = make(FitDecisionRule(**settings))
    with pytest.raises(ValueError, match=message):
        fit(trainer, task, data)
    assert trainer.global_step == 0


def test_a_task_that_decides_nothing_is_refused_before_training(make, tiny_bert, tmp_path):
    values = {"text": ["w1"] * 20, "label": [float(index) for index in range(20)]}
    with pytest.raises(ValueError, match="a task with values instead of labels has nothing to decide"):
        fit(*make(FitDecisionRule(FBeta()), rows=values, data={"kind": "regression"}))
    with pytest.raises(ValueError, match="TinyTask has no decision_rule to be fitted, or no scores"):
        make_trainer(tmp_path, [FitDecisionRule(FBeta())], max_steps=1).fit(TinyTask(tiny_bert), TinyData(tiny_bert))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "the decision rule has version 2; this lit_trainer reads up to 1: install a newer one"),
        ({"label_names": ["ham", "spam"], "positive_label": "spam"}, "is for the labels .ham, spam., the model has"),
    ],
)
def test_a_rule_that_does_not_belong_here_is_refused(make, tmp_path, change, message):
    trainer, task, data = make(FitDecisionRule(RecallAtPrecision(0.5), bootstrap=QUICK))
    fit(trainer, task, data)
    path = tmp_path / "decision_rule.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=message):
        trainer.test(task, datamodule=data, ckpt_path="best", verbose=False)


def test_a_rule_for_another_kind_of_labels_is_refused(make):
    trainer, task, data = make()
    task.decision_rule = DecisionRule("multi_label", ("bad", "good"))
    with pytest.raises(ValueError, match="the decision rule is for multi_label, the data's labels are binary"):
        trainer.test(task, datamodule=data, verbose=False)


CALIBRATED = {"splits": Splits(0.2, 0.2, calibration=0.3)}


def calibration_logits(task: SequenceClassification, data: TextData) -> torch.Tensor:
    """The logits of the present weights, worked out apart."""
    task.eval()
    with torch.no_grad():
        found = [(batch["row"], task.compute_outputs(batch)["logits"]) for batch in data.calibration_dataloader()]
    rows, logits = (torch.cat(column) for column in zip(*found, strict=True))
    return logits[rows.argsort()]


def test_with_rows_of_its_own_the_rule_is_fitted_on_those_alone(make, monkeypatch):
    seen = {}

    def noted(logits, labels, **settings):
        seen.update(logits=logits, labels=labels, split=settings["split"])
        return fit_rule(logits, labels, **settings)

    monkeypatch.setattr("lit_trainer.callbacks.decision_rule.fit_rule", noted)
    callback = FitDecisionRule(FBeta(), bootstrap=QUICK)
    trainer, task, data = make(callback, data=dict(CALIBRATED))
    fit(trainer, task, data)
    assert seen["split"] == callback.rule.fitted_on.split == "calibration"
    assert callback.rule.fitted_on.num_rows == len(data.tables["calibration"]) == 27
    assert not any("also chose" in note for note in callback.rule.fitted_on.notes)
    assert np.array_equal(seen["labels"], data.rows("calibration").labels)
    trainer.test(task, datamodule=data, ckpt_path="best", verbose=False)
    assert "test_rule/f1" in trainer.callback_metrics
    assert "val_rule/f1" not in trainer.callback_metrics
    assert torch.allclose(torch.as_tensor(seen["logits"]), calibration_logits(task, data), atol=1e-5)


def test_validation_rows_that_the_rule_was_not_fitted_on_measure_it(make):
    for settings, expected in ((dict(CALIBRATED), True), ({}, False)):
        trainer, task, data = make(FitDecisionRule(FBeta(), bootstrap=QUICK), data=settings)
        fit(trainer, task, data)
        assert not any(name.startswith("val_rule") for name in trainer.callback_metrics), "training is not measured so"
        trainer.validate(task, datamodule=data, ckpt_path="best", verbose=False)
        assert ("val_rule/f1" in trainer.callback_metrics) is expected


def test_rows_for_calibration_change_neither_training_nor_evaluation(make):
    found = []
    for callbacks in ([FitDecisionRule(FBeta(), bootstrap=QUICK)], []):
        trainer, task, data = make(*callbacks, data=dict(CALIBRATED))
        fit(trainer, task, data)
        found.append((task.seen, task.model.state_dict()))
    (seen, weights), (seen_without, weights_without) = found
    assert all(torch.equal(seen[step], seen_without[step]) for step in BY_STEP)
    assert all(torch.equal(weights[name], weights_without[name]) for name in weights)


TWO_RANKS = """
import json, os, sys
from pathlib import Path
from types import SimpleNamespace
sys.path.insert(0, {root!r})
os.environ["LIT_TRAINER_CACHE"] = "cache"
from tests.callbacks.test_decision_rule import *

rows = json.loads(Path("rows.json").read_text())
task = Scripted({folder!r}, optimizer=OptimizerSpec(lr=3e-3))
data = TextData(Table(rows), splits=Splits(0.3, 0.3, calibration={calibration}), batch_size=6)
callback, best = FitDecisionRule(FBeta(), bootstrap=QUICK), BestCheckpoint("val/scripted", "max")
trainer = pl.Trainer(callbacks=[callback, EvaluationSchedule(2), best], **{{
    **QUIET, "devices": 2, "strategy": "ddp", "logger": False, "max_steps": 6, "use_distributed_sampler": False,
}})
fit(trainer, task, data)
trainer.test(task, datamodule=data, ckpt_path=best.best_model_path, verbose=False)
print("RESULT" + json.dumps([callback.rule.to_dict(), float(trainer.callback_metrics["test_rule/f1"])]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("calibration", "num_rows"), [(0, 27), (0.1, 9)])
def test_all_ranks_have_the_rule_of_one(make, films, tiny_bert, tmp_path, calibration, num_rows):
    (tmp_path / "rows.json").write_text(json.dumps(films))
    code = TWO_RANKS.format(folder=str(tiny_bert), root=str(Path(__file__).parents[2]), calibration=calibration)
    first, second = (json.loads(out.partition("RESULT")[2]) for out in run_on_two_ranks(code, tmp_path))
    assert first == second
    callback = FitDecisionRule(FBeta(), bootstrap=QUICK)
    trainer, task, data = make(
        callback, root=tmp_path / "alone", data={"splits": Splits(0.3, 0.3, calibration=calibration)}
    )
    fit(trainer, task, data)
    assert first[0]["thresholds"] == pytest.approx(callback.rule.thresholds, abs=1e-4)
    assert first[0]["fitted_on"]["num_rows"] == num_rows
