"""The task on a tiny model: every kind of label, every kind of loss, and the hooks that people override."""

import warnings

import lightning.pytorch as pl
import pytest
import torch
from torchmetrics.classification import BinaryMatthewsCorrCoef
from transformers import AutoTokenizer, GPT2Config, GPT2Model, PreTrainedTokenizerFast

from lit_trainer.data.sources.memory import Table
from lit_trainer.data.splits import Splits
from lit_trainer.data.text import TextData
from lit_trainer.losses.contrastive import SupervisedContrastive
from lit_trainer.losses.cross_entropy import CrossEntropy
from lit_trainer.losses.focal import FocalLoss
from lit_trainer.losses.huber import Huber
from lit_trainer.losses.multi_task import MultiTask
from lit_trainer.losses.r_drop import RDrop
from lit_trainer.optim.optimizer import OptimizerSpec
from lit_trainer.tasks.sequence_classification import SequenceClassification


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LIT_TRAINER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # whatever another test has left there


@pytest.fixture
def fit(films, tiny_bert):
    """Trains for some epochs and tests; returns the task and the metrics."""

    def run(rows=films, task=SequenceClassification, folder=tiny_bert, epochs=1, data=None, trainer=None, **settings):
        settings = {"optimizer": OptimizerSpec(lr=3e-3), **settings}
        module = task(str(folder), **settings)
        table = TextData(Table(rows), splits=Splits(test=0.3, stratify=False), batch_size=16, **(data or {}))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Lightning's advice, which is not what is tested
            run = pl.Trainer(
                accelerator="cpu",
                max_epochs=epochs,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                log_every_n_steps=1,
                **(trainer or {}),
            )
            run.fit(module, datamodule=table)
            metrics = dict(run.callback_metrics)
            run.test(module, datamodule=table, verbose=False)
        return module, {name: float(value) for name, value in {**metrics, **run.callback_metrics}.items()}

    return run


def test_it_learns_two_classes(fit):
    task, metrics = fit(epochs=10)
    names = ("loss", "accuracy", "precision", "recall", "f1", "auroc", "average_precision")
    assert {f"test/{name}" for name in names} <= set(metrics)
    assert metrics["test/auroc"] > 0.75
    assert task.baseline_metrics["accuracy"] == pytest.approx(float((task.scores.labels == 1).float().mean()))
    assert task.model.config.id2label == {0: "bad", 1: "good"}
    assert task.scores.rows.tolist() == list(range(27))


def test_many_classes_have_metrics_of_each(fit):
    labels = [f"c{index % 3}" for index in range(90)]
    _, metrics = fit({"text": [f"w{index % 3} w9" for index in range(90)], "label": labels}, epochs=25)
    assert {"test/f1_macro", "test/f1/c0", "test/f1/c1", "test/f1/c2", "test/auroc"} <= set(metrics)
    assert metrics["test/accuracy"] > 0.9


def test_torchmetrics_1367_several_labels_at_once(fit):
    rows = {
        "text": [f"w{index % 4} w9" for index in range(80)],
        "label": [[["a"], ["a", "b"], [], ["b"]][index % 4] for index in range(80)],
    }
    task, metrics = fit(rows, data={"kind": "multi_label"}, epochs=25)
    assert metrics["test/f1_micro"] > 0.8
    assert task.model.config.problem_type == "multi_label_classification"
    assert set(task.baseline_metrics) >= {"f1_micro", "exact_match"}


@pytest.mark.parametrize("loss", [None, Huber()])
def test_values(fit, loss):
    rows = {"text": [f"w{index % 5} w9" for index in range(80)], "label": [index % 5 / 2 for index in range(80)]}
    task, metrics = fit(rows, data={"kind": "regression"}, loss=loss, epochs=15)
    assert metrics["test/mse"] < 0.3
    assert metrics["test/pearson"] > 0.7
    assert task.baseline_metrics["mse"] == pytest.approx(0.5, abs=0.2)


def weighted_by_confidence(logits, labels):
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none")


@pytest.mark.parametrize(
    "loss",
    [
        CrossEntropy(class_weights={"bad": 3.0, "good": 1.0}, label_smoothing=0.1),
        FocalLoss(gamma=2.0, class_weights="balanced"),
        RDrop(CrossEntropy(class_weights="balanced")),
        MultiTask({"labels": CrossEntropy(), "likeness": SupervisedContrastive()}, {"labels": 1.0, "likeness": 0.1}),
        MultiTask({"labels": CrossEntropy(), "focal": FocalLoss()}, "uncertainty"),
        weighted_by_confidence,
    ],
    ids=["weights", "focal", "r-drop", "contrastive", "uncertainty", "function"],
)
def test_every_kind_of_loss_trains_and_evaluates(fit, loss):
    _, metrics = fit(loss=loss)
    assert torch.isfinite(torch.tensor([metrics["train/loss"], metrics["val/loss"], metrics["test/loss"]])).all()


def test_class_weights_by_name_meet_the_right_class(fit):
    task, _ = fit(loss=CrossEntropy(class_weights={"good": 1.0, "bad": 3.0}), trainer={"max_steps": 1})
    assert float(task.loss.weight(torch.tensor([0, 1, 1]))) == 5


def test_an_unknown_class_is_named(fit):
    with pytest.raises(ValueError, match="badd"):
        fit(loss=CrossEntropy(class_weights={"badd": 1.0, "good": 1.0}))


