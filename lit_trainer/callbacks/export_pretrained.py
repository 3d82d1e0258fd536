"""Exports the best model as a Hugging Face folder."""

import copy
import dataclasses
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities import rank_zero_warn
from torch import Tensor
from transformers import PreTrainedModel

from lit_trainer.callbacks.best_checkpoint import best_callback
from lit_trainer.callbacks.decision_card import decision_section
from lit_trainer.callbacks.exported_model import empty_sibling, put_in_place, write_model
from lit_trainer.callbacks.model_card import ModelCard
from lit_trainer.callbacks.run_folder import run_folder
from lit_trainer.callbacks.run_position import is_dry_run
from lit_trainer.callbacks.trainable_only import TrainableOnly
from lit_trainer.decision.rule import CONFIG_KEY, FILE_NAME, DecisionRule

_log = logging.getLogger(__name__)

_COMPILED = "_orig_mod."


class ExportPretrained(pl.Callback):
    """Writes the best model, its tokenizer and a model card when training has ended.

    ``from_pretrained`` and the pipelines of Transformers load the folder as it is. It is loaded once here, too, and
    must compute the logits of the best checkpoint. Without one, for want of validation, the model is exported as
    training left it. A decision rule that was fitted for these weights goes with them, as ``decision_rule.json`` and
    in ``config.json``. A test of the exported weights adds its metrics to the card. A dry run exports nothing.

    Args:
        folder: Where to, in the run's folder unless it is absolute. What is there already is moved aside, to a name
            with a number.
        base_model: The pretrained model's name on the Hub, for the card, if ``model.pretrained`` is not that.
        license: The licence of the weights, for the card, as the Hub abbreviates it.
        language: The language of the texts, for the card, as the Hub abbreviates it.

    Attributes:
        exported_to: The folder, once it is there.
        exported_from: The checkpoint the weights are from, or None for the weights at the end of training.

    Raises:
        ValueError: Before training, if the module has no model of Transformers or the folder holds the run's.
        RuntimeError: If the exported model is not the best one.
    """

    def __init__(
        self,
        folder: str = "export",
        base_model: str | None = None,
        license: str | None = None,
        language: str | None = None,
    ) -> None:
        self.folder = folder
        self.base_model = base_model
        self.license = license
        self.language = language
        self.exported_to: Path | None = None
        self.exported_from: str | None = None
        self._run_folder = Path()
        self._exported_step = 0
        self._card: ModelCard | None = None
        self._rule: DecisionRule | None = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Finds out before training what would make the export fail after it."""
        self.exported_to = self.exported_from = self._card = self._rule = None
        self._run_folder = run_folder(trainer)
        place = self._place().resolve()
        if self._run_folder.resolve().is_relative_to(place):
            raise ValueError(f"ExportPretrained: folder is {self.folder!r}, which holds the run's own folder")
        model = getattr(pl_module, "model", None)
        if not isinstance(_plain(model), PreTrainedModel):
            raise ValueError(
                f"ExportPretrained exports a PreTrainedModel of Transformers, but the model of"
                f" {type(pl_module).__name__} is a {type(model).__name__}"
            )

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Exports, on the first rank; the others have nothing to wait for."""
        if is_dry_run(trainer) or not trainer.is_global_zero:
            return
        best = best_callback(trainer)
        self.exported_from = best.best_model_path if best else None
        model, data = _plain(pl_module.model), getattr(trainer, "datamodule", None)
        labels = _label_names(data, model)
        if labels:
            model.config.id2label = dict(enumerate(labels))
            model.config.label2id = {name: number for number, name in enumerate(labels)}
        place = self._place()
        part = empty_sibling(place)
        weights = self._weights(trainer, pl_module)
        rule_at: Callable[[int], DecisionRule | None] | None = getattr(pl_module, "rule_at", None)
        self._rule = rule_at(self._exported_step) if rule_at else None
        _keep_rule(model, self._rule)
        write_model(model, weights, _tokenizer(data), part)
        if self._rule is not None:
            self._rule.save(part / FILE_NAME)
        self._card = self._describe(trainer, pl_module, best, labels)
        (part / "README.md").write_text(str(self._card), encoding="utf-8")
        aside = put_in_place(part, place)
        self.exported_to = place
        _log.info("Exported the model to %s%s", place, f"; what was there is now {aside}" if aside else "")

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Adds the metrics of a test of the exported weights to the card."""
        if self._card is None or self.exported_to is None:
            return
        if not self._was_tested(trainer):
            tested = trainer.ckpt_path or "the model in memory"
            rank_zero_warn(f"the model card gets no test metrics: {tested} was tested, not what was exported")
            return
        self._card = dataclasses.replace(
            self._card,
            test=_of_stage(trainer.callback_metrics, "test"),
            decisions=decision_section(self._rule, trainer.callback_metrics),
            baseline={
                key.removeprefix("test/"): float(value)
                for key, value in (getattr(pl_module, "baseline_metrics", None) or {}).items()
            },
        )
        readme = self.exported_to / "README.md"
        part = readme.with_name(".README.md.part")
        part.write_text(str(self._card), encoding="utf-8")
        part.replace(readme)

    def _place(self) -> Path:
        return self._run_folder / self.folder

    def _weights(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Tensor]:
        """Returns the weights to export by the model's own names, on the CPU."""
        if self.exported_from is None:
            self._exported_step = trainer.global_step
            state = {name: weight.detach().cpu() for name, weight in pl_module.state_dict().items()}
        else:
            checkpoint = torch.load(self.exported_from, map_location="cpu", weights_only=True, mmap=True)
            self._exported_step, state = int(checkpoint["global_step"]), checkpoint["state_dict"]
            for callback in trainer.callbacks:  # type: ignore[attr-defined]
                if isinstance(callback, TrainableOnly):
                    callback.complete(pl_module, state)
        names = [name for name in state if name.startswith("model.")]
        return {name.removeprefix("model.").replace(_COMPILED, ""): state[name] for name in names}

    def _was_tested(self, trainer: pl.Trainer) -> bool:
        if trainer.ckpt_path is not None:
            return self.exported_from is not None and Path(trainer.ckpt_path).samefile(self.exported_from)
        return trainer.global_step == self._exported_step

    def _describe(self, trainer: pl.Trainer, pl_module: pl.LightningModule, best: Any, labels: list[str]) -> ModelCard:
        chosen_by, metrics = f"The weights are those at the end of training, step {self._exported_step}.", None
        if best is not None:
            metrics = getattr(best, "best_metrics", None)
            chosen_by = f"The weights are those of step {self._exported_step} of {trainer.global_step}"
            monitor = getattr(best, "monitor", None)
            chosen_by += f", the best by {monitor}." if monitor else "."
        model = _plain(pl_module.model)
        configuration = self._run_folder / "config.yaml"
        return ModelCard(
            model_class=type(model).__name__,
            started_from=str(getattr(pl_module, "pretrained", None) or model.name_or_path or "nothing"),
            base_model=self.base_model,
            labels=labels,
            data=_described_data(getattr(trainer, "datamodule", None)),
            chosen_by=chosen_by,
            decisions=decision_section(self._rule, {}),
            validation=_of_stage(trainer.callback_metrics if metrics is None else metrics, "val"),
            configuration=configuration.read_text(encoding="utf-8") if configuration.is_file() else "",
            license=self.license,
            language=self.language,
        )


