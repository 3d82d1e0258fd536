"""What is exported is the best model, complete, and loads as it is."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import transformers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertForMaskedLM

from lit_trainer.callbacks.best_checkpoint import BestCheckpoint
from lit_trainer.callbacks.evaluation_schedule import EvaluationSchedule
from lit_trainer.callbacks.export_pretrained import ExportPretrained
from lit_trainer.callbacks.trainable_only import TrainableOnly
from tests.callbacks.tiny_task import TinyData, TinyTask, make_trainer

SCORES = {2: 0.1, 4: 0.9, 6: 0.5}


def fit(
    folder: Path, root: Path, export: ExportPretrained, *more: pl.Callback, task: TinyTask | None = None, **kwargs: Any
) -> tuple[pl.Trainer, TinyTask]:
    task = task or TinyTask(folder, SCORES)
    best = BestCheckpoint("val/f1", "max")
    trainer = make_trainer(root, [export, EvaluationSchedule(every_n_steps=2), best, *more], max_steps=6, **kwargs)
    trainer.fit(task, TinyData(folder))
    return trainer, task


def best_weights(root: Path, prefix: str = "model.") -> dict[str, torch.Tensor]:
    (path,) = root.rglob("best-step=*.ckpt")
    state = torch.load(path, weights_only=True)["state_dict"]
    return {name.removeprefix(prefix): weight for name, weight in state.items()}


def test_the_best_weights_load_with_labels_and_tokenizer(tiny_bert, tmp_path):
    export = ExportPretrained()
    _, task = fit(tiny_bert, tmp_path, export)
    folder = tmp_path / "export"
    assert export.exported_to == folder
    loaded = AutoModelForSequenceClassification.from_pretrained(folder)
    for name, weight in best_weights(tmp_path).items():
        assert torch.equal(loaded.state_dict()[name], weight)
    assert not torch.equal(loaded.classifier.weight, task.model.classifier.weight), "those at the end were not the best"
    assert loaded.config.id2label == {0: "good", 1: "bad"}
    assert (
        AutoTokenizer.from_pretrained(folder)("the film").input_ids
        == task.trainer.datamodule.tokenizer("the film").input_ids
    )
    (answer,) = transformers.pipeline("text-classification", str(folder))("the good film")
    assert answer["label"] in ("good", "bad")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "export"]


def test_the_card_tells_data_metrics_and_configuration(tiny_bert, tmp_path):
    (tmp_path / "config.yaml").write_text("seed_everything: 3\n")
    TinyData.report = "train: 24 rows\nval: 24 rows"
    try:
        fit(tiny_bert, tmp_path, ExportPretrained(base_model="owner/base", license="mit"))
    finally:
        del TinyData.report
    card = (tmp_path / "export" / "README.md").read_text()
    for part in (
        "base_model: owner/base",
        "The weights are those of step 4 of 6, the best by val/f1.",
        "- train: 24 rows\n- val: 24 rows",
        "| 0 | good |",
        "| f1 | 0.9000 |",
        "seed_everything: 3",
    ):
        assert part in card, part


def test_a_test_of_the_best_adds_its_metrics_to_the_card(tiny_bert, tmp_path):
    export = ExportPretrained()
    trainer, task = fit(tiny_bert, tmp_path, export)
    task.baseline_metrics = {"f1": 0.25}
    (metrics,) = trainer.test(task, TinyData(tiny_bert), ckpt_path=export.exported_from, verbose=False)
    card = (tmp_path / "export" / "README.md").read_text()
    assert "| metric | validation | test | majority on test |" in card
    assert f"| f1 | 0.9000 | {metrics['test/f1']:.4f} | 0.2500 |" in card
    assert not list((tmp_path / "export").glob(".*"))


def test_a_test_of_other_weights_does_not(tiny_bert, tmp_path):
    trainer, task = fit(tiny_bert, tmp_path, ExportPretrained())
    with pytest.warns(UserWarning, match="no test metrics: the model in memory was tested, not what was exported"):
        trainer.test(task, TinyData(tiny_bert), verbose=False)
    assert "| test |" not in (tmp_path / "export" / "README.md").read_text()


def test_without_validation_the_weights_at_the_end_are_exported(tiny_bert, tmp_path):
    task = TinyTask(tiny_bert)
    trainer = make_trainer(tmp_path, [ExportPretrained()], max_steps=3, limit_val_batches=0, enable_checkpointing=False)
    trainer.fit(task, TinyData(tiny_bert))
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "export")
    assert all(torch.equal(weight, loaded.state_dict()[name]) for name, weight in task.model.state_dict().items())
    assert "those at the end of training, step 3" in (tmp_path / "export" / "README.md").read_text()
    trainer.test(task, TinyData(tiny_bert), verbose=False)
    assert "| metric | test |" in (tmp_path / "export" / "README.md").read_text()


def test_a_dry_run_exports_nothing(tiny_bert, tmp_path):
    trainer, task = fit(tiny_bert, tmp_path, ExportPretrained(), fast_dev_run=True)
    trainer.test(task, TinyData(tiny_bert), verbose=False)
    assert not (tmp_path / "export").exists()


def test_without_a_data_module_there_are_no_label_names_and_no_tokenizer(tiny_bert, tmp_path):
    data = TinyData()
    trainer = make_trainer(tmp_path, [ExportPretrained()], max_steps=2, enable_checkpointing=False)
    data.trainer = trainer
    trainer.fit(TinyTask(tiny_bert), data.train_dataloader(), data.val_dataloader())
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "export")
    assert loaded.config.id2label == {0: "LABEL_0", 1: "LABEL_1"}


class WrappedTask(TinyTask):
    """Compiled, as far as names are concerned: `torch.compile` puts the model into a module of this shape."""

    def configure_model(self) -> None:
        super().configure_model()
        if not hasattr(self.model, "_orig_mod"):
            wrapper = torch.nn.Module()
            wrapper._orig_mod = self.model
            wrapper.forward = self.model.forward
            self.model = wrapper


def test_a_compiled_model_is_exported_under_its_own_names(tiny_bert, tmp_path):
    fit(tiny_bert, tmp_path, ExportPretrained(), task=WrappedTask(tiny_bert, SCORES))
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "export")
    for name, weight in best_weights(tmp_path, "model._orig_mod.").items():
        assert torch.equal(loaded.state_dict()[name], weight)


class TiedTask(TinyTask):
    """A model whose input and output embeddings are one weight."""

    def configure_model(self) -> None:
        if getattr(self, "model", None) is None:
            torch.manual_seed(0)
            self.model = BertForMaskedLM(transformers.AutoConfig.from_pretrained(self.folder))

    def loss(self, batch: dict[str, Any]) -> torch.Tensor:
        return self.model(input_ids=batch["input_ids"], labels=batch["input_ids"]).loss


def test_tied_weights_stay_tied(tiny_bert, tmp_path):
    fit(tiny_bert, tmp_path, ExportPretrained(), task=TiedTask(tiny_bert, SCORES))
    loaded = BertForMaskedLM.from_pretrained(tmp_path / "export")
    assert loaded.cls.predictions.decoder.weight is loaded.bert.embeddings.word_embeddings.weight
    assert torch.equal(loaded.cls.predictions.decoder.weight, best_weights(tmp_path)["cls.predictions.decoder.weight"])


class HeadTask(TinyTask):
    def configure_model(self) -> None:
        super().configure_model()
        self.model.bert.requires_grad_(False)


def test_weights_that_checkpoints_leave_out_are_exported(tiny_bert, tmp_path):
    _, task = fit(tiny_bert, tmp_path, ExportPretrained(), TrainableOnly(), task=HeadTask(tiny_bert, SCORES))
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "export")
    assert all(torch.equal(weight, loaded.bert.state_dict()[n]) for n, weight in task.model.bert.state_dict().items())
    assert torch.equal(loaded.classifier.weight, best_weights(tmp_path)["classifier.weight"])


def test_what_is_there_already_is_moved_aside_however_often(tiny_bert, tmp_path):
    notes = ("mine", "and this")
    for number, text in enumerate(notes):
        if number:
            (tmp_path / "export").rename(tmp_path / f"exported_{number}")
        (tmp_path / "export").mkdir()
        (tmp_path / "export" / "note.txt").write_text(text)
        task = TinyTask(tiny_bert)
        callbacks = [ExportPretrained()]
        make_trainer(tmp_path, callbacks, max_steps=1, enable_checkpointing=False).fit(task, TinyData(tiny_bert))
        assert (tmp_path / "export" / "model.safetensors").exists()
    assert [(tmp_path / f"export.{number}" / "note.txt").read_text() for number in (1, 2)] == list(notes)


def test_an_export_that_is_another_model_is_an_error_and_replaces_nothing(tiny_bert, tmp_path, monkeypatch):
    save = transformers.PreTrainedModel.save_pretrained

    def careless(self: Any, folder: Path, state_dict: dict[str, torch.Tensor]) -> None:
        save(self, folder)  # the weights in memory instead of the best

    monkeypatch.setattr(transformers.PreTrainedModel, "save_pretrained", careless)
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "before.txt").write_text("")
    with pytest.raises(RuntimeError, match=r"exported to .* has another .* than the one it was made from"):
        fit(tiny_bert, tmp_path, ExportPretrained())
    assert [path.name for path in (tmp_path / "export").iterdir()] == ["before.txt"]


def test_other_logits_from_the_same_weights_are_an_error(tiny_bert, tmp_path, monkeypatch):
    load = transformers.PreTrainedModel.from_pretrained.__func__

    def careless(cls: Any, folder: Path) -> Any:
        model = load(cls, folder)
        model.classifier.register_forward_hook(lambda module, inputs, output: output + 1)
        return model

    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", classmethod(careless))
    with pytest.raises(RuntimeError, match=r"computes other logits .* differ by 1 on row 0"):
        fit(tiny_bert, tmp_path, ExportPretrained())


def test_a_folder_that_holds_the_run_is_refused_before_training(tiny_bert, tmp_path):
    with pytest.raises(ValueError, match=r"folder is '\.', which holds the run's own folder"):
        fit(tiny_bert, tmp_path, ExportPretrained("."))


def test_a_model_that_is_not_of_transformers_is_refused_before_training(tiny_bert, tmp_path):
    class Other(TinyTask):
        def configure_model(self) -> None:
            self.model = torch.nn.Linear(1, 1)

    with pytest.raises(ValueError, match="but the model of Other is a Linear"):
        fit(tiny_bert, tmp_path, ExportPretrained(), task=Other(tiny_bert))