def test_transformers_36331_a_function_is_called_with_what_it_declares(fit):
    seen = []

    def loss(logits, labels, progress):
        seen.append(progress)
        return torch.nn.functional.cross_entropy(logits, labels, reduction="none")

    fit(loss=loss, trainer={"max_steps": 4})
    assert seen[0] <= seen[-1] == 1.0


def test_a_metric_can_be_added_or_replaced(fit):
    _, metrics = fit(metrics={"mcc": BinaryMatthewsCorrCoef(), "f1": BinaryMatthewsCorrCoef()})
    assert metrics["test/mcc"] == metrics["test/f1"]


def test_the_loss_alone_can_be_overridden(fit):
    class Doubled(SequenceClassification):
        def compute_loss(self, outputs, batch):
            total, weight = super().compute_loss(outputs, batch)
            return 2 * total, weight

    _, plain = fit(trainer={"max_steps": 1})
    _, doubled = fit(task=Doubled, trainer={"max_steps": 1})
    assert doubled["train/loss"] == pytest.approx(2 * plain["train/loss"], rel=1e-5)


def test_the_training_step_alone_can_be_overridden(fit):
    class WithPenalty(SequenceClassification):
        def training_step(self, batch, batch_idx):
            outputs = self.compute_outputs(batch)
            total, weight = self.compute_loss(outputs, batch)
            return self.step_loss(total + weight * outputs["logits"].square().mean(), weight, batch)

    _, metrics = fit(task=WithPenalty, trainer={"max_steps": 2, "accumulate_grad_batches": 2})
    assert metrics["train/loss"] > 0


def test_the_evaluation_step_alone_can_be_overridden(fit):
    class Counting(SequenceClassification):
        num_rows = 0

        def evaluation_step(self, batch):
            self.num_rows += int((batch["row"] >= 0).sum())
            super().evaluation_step(batch)

    task, _ = fit(task=Counting, trainer={"num_sanity_val_steps": 0})
    assert task.num_rows == 9 + 27  # a tenth of 90 rows validates once, three tenths test


def test_the_optimizer_alone_can_be_overridden(fit):
    class WithSGD(SequenceClassification):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    task, _ = fit(task=WithSGD, trainer={"max_steps": 1})
    assert isinstance(task.trainer.optimizers[0], torch.optim.SGD)


def test_dropout_is_on_while_training_and_off_while_evaluating(fit):
    modes = {}

    class Watching(pl.Callback):
        def on_train_batch_start(self, trainer, pl_module, *_):
            modes["train"] = {module.training for module in pl_module.model.modules()}

        def on_test_batch_start(self, trainer, pl_module, *_):
            modes["test"] = {module.training for module in pl_module.model.modules()}

    fit(trainer={"max_steps": 1, "callbacks": [Watching()]})
    assert modes == {"train": {True}, "test": {False}}


@pytest.mark.parametrize("settings", [{"gradient_checkpointing": True}, {"keyed_dropout": False}], ids=str)
def test_it_trains_with(fit, settings):
    fit(trainer={"max_steps": 2}, **settings)


@pytest.mark.filterwarnings("ignore")  # Lightning's advice, which is not what is tested
def test_a_task_needs_data_that_knows_its_labels(tiny_bert):
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, max_steps=1)
    with pytest.raises(ValueError, match="needs a data module that knows the labels"):
        trainer.fit(SequenceClassification(str(tiny_bert)), torch.utils.data.DataLoader([1]))


@pytest.fixture
def tiny_gpt2(tiny_bert, tmp_path):
    """A decoder whose tokenizer has no padding token, as GPT-2's."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=AutoTokenizer.from_pretrained(tiny_bert).backend_tokenizer, eos_token="[SEP]"
    )
    tokenizer.save_pretrained(tmp_path / "gpt2")
    settings = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "eos_token_id": 3}
    GPT2Model(GPT2Config(bos_token_id=None, **settings)).save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


@pytest.mark.parametrize("padding", ["free", "longest"])
def test_a_decoder_without_a_padding_token_reads_each_rows_last_token(fit, tiny_gpt2, padding):
    rows = {"text": ["w9 " * (index % 7) + f"w{index % 2}" for index in range(90)], "label": ["a", "b"] * 45}
    loss = MultiTask({"labels": CrossEntropy(), "likeness": SupervisedContrastive()}, {"labels": 1.0, "likeness": 0.1})
    task, metrics = fit(rows, folder=tiny_gpt2, epochs=8, loss=loss, data={"padding": padding})
    assert task.model.config.pad_token_id == 3
    assert metrics["test/accuracy"] > 0.9


@pytest.mark.slow  # the compiler takes a minute
def test_a_compiled_model_has_the_same_weights_by_the_same_names(fit):
    plain, _ = fit(trainer={"max_steps": 2})
    compiled, _ = fit(trainer={"max_steps": 2}, compile=True)
    expected = plain.model.state_dict()
    for name, value in compiled.model.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-4)


def test_prediction_goes_through_the_outputs_that_a_subclass_computes(fit):
    class Shifted(SequenceClassification):
        def compute_outputs(self, batch):
            outputs = super().compute_outputs(batch)
            return {**outputs, "logits": outputs["logits"] + torch.tensor([0.0, 100.0])}

    for loss in (CrossEntropy(), RDrop(CrossEntropy())):
        task, _ = fit(task=Shifted, loss=loss)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = task.trainer.predict(task, datamodule=task.trainer.datamodule)
        logits = torch.cat([batch["logits"] for batch in found])
        assert logits.shape == (27, 2)
        assert (logits[:, 1] > 50).all()