def _plain(model: Any) -> Any:
    """Returns a model without the wrapper that `torch.compile` puts around it."""
    return getattr(model, "_orig_mod", model)


def _keep_rule(model: PreTrainedModel, rule: DecisionRule | None) -> None:
    """Puts the rule into the configuration, in which the model that training started from may have had another."""
    vars(model.config).pop(CONFIG_KEY, None)
    if rule is not None:
        setattr(model.config, CONFIG_KEY, rule.to_dict())


def _tokenizer(data: Any) -> Any:
    """Returns the data's tokenizer with the limit that texts were cut at, so that others cut them there, too."""
    tokenizer, limit = getattr(data, "tokenizer", None), getattr(data, "max_length", None)
    if tokenizer is not None and limit is not None:
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.model_max_length = limit
    return tokenizer


def _label_names(data: Any, model: PreTrainedModel) -> list[str]:
    names = list(getattr(getattr(data, "label_map", None), "names", ()))
    return names if len(names) == getattr(model.config, "num_labels", 0) else []


def _described_data(data: Any) -> list[str]:
    """Returns what the data module's ``report`` says, a list item a line."""
    report = getattr(data, "report", None)
    return [f"- {line}" for line in str(report).splitlines()] if report is not None else []


def _of_stage(metrics: Mapping[str, Any], stage: str) -> dict[str, float]:
    prefix = f"{stage}/"
    return {key.removeprefix(prefix): float(value) for key, value in metrics.items() if key.startswith(prefix)}
