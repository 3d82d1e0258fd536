"""Rows of text with labels, from a source to the batches of each optimizer step."""

import logging
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import lightning.pytorch as pl
from datasets import Dataset, DatasetDict
from lightning.pytorch.trainer.states import TrainerFn
from numpy.typing import NDArray
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from lit_trainer.data import label_statistics
from lit_trainer.data.checks import Policies, check
from lit_trainer.data.collation import EncodedRows, PaddingCollator
from lit_trainer.data.encoding import encode
from lit_trainer.data.labels import Kind, LabelMap, label_values
from lit_trainer.data.loading import EvaluationLoader, StepLoader
from lit_trainer.data.plan import StepPlan, evaluation_batches
from lit_trainer.data.report import Report
from lit_trainer.data.sampling import WeightedSampling
from lit_trainer.data.sources.base import Source
from lit_trainer.data.sources.by_suffix import source_of_file
from lit_trainer.data.splits import Splits
from lit_trainer.data.transforms.base import Transform, Transforms
from lit_trainer.wheel import WheelMember

_log = logging.getLogger(__name__)

PREDICTION_WINDOW = 1024
"""Rows that are predicted, in order of length, before the next ones: what a writer of predictions has to hold."""


@dataclass(frozen=True)
class _Read:
    """What a source holds, split and checked."""

    tables: DatasetDict
    label_map: LabelMap | None
    report: Report


