"""One label, several labels or a value for each text."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torchmetrics import Metric
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from lit_trainer.batch import ROW, Batch, model_inputs
from lit_trainer.decision.comparison import compare
from lit_trainer.decision.rule import DecisionRule
from lit_trainer.decision.saved_rules import is_for, read_rule, rule_path
from lit_trainer.losses.base import Loss
from lit_trainer.losses.binary_cross_entropy import BinaryCrossEntropy
from lit_trainer.losses.cross_entropy import CrossEntropy
from lit_trainer.losses.mean_squared_error import MeanSquaredError
from lit_trainer.models.loading import load_pretrained
from lit_trainer.optim.optimizer import OptimizerSpec
from lit_trainer.tasks.base import Task
from lit_trainer.tasks.metrics import Kind, default_metrics, evaluate, predictions
from lit_trainer.tasks.scores import Scores, ScoreTable
from lit_trainer.wheel import WheelMember

_RULE = "decision_rule"


class Labelling(Protocol):
    """What the task has to know of the data's labels; the data module's ``label_map`` is one."""

    names: tuple[str, ...]
    kind: Kind


class SequenceClassification(Task):
    """Fine-tunes any model of Transformers that has a head for sequence classification.

    Binary and multi-class labels are trained by cross-entropy, several labels at once by binary cross-entropy and
    values by mean squared error, unless another loss is given. Validation and test bring all rows together before any
    metric is computed, so that a metric has the same value on any number of ranks.

    Args:
        pretrained: The model to start from: a folder, a name on the Hub, or a member of a wheel.
        loss: A `Loss`, or a function of ``(logits, labels)`` that gives one value per row. None takes the usual one
            for the labels.
        optimizer: Which optimizer, at which rates.
        metrics: More metrics of torchmetrics, by the name to log them under; one with a default's name replaces it.
        config: Entries of the model's configuration to replace, such as ``{hidden_dropout_prob: 0.2}``.
        gradient_checkpointing: Whether activations are computed again in the backward pass instead of kept.
        compile: Whether the model is compiled.
        keyed_dropout: Whether dropout is a function of the row, its place in the plan and the layer rather than of a
            stream of random numbers, so that it is the same on any split of the hardware.
        trust_remote_code: Whether code that comes with the model may run.
    """

    def __init__(
        self,
        pretrained: WheelMember | str,
        loss: Loss | Callable[..., Any] | None = None,
        optimizer: OptimizerSpec | None = None,
        metrics: dict[str, Metric] | None = None,
        config: dict[str, Any] | None = None,
        gradient_checkpointing: bool = False,
        compile: bool = False,
        keyed_dropout: bool = True,
        trust_remote_code: bool = False,
    ) -> None:
        super().__init__(
            pretrained, loss, optimizer, config, gradient_checkpointing, compile, keyed_dropout, trust_remote_code
        )
        self._own_metrics = dict(metrics or {})
        self._table = ScoreTable()
        self._features: Tensor | None = None
        self.scores: Scores | None = None
        self.baseline_metrics: dict[str, float] | None = None
        self._rule: DecisionRule | None = None
        self._loaded_step: int | None = None

    # -- the model and its labels ------------------------------------------------------------------------------------

    @property
    def labelling(self) -> Labelling:
        """The kind of the labels and their names, from the data module."""
        labelling: Labelling | None = getattr(self.data, "label_map", None)
        if labelling is None:
            raise ValueError("data.label: the task needs a data module that knows the labels (its label_map)")
        return labelling

    @property
    def decision_rule(self) -> DecisionRule | None:
        """How labels are decided from the logits of the present weights; None for values.

        It can be set. A rule that was fitted for the weights of one step is for those alone: with others, and without
        a rule, it is the most probable class, or 0.5 and above.
        """
        return self._rule_of_weights() or self._default_rule()

    @decision_rule.setter
    def decision_rule(self, rule: DecisionRule | None) -> None:
        self._rule = rule

    def rule_at(self, step: int) -> DecisionRule | None:
        """Returns the rule that was fitted, or set, for the weights of an optimizer step, if there is one.

        Raises:
            ValueError: If it is for other labels than the data's.
        """
        rule = self._rule
        if rule is None or not is_for(rule, step):
            return None
        default = self._default_rule()
        if default is None or rule.kind != default.kind:
            there = "values" if default is None else default.kind
            raise ValueError(f"the decision rule is for {rule.kind}, the data's labels are {there}")
        rule.check_labels(default.label_names)
        return rule

    def _rule_of_weights(self) -> DecisionRule | None:
        return self.rule_at(self.trainer.global_step if self._loaded_step is None else self._loaded_step)

    def _default_rule(self) -> DecisionRule | None:
        kind, names = self.labelling.kind, tuple(self.labelling.names)
        if kind == "regression":
            return None
        if kind == "multi_label":
            return DecisionRule("multi_label", names)
        return DecisionRule("binary" if len(names) == 2 else "multi_class", names)

    def on_fit_start(self) -> None:
        """Forgets a rule that was fitted for weights which training now changes."""
        super().on_fit_start()
        self._loaded_step = None
        if self._rule is not None and self._rule.fitted_on is not None:
            self._rule = None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the decision rule, as plain data, if there is one for these weights."""
        super().on_save_checkpoint(checkpoint)
        rule = self._rule_of_weights()
        if rule is not None:
            checkpoint[_RULE] = rule.to_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes the decision rule from the checkpoint or from the folder of its run; training begins without one.

        Raises:
            ValueError: If there is a rule that is for other labels, or that a newer version has written.
        """
        super().on_load_checkpoint(checkpoint)
        if self.trainer.state.fn == TrainerFn.FITTING:
            return
        self._loaded_step = int(checkpoint["global_step"])
        if self._rule is not None and self._rule.fitted_on is None:
            return  # it was set, not fitted, and so is to stay
        file = rule_path(str(self.trainer.ckpt_path))
        if _RULE in checkpoint:
            self._rule = DecisionRule.from_dict(checkpoint[_RULE])
        elif file.is_file():
            self._rule = read_rule(file, self._loaded_step, self.labelling.names)
        else:
            self._rule = None

    def load_model(self) -> PreTrainedModel:
        """Loads the model with a head for the labels and their names in its configuration."""
        names = self.labelling.names
        problem = {"classes": "single_label", "multi_label": "multi_label"}.get(self.labelling.kind)
        model = load_pretrained(
            AutoModelForSequenceClassification,
            self.pretrained,
            seed=self.seed,
            config={
                **self.config,
                "num_labels": len(names),
                "id2label": dict(enumerate(names)),
                "label2id": {name: index for index, name in enumerate(names)},
                "problem_type": f"{problem}_classification" if problem else "regression",
            },
            gradient_checkpointing=self.gradient_checkpointing,
            trust_remote_code=self.trust_remote_code,
            is_to_be_trained=self.trainer.state.fn == TrainerFn.FITTING,
        )
        if model.config.pad_token_id is None:  # a decoder finds a row's last real token by it
            model.config.pad_token_id = self.data.tokenizer.pad_token_id
        head = _head(model, len(names))
        if head is not None and not self.compile_model:
            head.register_forward_pre_hook(self._keep_features)
        return model

    def configure_model(self) -> None:
        """Loads the model and tells the loss which labels there are."""
        super().configure_model()
        assert self.loss is not None
        if self.trainer.state.fn == TrainerFn.PREDICTING:
            return
        counts = getattr(self.data, "label_counts", None)
        if counts is not None and self.labelling.kind != "regression":
            self.loss.fit_to_labels(self.labelling.names, counts, num_rows=self.data.num_labelled_rows)

    def default_loss(self) -> Loss:
        """Returns the usual loss for the kind of the labels."""
        usual: dict[Kind, type[Loss]] = {
            "classes": CrossEntropy,
            "multi_label": BinaryCrossEntropy,
            "regression": MeanSquaredError,
        }
        return usual[self.labelling.kind]()

    def compute_outputs(self, batch: Batch) -> dict[str, Any]:
        """Runs the model as often as the loss wants it.

        Args:
            batch: A micro-batch.

        Returns:
            ``logits`` ``[B, C]`` and ``features`` ``[B, D]``, which is what the head is applied to, unless the model is
            compiled; with a leading axis where the loss wants several passes.
        """
        assert self.loss is not None
        inputs = model_inputs(batch)
        outputs: list[dict[str, Any]] = []
        for pass_index in range(self.loss.passes):
            self._features = None
            self.key_dropout(batch, pass_index)
            output = {"logits": self.model(**inputs).logits}
            if self._features is not None:
                output["features"] = _of_rows(self._features, inputs)
            outputs.append(output)
        if len(outputs) == 1:
            return outputs[0]
        return {key: torch.stack([output[key] for output in outputs]) for key in outputs[0]}

    def _keep_features(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._features = inputs[0]

    # -- evaluation --------------------------------------------------------------------------------------------------

    def evaluation_step(self, batch: Batch) -> None:
        """Scores a batch and keeps its logits for the end of the evaluation.

        Args:
            batch: As the evaluation loader makes it.
        """
        outputs = self.compute_outputs(batch)
        self._table.add(batch, self._of_one_pass(outputs["logits"]), *self.compute_loss(outputs, batch))

    def on_validation_epoch_start(self) -> None:
        """Begins an evaluation."""
        self._table = ScoreTable()

    def on_test_epoch_start(self) -> None:
        """Begins an evaluation."""
        self._table = ScoreTable()

    def on_validation_epoch_end(self) -> None:
        """Logs ``val/loss`` and ``val/<metric>``."""
        self._log_scores("val")

    def on_test_epoch_end(self) -> None:
        """Logs ``test/loss`` and ``test/<metric>``, and works out what always giving the average label would score."""
        self._log_scores("test")

    def score(self, batches: Iterable[Batch]) -> Scores:
        """Scores rows that are no part of an evaluation, such as those that decisions are fitted on.

        To be called on every rank, where an evaluation has just ended; what that found stays as it is.

        Args:
            batches: As the evaluation loader makes them, on any device.
        """
        self._table = ScoreTable()
        strategy = self.trainer.strategy
        with torch.no_grad(), strategy.precision_plugin.val_step_context():
            for batch in batches:
                self.evaluation_step(strategy.batch_to_device(batch))
        scores, self._table = self._table.collect(), ScoreTable()
        return scores

    def _log_scores(self, stage: str) -> None:
        scores = self.scores = self._table.collect()
        self._table = ScoreTable()
        kind, names = self.labelling.kind, self.labelling.names
        metrics = {**default_metrics(kind, len(names)), **self._own_metrics}
        values = evaluate(metrics, kind, predictions(kind, scores.logits), scores.labels, names)
        # Every rank has computed the same from all rows, so nothing is left to reduce.
        self.log_dict(
            {f"{stage}/{name}": value.float() for name, value in {"loss": scores.loss, **values}.items()},
            rank_zero_only=False,
            batch_size=1,
        )
        baseline = getattr(self.data, "baseline_prediction", None)
        if stage == "test" and baseline is not None:
            constant = torch.as_tensor(baseline, dtype=torch.float32).expand(len(scores.rows), *baseline.shape)
            found = evaluate(metrics, kind, constant.contiguous(), scores.labels, names)
            self.baseline_metrics = {name: float(value) for name, value in found.items()}
        rule = self._rule_of_weights() if self.trainer.state.fn != TrainerFn.FITTING else None
        fitted_on = rule.fitted_on.split if rule is not None and rule.fitted_on is not None else None
        if rule is not None and (stage == "test" or fitted_on != "validation"):
            self._log_decisions(stage, rule, scores)

    def _log_decisions(self, stage: str, rule: DecisionRule, scores: Scores) -> None:
        """Logs what the rule makes of the rows as ``test_rule/<metric>``, and without it as ``test_default/<metric>``.

        Each has its interval beside it, ``<metric>_low`` and ``<metric>_high``. Of validation rows, on which the rule
        was not fitted, it is ``val_rule`` and ``val_default``.
        """
        for name, compared in compare(rule, scores.logits, scores.labels).items():
            for way, estimate in (("rule", compared.by_rule), ("default", compared.by_default)):
                values = {"": estimate.value, "_low": estimate.low, "_high": estimate.high}
                self.log_dict(
                    {f"{stage}_{way}/{name}{suffix}": value for suffix, value in values.items()},
                    rank_zero_only=False,
                    batch_size=1,
                )

    def prediction_step(self, batch: Batch) -> dict[str, Tensor]:
        """Returns ``row`` ``[B]``, -1 where it does not count, and ``logits`` ``[B, C]``.

        Args:
            batch: As the evaluation loader makes it; labels are not needed.
        """
        return {ROW: batch[ROW], "logits": self._of_one_pass(self.compute_outputs(batch)["logits"])}

    def _of_one_pass(self, logits: Tensor) -> Tensor:
        assert self.loss is not None
        return logits if self.loss.passes == 1 else logits.mean(0)


def _head(model: PreTrainedModel, num_labels: int) -> nn.Linear | None:
    """Returns the linear layer that makes the logits, if there is one outside the body."""
    body = set(model.base_model.modules()) if model.base_model is not model else set()
    linear = [module for module in model.modules() if isinstance(module, nn.Linear) and module not in body]
    return next((layer for layer in reversed(linear) if layer.out_features == num_labels), None)


def _of_rows(features: Tensor, inputs: Batch) -> Tensor:
    """Returns ``[B, D]`` features; of a decoder's ``[B, L, D]`` those of each row's last real token."""
    if features.dim() == 2:
        return features
    mask = inputs["attention_mask"]
    last = (mask * torch.arange(mask.shape[1], device=mask.device)).argmax(-1)
    return features[torch.arange(len(features), device=features.device), last]
