"""A model that finds hidden tokens: it learns, is exported, and says what it cannot do."""

import math
import warnings

import lightning.pytorch as pl
import pytest
from transformers import pipeline

from lit_trainer.callbacks.export_pretrained import ExportPretrained
from lit_trainer.callbacks.run_summary import RunSummary
from lit_trainer.data.sources.memory import Table
from lit_trainer.data.splits import Splits
from lit_trainer.data.text import TextData
from lit_trainer.data.transforms.mask_tokens import MaskTokens
from lit_trainer.losses.cross_entropy import CrossEntropy
from lit_trainer.losses.focal import FocalLoss
from lit_trainer.losses.r_drop import RDrop
from lit_trainer.optim.optimizer import OptimizerSpec
from lit_trainer.tasks.masked_language_modeling import MaskedLanguageModeling

TEXTS = [" ".join([f"w{index % 5}"] * 8) for index in range(120)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LIT_TRAINER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")


@pytest.fixture
def fit(tiny_bert, tmp_path):
    """Trains on texts of one word each, again and again; returns the trainer, the task and its metrics by stage."""

    def run(epochs=1, hide=True, **settings):
        task = MaskedLanguageModeling(str(tiny_bert), optimizer=OptimizerSpec(lr=5e-3), **settings)
        data = TextData(
            Table({"text": TEXTS}),
            label=None,
            splits=Splits(test=0.2),
            batch_size=16,
            transforms=[MaskTokens()] if hide else [],
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Lightning's advice, which is not what is tested
            trainer = pl.Trainer(
                accelerator="cpu",
                max_epochs=epochs,
                default_root_dir=tmp_path,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                num_sanity_val_steps=0,
                callbacks=[ExportPretrained(), RunSummary()],
            )
            trainer.fit(task, datamodule=data)
            metrics = trainer.test(task, datamodule=data, verbose=False)[0]
        return trainer, task, metrics

    return run


def test_it_learns_and_its_export_fills_a_mask(fit, tmp_path, capsys):
    _, _, before = fit()
    assert "--model.pretrained" in capsys.readouterr().out
    _, _, after = fit(epochs=40)
    assert after["test/accuracy"] > 0.8 > before["test/accuracy"]
    assert after["test/perplexity"] == pytest.approx(math.exp(after["test/loss"]), rel=1e-5)
    fill = pipeline("fill-mask", str(tmp_path / "export"))
    assert fill("w3 w3 [MASK] w3 w3")[0]["token_str"] == "w3"


@pytest.mark.parametrize("loss", [FocalLoss(), RDrop(CrossEntropy())], ids=lambda loss: type(loss).__name__)
def test_any_loss_over_classes_goes(fit, loss):
    _, _, metrics = fit(loss=loss)
    assert math.isfinite(metrics["test/loss"])
    assert metrics["test/perplexity"] > 1


def test_an_evaluation_is_the_same_each_time(fit):
    trainer, task, metrics = fit()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert trainer.test(task, datamodule=trainer.datamodule, verbose=False)[0] == metrics


def test_data_that_hides_nothing_is_refused(fit):
    with pytest.raises(ValueError, match=r"data.transforms: nothing hides the tokens .*MaskTokens"):
        fit(hide=False)


def test_there_is_nothing_to_predict(fit):
    trainer, task, _ = fit()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match="MaskedLanguageModeling has nothing to predict"):
            trainer.predict(task, datamodule=trainer.datamodule)
