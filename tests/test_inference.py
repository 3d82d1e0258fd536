"""An exported folder predicts what the run did: row by row, by the same rule."""

import csv
import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
import yaml
from transformers import AutoConfig, AutoModelForSequenceClassification

from lit_trainer.cli import main
from lit_trainer.decision.rule import DecisionRule
from lit_trainer.inference import Prediction, Predictor
from tests.tiny_recipe import CALLBACKS, write_recipe

RULE = DecisionRule("binary", ("bad", "good"), thresholds=(0.8,))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIT_TRAINER_CACHE", str(cache))


@pytest.fixture
def exported(tiny_bert: Path, tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder as an export does, with a random head."""

    def make(rule: DecisionRule | None = RULE, **config: object) -> Path:
        names = rule.label_names if rule else ("bad", "good")
        settings = {"num_labels": len(names), "id2label": dict(enumerate(names)), **config}
        torch.manual_seed(1)
        model = AutoModelForSequenceClassification.from_pretrained(tiny_bert, **settings)
        if rule is not None:
            model.config.decision_rule = rule.to_dict()
        folder = tmp_path / "exported"
        shutil.copytree(tiny_bert, folder)
        model.save_pretrained(folder)
        if rule is not None:
            rule.save(folder / "decision_rule.json")
        return folder

    return make


def read(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.exact
@pytest.mark.parametrize("criterion", ["YoudenJ", "costs"])
def test_predict_predictor_and_the_evaluation_decide_every_row_alike(tiny_bert, films, criterion) -> None:
    settings = yaml.safe_load(write_recipe(tiny_bert, films).read_text())
    chosen = {"criterion": "lit_trainer.decision.criteria.YoudenJ"}
    if criterion == "costs":
        chosen = {"costs": {"bad": {"good": 6.0}, "good": {"bad": 1.0}}}
    data = settings["data"]["init_args"]
    data |= {"splits": {"validation": 0.3, "test": 0.3}, "max_length": 9}
    settings["model"]["init_args"]["optimizer"]["lr"] = 2e-2
    settings["trainer"]["max_epochs"] = 3
    settings["trainer"]["callbacks"] += [
        {
            "class_path": f"{CALLBACKS}.decision_rule.FitDecisionRule",
            "init_args": {**chosen, "bootstrap": {"num_resamples": 50}},
        },
        {"class_path": f"{CALLBACKS}.export_pretrained.ExportPretrained"},
    ]
    Path("recipe.yaml").write_text(yaml.safe_dump(settings))
    run = main(["--config=recipe.yaml"], run=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "decision rule fitted on validation")
        run.run()
    folder = Path("runs/films/version_0")
    rule = DecisionRule.load(folder / "decision_rule.json")
    assert run.model.decision_rule == rule
    evaluated = [rule.label_names[label] for label in rule.decide(run.model.scores.logits).labels]
    default = DecisionRule("binary", rule.label_names).decide(run.model.scores.logits).labels
    by_default = [rule.label_names[label] for label in default]
    assert len(evaluated) == 27
    assert evaluated != by_default, "a test of the rule needs rows that it decides differently"

    main(["predict", f"--config={folder}/config.yaml", f"--ckpt_path={folder}", "--predictions.path=p.csv"])
    rows = read("p.csv")
    assert [row["label"] for row in rows] == evaluated

    predictor = Predictor(folder / "export", batch_size=7)
    assert predictor.rule == rule
    predicted = predictor.predict([row["text"] for row in rows])
    assert [each.label for each in predicted] == evaluated
    # Calibration multiplies the rounding of float32 logits by its factor, which is large for a model that knows little.
    factor = max(1.0, *map(abs, rule.to_dict()["calibration"]["factors"])) if rule.calibration else 1.0
    for each, row in zip(predicted, rows, strict=True):
        for name, probability in each.probabilities.items():
            assert probability == pytest.approx(float(row[f"probability_{name}"]), abs=1e-6 * factor)

    classify = transformers.pipeline("text-classification", model=str(folder / "export"), truncation=True)
    assert [answer["label"] for answer in classify([row["text"] for row in rows])] == by_default
    assert "so that some labels differ" in (folder / "export/README.md").read_text()
    assert read(str(folder / "metrics.csv"))[-1]["test_rule/f1_macro_low"]


def test_texts_are_predicted_alike_alone_in_any_order_and_in_any_batch(exported, films) -> None:
    folder = exported()
    texts = films["text"][:20]
    together = Predictor(folder, batch_size=20).predict(texts)
    for predictor in (Predictor(folder, batch_size=1), Predictor(folder, batch_size=3)):
        alone = predictor.predict(texts)
        assert [each.label for each in alone] == [each.label for each in together]
        for one, other in zip(alone, together, strict=True):
            assert one.probabilities == pytest.approx(other.probabilities, abs=1e-6)
    backwards = Predictor(folder).predict(texts[::-1])[::-1]
    assert [each.label for each in backwards] == [each.label for each in together]


def test_labels_are_decided_by_the_file_then_by_the_configuration_then_by_what_is_probable(exported) -> None:
    folder = exported()
    other = DecisionRule("binary", ("bad", "good"), thresholds=(0.1,))
    other.save(folder / "decision_rule.json")
    assert Predictor(folder).rule == other
    (folder / "decision_rule.json").unlink()
    assert Predictor(folder).rule == RULE
    config = AutoConfig.from_pretrained(folder)
    del config.decision_rule
    config.save_pretrained(folder)
    assert Predictor(folder).rule == DecisionRule("binary", ("bad", "good"))


def test_a_prediction_has_the_label_and_all_probabilities(exported) -> None:
    predictor = Predictor(exported())
    (prediction,) = predictor.predict(["the good film"])
    assert isinstance(prediction, Prediction)
    assert sum(prediction.probabilities.values()) == pytest.approx(1)
    assert prediction.label == ("good" if prediction.probabilities["good"] >= 0.8 else "bad")
    columns = predictor.columns(["the good film"])
    assert list(columns) == ["label", "probability_bad", "probability_good"]


def test_several_labels_values_and_pairs(exported) -> None:
    rule = DecisionRule("multi_label", ("a", "b", "c"), thresholds=(0.0, 0.0, 1.0))
    (several,) = Predictor(exported(rule, problem_type="multi_label_classification")).predict([("the film", "w1")])
    assert several.label == ("a", "b")
    shutil.rmtree("exported")
    (value,) = Predictor(exported(None, num_labels=1, id2label={0: "value"}, problem_type="regression")).predict(["w1"])
    assert isinstance(value.label, float)
    assert value.probabilities == {}


def test_nothing_is_predicted_for_no_texts(exported) -> None:
    assert Predictor(exported()).predict([]) == []


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("a text", "texts is a text; it takes a list of texts"),
        (["w1", None], r"texts\[1\] is None; it must be a text"),
        ([("w1", "w2"), "w3"], r"texts\[1\] is 'w3'; it must be a pair of texts"),
        ([3], r"texts\[0\] is 3; it must be a text or a pair of texts"),
        (["w1", ("w1", "w2")], r"texts\[1\] is \('w1', 'w2'\); it must be a text"),
    ],
)
def test_what_is_no_text_is_told(exported, texts, message) -> None:
    with pytest.raises(ValueError, match=message):
        Predictor(exported()).predict(texts)


def test_a_rule_for_other_labels_or_of_a_newer_version_is_refused(exported) -> None:
    folder = exported()
    path = folder / "decision_rule.json"
    DecisionRule("binary", ("good", "bad")).save(path)
    with pytest.raises(
        ValueError, match=r"decision_rule.json: .* for the labels \[good, bad\], the model has \[bad, good\]"
    ):
        Predictor(folder)
    path.write_text(json.dumps({**RULE.to_dict(), "version": 9}))
    with pytest.raises(
        ValueError, match=r"decision_rule\.json: the decision rule has version 9; this lit_trainer reads up"
    ):
        Predictor(folder)


def test_a_folder_without_a_trained_model_is_refused(tiny_bert, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"was not trained to classify texts: it lacks classifier\.bias"):
        Predictor(tiny_bert)
    with pytest.raises(ValueError, match=r"folder: no model can be loaded from '.*nowhere'"):
        Predictor(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="batch_size is 0 but must be at least 1"):
        Predictor(tiny_bert, batch_size=0)


def test_predicting_needs_no_lightning() -> None:
    code = "import sys, lit_trainer.inference; print('lightning' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "False"


def test_logits_are_those_of_the_model(exported, films) -> None:
    predictor = Predictor(exported())
    found = predictor.logits(films["text"][:5])
    inputs = [predictor.tokenizer(text, return_tensors="pt") for text in films["text"][:5]]
    with torch.inference_mode():
        expected = np.concatenate([predictor.model(**each).logits.numpy() for each in inputs])
    np.testing.assert_allclose(found, expected, atol=1e-5)
