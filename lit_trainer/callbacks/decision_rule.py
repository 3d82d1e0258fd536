"""Fits a decision rule for the best model on rows held out for it, or on the validation rows."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities import rank_zero_warn
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from lit_trainer.callbacks.best_checkpoint import best_callback
from lit_trainer.callbacks.decision_card import criterion_name, told
from lit_trainer.callbacks.run_folder import run_folder
from lit_trainer.callbacks.run_position import is_dry_run
from lit_trainer.decision.calibration_choice import CalibrationMethod
from lit_trainer.decision.criteria import Criterion, ExpectedCost
from lit_trainer.decision.fitting import BOOTSTRAP, fit_rule
from lit_trainer.decision.intervals import Bootstrap
from lit_trainer.decision.rule import FILE_NAME, DecisionRule
from lit_trainer.decision.saved_rules import rule_path

_log = logging.getLogger(__name__)

_SCORES = "validation_scores"
_CHOSEN_HERE = (
    "the same rows also chose the weights, among the evaluations of the run: only a test split is free of that choice"
)


class _Evaluation(NamedTuple):
    """What an evaluation found on all rows: logits ``[N, C]`` of the weights of a step, and labels."""

    step: int
    logits: Tensor
    labels: Tensor


class FitDecisionRule(pl.Callback):
    """Fits how labels are decided, on the logits that the best checkpoint's own weights gave.

    It does so when training ends, before the model is exported and tested, wherever it stands among the callbacks. The
    rule is fitted on all rows of the calibration split, ``data.splits.calibration``, which every evaluation scores too;
    without one on all validation rows, which have chosen the weights already. How good it is said to be, each part of
    the rows says of a rule fitted on the others. It becomes the task's ``decision_rule``, stands in the run's folder as
    ``decision_rule.json`` and is exported with the model; a test logs ``test_rule/<metric>`` beside
    ``test_default/<metric>``, and a validation of a rule that was not fitted on it ``val_rule/<metric>``. Where no rule
    can be fitted, the run ends without one and a warning says why. Checkpoints hold the logits of two evaluations, for
    a resume. With a second one of these callbacks, the later one's rule counts.

    Args:
        criterion: What decisions are chosen by. Without it and costs they stay with the most probable class, or 0.5.
        costs: Instead of a criterion: what each mistake costs, as ``{true label: {decided label: cost}}``, by name;
            what is not given costs nothing. For several labels at once the names are ``absent`` and ``present``.
        calibration: How probabilities are corrected, by a method of ``lit_trainer.decision.calibration``; ``auto`` is
            vector scaling for two classes, and else that or temperature scaling, whichever makes rows that it was not
            fitted on likelier. None keeps the model's own, and searches for the threshold that cost least.
        positive_label: Of two classes, the one the decision's threshold is about. None is the last.
        folds: Into how many parts the rows are cut to measure the rule; None measures nothing.
        bootstrap: How intervals are made.

    Attributes:
        rule: The rule, once it is fitted.

    Raises:
        ValueError: Before training, if the settings do not fit the labels or the task decides nothing.
    """

    def __init__(
        self,
        criterion: Criterion | None = None,
        costs: dict[str, dict[str, float]] | None = None,
        calibration: CalibrationMethod | None = "auto",
        positive_label: str | None = None,
        folds: int | None = 5,
        bootstrap: Bootstrap | None = None,
    ) -> None:
        if criterion is not None and costs is not None:
            raise ValueError("criterion and costs are given but only one can be (FitDecisionRule)")
        if criterion is None and costs is None and calibration is None:
            raise ValueError("criterion, costs and calibration are all null, so that there is nothing to fit")
        if folds is not None and folds < 2:
            raise ValueError(f"folds is {folds} but must be at least 2, or null (FitDecisionRule)")
        self.criterion, self.costs, self.calibration = criterion, costs, calibration
        self.positive_label, self.folds, self.bootstrap = positive_label, folds, bootstrap or BOOTSTRAP
        self.rule: DecisionRule | None = None
        self._latest: _Evaluation | None = None
        self._best: _Evaluation | None = None
        self._best_name = ""
        self._calibration: Any = None
        self._resumed_split: str | None = None

    # -- what the evaluations have found -------------------------------------------------------------------------------

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Forgets another run."""
        if stage == "fit":
            self.rule = self._latest = self._best = self._resumed_split = None
            self._best_name = ""

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Finds out before training what would make the fit fail after it."""
        if not hasattr(type(pl_module), "decision_rule") or not hasattr(pl_module, "scores"):
            raise ValueError(
                f"FitDecisionRule: {type(pl_module).__name__} has no decision_rule to be fitted, or no scores to fit it"
                " on"
            )
        default: DecisionRule | None = pl_module.decision_rule  # type: ignore[assignment]
        if default is None:
            raise ValueError("FitDecisionRule: a task with values instead of labels has nothing to decide")
        default = DecisionRule(default.kind, default.label_names, self.positive_label)
        criterion = self._criterion(default)
        if criterion is not None:
            criterion.check(default.kind, len(default.label_names))
        offered = getattr(trainer.datamodule, "calibration_dataloader", None)  # type: ignore[attr-defined]
        self._calibration = offered() if offered is not None else None
        if self._resumed_split not in (None, self._split):
            self._best = self._latest = None  # of other rows

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keeps what this evaluation found until it is known whether it is the best."""
        if trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking:
            return
        self._note_best(trainer)
        scores: Any = pl_module.scores
        if self._calibration is not None:
            scores = pl_module.score(islice(self._calibration, _limit(trainer, len(self._calibration))))  # type: ignore[operator]
        self._latest = _Evaluation(trainer.global_step, scores.logits, scores.labels)

    def _note_best(self, trainer: pl.Trainer) -> None:
        """Notes whether the evaluation before is the best so far: checkpoints are saved after all other callbacks."""
        best = best_callback(trainer)
        name = Path(best.best_model_path).name if best else ""  # after a resume it may be in another folder
        if name != self._best_name:
            self._best_name, self._best = name, self._latest

    # -- fitting -------------------------------------------------------------------------------------------------------

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Fits the rule on the first rank and gives it to all."""
        if is_dry_run(trainer):
            return
        self._note_best(trainer)
        folder = run_folder(trainer)  # all ranks have to ask
        rule = self._fit(trainer, pl_module) if trainer.is_global_zero else None
        data = trainer.strategy.broadcast(rule.to_dict() if rule else None)
        if data is None:
            return
        self.rule = DecisionRule.from_dict(data)
        pl_module.decision_rule = self.rule  # type: ignore[assignment]
        if trainer.is_global_zero:
            best = best_callback(trainer)
            for path in {folder / FILE_NAME, rule_path(best.best_model_path) if best else folder / FILE_NAME}:
                path.parent.mkdir(parents=True, exist_ok=True)
                self.rule.save(path)
            _log.info("%s", _summary(self.rule))

    def _fit(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> DecisionRule | None:
        best = best_callback(trainer)
        evaluation, step = self._latest, trainer.global_step
        default: DecisionRule = pl_module.decision_rule  # type: ignore[assignment]
        split = self._split
        try:
            if best is not None:
                checkpoint = torch.load(best.best_model_path, map_location="cpu", weights_only=True, mmap=True)
                evaluation, step = self._best, int(checkpoint["global_step"])
            if evaluation is None or evaluation.step != step:
                raise ValueError(f"there was no evaluation of the weights to keep, those of step {step}")
            rule = fit_rule(
                evaluation.logits,
                evaluation.labels,
                kind=default.kind,
                label_names=default.label_names,
                split=split,
                criterion=self._criterion(default),
                calibration=self.calibration,
                positive_label=self.positive_label,
                folds=self.folds,
                bootstrap=self.bootstrap,
            )
        except (OSError, ValueError) as error:  # the training must not be lost for it
            rank_zero_warn(f"no decision rule was fitted, labels are decided without: {error}")
            return None
        record = rule.fitted_on
        assert record is not None
        notes = (*record.notes, _CHOSEN_HERE) if best is not None and split == "validation" else record.notes
        return replace(rule, fitted_on=replace(record, step=step, notes=notes))

    @property
    def _split(self) -> str:
        """What the split of the rows is called that the rule is fitted on."""
        return "validation" if self._calibration is None else "calibration"

    def _criterion(self, default: DecisionRule) -> Criterion | None:
        if self.costs is None:
            return self.criterion
        names = ("absent", "present") if default.kind == "multi_label" else default.label_names
        return ExpectedCost(_cost_matrix(self.costs, names))

    # -- resuming ------------------------------------------------------------------------------------------------------

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Adds the evaluations that may turn out to be the best, for a resume."""
        checkpoint[_SCORES] = {
            "split": self._split,
            "best_name": self._best_name,
            "best": self._best._asdict() if self._best else None,
            "latest": self._latest._asdict() if self._latest else None,
        }

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Takes over the evaluations so far when a run resumes."""
        saved = checkpoint.get(_SCORES)
        if saved is None or trainer.state.fn != TrainerFn.FITTING:
            return
        self._best_name = saved["best_name"]
        self._best, self._latest = (_Evaluation(**saved[key]) if saved[key] else None for key in ("best", "latest"))
        self._resumed_split = saved["split"]


def _limit(trainer: pl.Trainer, num_batches: int) -> int:
    """Returns of how many batches of other rows to make use where the run makes use of so many for validation."""
    limit = trainer.limit_val_batches
    return min(limit, num_batches) if isinstance(limit, int) else int(num_batches * limit)


def _cost_matrix(costs: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> tuple[tuple[float, ...], ...]:
    """Returns costs by class number, rows true, columns decided."""
    unknown = sorted({name for true, row in costs.items() for name in (true, *row)} - set(names))
    if unknown:
        raise ValueError(f"costs names {', '.join(unknown)} (FitDecisionRule); the labels are {', '.join(names)}")
    return tuple(tuple(costs.get(true, {}).get(decided, 0.0) for decided in names) for true in names)


def _summary(rule: DecisionRule) -> str:
    """Says in a line what was fitted and how good it is."""
    record = rule.fitted_on
    assert record is not None
    parts = [f"Decision rule for step {record.step}, fitted on {record.num_rows:,} {record.split} rows"]
    if record.metric is not None and record.default_metric is not None:
        by = criterion_name(record)
        parts.append(
            f"{by} on rows it was not fitted on {told(record.metric)}, by default {told(record.default_metric)}"
        )
    error = record.calibration_error
    if rule.calibration is not None and error.after is not None:
        parts.append(f"calibration error {error.before:.4f} before, {error.after:.4f} after")
    return "; ".join(parts)