class TextData(pl.LightningDataModule):
    """Texts with labels, tokenised once, planned by the optimizer step and loaded on any number of ranks.

    Args:
        source: Where the rows come from.
        text: The column with the text, or two columns that the model reads as a pair.
        label: The column with the label; None where there is none, as for prediction alone.
        kind: What a label is: one class, several classes at once, or a value.
        classes: The labels in the order of their class numbers. Found in the training split if not given; given, it
            decides which of two classes is the positive one, the last, and spares prediction from reading other rows.
        tokenizer: A folder, a name on the Hub or a member of a wheel. None takes the one that belongs to the model.
        max_length: Tokens that a row may have; longer ones are cut, which the log reports. None takes the tokenizer's
            limit.
        padding: ``free`` runs the model on real tokens only; ``longest`` pads to the longest row of a micro-batch and
            ``max_length`` always to `max_length`. ``auto`` is free where the model can, else longest.
        batch_size: Rows in one optimizer step, over all ranks and micro-batches.
        max_tokens: Instead of `batch_size`: an optimizer step takes rows as long as their tokens fit.
        eval_batch_size: Rows that one rank evaluates at a time.
        sampling: Draws training rows by weight. None has each once an epoch.
        bucket_steps: How many steps' worth of rows are sorted by length together, so that rows of similar length share
            a step; 0 turns it off.
        splits: Which splits there are and how missing ones are made.
        checks: What is done about rows that cannot be used.
        transforms: What is done to rows anew each time they are drawn, such as masking tokens.
        predict: The rows to predict, as a source or a file; the test split if not given.
        num_workers: Processes that load ahead on each rank; 0 loads in the training process.
        seed: Of the batches; that of the run if not given. The cut into splits has its own.
    """

    def __init__(
        self,
        source: Source,
        text: str | list[str] = "text",
        label: str | None = "label",
        kind: Kind = "classes",
        classes: list[str] | None = None,
        tokenizer: WheelMember | str | None = None,
        max_length: int | None = None,
        padding: Literal["auto", "free", "longest", "max_length"] = "auto",
        batch_size: int = 32,
        max_tokens: int | None = None,
        eval_batch_size: int = 64,
        sampling: WeightedSampling | None = None,
        bucket_steps: int = 50,
        splits: Splits | None = None,
        checks: Policies | None = None,
        transforms: list[Transform] | None = None,
        predict: Source | str | None = None,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.source, self.predict_source = source, predict
        self.text = [text] if isinstance(text, str) else list(text)
        self.label, self.kind, self.classes = label, kind, classes
        self._tokenizer_path, self.max_length, self.padding = tokenizer, max_length, padding
        if padding == "max_length" and max_length is None:
            raise ValueError("data.padding: max_length needs data.max_length to say how long")
        if len(self.text) not in (1, 2):
            raise ValueError(f"data.text: a model reads one text or a pair, not {len(self.text)} columns")
        self.batch_size, self.max_tokens = None if max_tokens else batch_size, max_tokens
        self.eval_batch_size, self.sampling, self.bucket_steps = eval_batch_size, sampling, bucket_steps
        self.splits, self.checks = splits or Splits(), checks or Policies()
        self.num_workers, self.transforms, self._seed = num_workers, list(transforms or ()), seed
        self._rows: dict[str, EncodedRows] = {}

    # -- what is known of the data -----------------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        """The seed of the batches: that given, else the run's, else 0."""
        return int(os.environ.get("PL_GLOBAL_SEED", 0)) if self._seed is None else self._seed

    @property
    def tables(self) -> DatasetDict:
        """The rows of train, validation, test and calibration as they are; read, split and checked at first use."""
        return self._read.tables

    @property
    def report(self) -> Report:
        """What the check of the rows found."""
        return self._read.report

    @cached_property
    def label_map(self) -> LabelMap:
        """The labels' names and class numbers, one map for all splits; without labels there is no such attribute."""
        if self.classes is not None or self.kind == "regression":  # known before any row is read
            return LabelMap.from_columns({}, self.kind, self.classes)
        if self._read.label_map is None:
            raise AttributeError("data.label: the data has no labels")
        return self._read.label_map

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer that was given, else that of the model."""
        module = self.trainer.lightning_module if self.trainer is not None else None
        path = self._tokenizer_path or getattr(module, "pretrained", None)
        if path is None:
            raise ValueError("data.tokenizer: without a model to take it from, the tokenizer must be given")
        try:
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(os.fspath(path))
        except (OSError, ValueError) as error:
            raise ValueError(f"data.tokenizer: none can be loaded from {os.fspath(path)!r}") from error
        if tokenizer.pad_token is None:  # a decoder's may have none; what is padded is masked, so any token will do
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
        return tokenizer

    @property
    def label_counts(self) -> list[int]:
        """Training rows of each class, or with each label."""
        return label_statistics.label_counts(self._training_labels, self.kind, len(self.label_map.names))

    @property
    def num_labelled_rows(self) -> int:
        """Training rows that have a label to learn from."""
        return label_statistics.num_labelled_rows(self._training_labels)

    @property
    def baseline_prediction(self) -> NDArray[Any]:
        """What to predict without reading a text, ``[C]``: each class's share of the training rows; or their mean."""
        return label_statistics.baseline_prediction(self._training_labels, self.kind, len(self.label_map.names))

    @property
    def _training_labels(self) -> NDArray[Any]:
        labels = self.rows("train").labels
        assert labels is not None
        return labels

    @cached_property
    def plan(self) -> StepPlan:
        """Which rows make each optimizer step of the training."""
        rows, sampling = self.rows("train"), self.sampling
        by_length = self.max_tokens is not None or self.bucket_steps > 0
        weights = None
        if sampling is not None:
            names = self.label_map.names if self.label is not None else ()
            weights = sampling.row_weights(rows.labels, names, {n: self.tables["train"][n] for n in self._columns()})
        return StepPlan(
            len(rows),
            batch_size=self.batch_size,
            max_tokens=self.max_tokens,
            lengths=rows.lengths if by_length else None,
            weights=weights,
            replacement=sampling is None or sampling.replacement,
            num_draws=sampling.num_draws if sampling else None,
            bucket_steps=max(1, self.bucket_steps),
            seed=self.seed,
        )

    def num_steps(self, epoch: int) -> int:
        """Returns the number of optimizer steps of an epoch."""
        return self.plan.num_steps(epoch)

    def rows(self, split: str) -> EncodedRows:
        """Returns a split's rows as the model sees them, tokenised at first use.

        Args:
            split: One of train, validation, test and predict.
        """
        if split not in self._rows:
            table = self.predict_table if split == "predict" else self.tables[split]
            encoded = encode(table, self.text, self.tokenizer, self.max_length)
            if cut := encoded.truncation():
                _log.info("%s: %s (data.max_length)", split, cut)
            labels = None
            if self.label is not None and split != "predict":
                labels = self.label_map.encode_column(label_values(table, self.label), unknown="ignore")
            self._rows[split] = EncodedRows(encoded.tokens, encoded.lengths, labels)
        return self._rows[split]

    # -- Lightning's hooks -------------------------------------------------------------------------------------------

    def prepare_data(self) -> None:
        """Reads and tokenises on one process of each node, so that the others find it in the cache."""
        predicts = self.predict_source is not None and self._attached_trainer().state.fn == TrainerFn.PREDICTING
        for split in ["predict"] if predicts else self.tables:
            self.rows(split)

    def setup(self, stage: str) -> None:
        """Reads what the stage needs and says what there is."""
        if stage == "fit":
            _log.info("%s", self.report)
            assert self.trainer is not None
            if self.max_tokens is not None:
                # Epochs differ in length, and Lightning counts only when it loads.
                self.trainer.reload_dataloaders_every_n_epochs = 1  # type: ignore[attr-defined]  # undeclared there

    def state_dict(self) -> dict[str, Any]:
        """Returns what the steps of the training follow from, for a resume to compare."""
        return {"plan": self.plan.describe()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Says so where a resumed run has other steps than the one it continues."""
        if self._attached_trainer().state.fn != TrainerFn.FITTING:
            return
        now, then = self.plan.describe(), state_dict["plan"]
        changed = [f"{key} was {then.get(key)}, is {now[key]}" for key in now if now[key] != then.get(key)]
        if changed:
            _log.warning(
                "the run that is resumed had other optimizer steps (%s): the rest of its epoch has other rows than it "
                "would have had",
                "; ".join(changed),
            )

    def train_dataloader(self) -> StepLoader:
        """Returns this rank's micro-batches, beginning where Lightning says that training stands."""
        trainer = self._attached_trainer()

        def position() -> tuple[int, int]:
            return trainer.current_epoch, trainer.fit_loop.epoch_loop.batch_progress.current.ready

        return StepLoader(
            self.rows("train"),
            self._collator(),
            self.plan,
            position,
            rank=trainer.global_rank,
            num_ranks=trainer.world_size,
            num_micro_batches=trainer.accumulate_grad_batches,
            num_workers=self.num_workers,
            pin_memory=self._pins_memory(),
            transform=Transforms(self.transforms, self.tokenizer, self.seed).train if self.transforms else None,
        )

    def val_dataloader(self) -> EvaluationLoader | list[EvaluationLoader]:
        """Returns this rank's share of the validation split; nothing if there is none."""
        return self._evaluation_loader("validation") if "validation" in self.tables else []

    def test_dataloader(self) -> EvaluationLoader:
        """Returns this rank's share of the test split."""
        if "test" not in self.tables:
            raise ValueError("data.splits.test: there is no test split, neither given nor cut")
        return self._evaluation_loader("test")

    def calibration_dataloader(self) -> EvaluationLoader | None:
        """Returns this rank's share of the rows that decisions are fitted on; None if none are kept for it."""
        return self._evaluation_loader("calibration") if "calibration" in self.tables else None

    def predict_dataloader(self) -> EvaluationLoader:
        """Returns this rank's share of the rows to predict, in an order that lets them be written as they come."""
        return self._evaluation_loader("predict", window=PREDICTION_WINDOW)

    # -- how -----------------------------------------------------------------------------------------------------------

    @cached_property
    def _read(self) -> _Read:
        tables, origins = self.splits.make(self.source.load(), self.text, self.label, self.kind)
        label_map = None
        if self.label is not None:
            label_map = LabelMap.from_dataset(tables, self.label, self.kind, self.classes)
        tables, report = check(
            tables, self.text, self.label, label_map, self.checks, origins=origins, batch_size=self.batch_size
        )
        return _Read(tables, label_map, report)

    @cached_property
    def predict_table(self) -> Dataset:
        """The rows to predict as they are."""
        if self.predict_source is None:
            return self.tables["test"]
        source = self.predict_source
        loaded = (source if isinstance(source, Source) else source_of_file(source)).load()
        tables, _ = check(DatasetDict({"predict": next(iter(loaded.values()))}), self.text, policies=self.checks)
        return tables["predict"]

    def _columns(self) -> list[str]:
        return [name for name in self.tables["train"].column_names if name not in self.text]

    def _collator(self) -> PaddingCollator:
        length = self.max_length if self.padding == "max_length" else None
        with_lengths = getattr(self._attached_trainer().lightning_module, "takes_lengths", False)
        return PaddingCollator(self.tokenizer, length, with_lengths=with_lengths)

    def _evaluation_loader(self, split: str, window: int | None = None) -> EvaluationLoader:
        trainer, rows = self._attached_trainer(), self.rows(split)
        shares = evaluation_batches(len(rows), self.eval_batch_size, trainer.world_size, rows.lengths, window)
        return EvaluationLoader(
            rows,
            self._collator(),
            shares[trainer.global_rank],
            num_workers=self.num_workers,
            pin_memory=self._pins_memory(),
            transform=Transforms(self.transforms, self.tokenizer, self.seed).evaluate if self.transforms else None,
        )

    def _attached_trainer(self) -> pl.Trainer:
        if self.trainer is None:
            raise ValueError("the data module has no Trainer yet: pass it to Trainer.fit(task, datamodule=...)")
        return self.trainer

    def _pins_memory(self) -> bool:
        return self._attached_trainer().strategy.root_device.type == "cuda"
