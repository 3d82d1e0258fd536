"""One look at all rows before the first batch: what cannot be learnt from, with its row numbers, and what is done."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args, get_type_hints

import numpy as np
from datasets import Dataset, DatasetDict, Value
from numpy.typing import NDArray

from lit_trainer.data.columns import is_blank, require_columns, text_numbers
from lit_trainer.data.labels import LabelMap, is_missing, label_values
from lit_trainer.data.report import PERCENTILES, Finding, Report, SplitSummary
from lit_trainer.data.splits import Origin

Policy: TypeAlias = Literal["error", "drop", "keep"]
Mask: TypeAlias = NDArray[np.bool_]

NUM_EXAMPLES = 5


@dataclass(frozen=True)
class Policies:
    """What is done about each kind of problem: an ``error`` before training, ``drop`` its rows, or ``keep`` them.

    What is dropped or kept is reported all the same.

    Args:
        missing_text: A text is null.
        empty_text: A text has no characters but white space.
        missing_label: There is no label. A row that is kept is neither learnt from nor scored.
        unknown_label: A label has no class number: only validation or test has it, or the given classes leave it out.
            It is neither learnt nor scored where the row is kept.
        duplicate_text: Exactly the same text is in two splits. ``drop`` takes it out of training if validation or test
            has it, and out of validation if test has it.
        conflicting_labels: Exactly the same text has different labels. ``drop`` takes out every row with it.
        single_class: All training rows have one and the same label.
        small_training_split: There are fewer training rows than one optimizer step takes.
    """

    missing_text: Literal["error", "drop"] = "error"
    empty_text: Policy = "error"
    missing_label: Policy = "error"
    unknown_label: Policy = "error"
    duplicate_text: Policy = "keep"
    conflicting_labels: Policy = "keep"
    single_class: Literal["error", "keep"] = "error"
    small_training_split: Literal["error", "keep"] = "keep"


def check(
    dataset: DatasetDict,
    text: Sequence[str],
    label: str | None = None,
    label_map: LabelMap | None = None,
    policies: Policies | None = None,
    *,
    origins: Mapping[str, Origin] | None = None,
    batch_size: int | None = None,
) -> tuple[DatasetDict, Report]:
    """Checks every row of every split, drops what is to be dropped, and describes what is left.

    Args:
        dataset: The splits.
        text: The columns of the text.
        label: The column of the label.
        label_map: The map learnt from the training split; None where labels play no part.
        policies: What is done about each kind of problem.
        origins: Where the rows come from. A row is named by its split and number there, from 0; without origins by
            its own split and number.
        batch_size: Rows that one optimizer step takes.

    Raises:
        ValueError: If there is a problem that is to be an error; it lists all of them.
    """
    require_columns(dataset, text, "data.text")
    for split, rows in dataset.items():
        for name in text:
            feature = rows.features[name]
            if isinstance(feature, Value) and feature.dtype not in ("string", "large_string", "null"):
                raise ValueError(f"data.text: the column {name!r} of {split} holds {feature.dtype}, not text")
    if origins is None:
        origins = {split: Origin(split, np.arange(len(rows))) for split, rows in dataset.items()}
    search = _Search(dataset, policies or Policies(), origins)
    search.look_at_texts(text)
    if label is not None and label_map is not None:
        require_columns(dataset, [label], "data.label")
        search.look_at_labels(label, label_map)
    search.look_at_duplicates(text)
    search.look_at_training(batch_size)
    search.raise_errors()
    return search.result()


class _Search:
    """Collects problems, and which rows stay."""

    def __init__(self, dataset: DatasetDict, policies: Policies, origins: Mapping[str, Origin]) -> None:
        self.dataset, self.policies, self.origins = dataset, policies, origins
        self.findings: list[Finding] = []
        self.stays = {split: np.ones(len(rows), bool) for split, rows in dataset.items()}
        self.lengths: dict[str, dict[str, NDArray[np.int64]]] = {}
        self.label_map: LabelMap | None = None
        self.labels: dict[str, NDArray[Any]] = {}

    def note(self, kind: str, text: str, found: Mapping[str, Mask], drop: Mapping[str, Mask] | None = None) -> None:
        """Notes a problem of single rows, if there are any, and drops them if the policy says so.

        Args:
            kind: The name of the policy.
            text: What the problem is.
            found: bool ``[R]`` for each split: which rows have it.
            drop: The same for the rows to drop, where they are not all of those.
        """
        rows: dict[str, list[int]] = {}
        for split, mask in found.items():
            if mask.any():
                origin = self.origins[split]
                rows.setdefault(origin.split, []).extend(origin.rows[mask].tolist())
        if not rows:
            return
        policy = getattr(self.policies, kind)
        counts = {split: len(numbers) for split, numbers in rows.items()}
        examples = {split: sorted(numbers)[:NUM_EXAMPLES] for split, numbers in rows.items()}
        self.findings.append(Finding(kind, policy, text, counts, examples))
        if policy == "drop":
            for split, mask in (drop or found).items():
                self.stays[split] &= ~mask

    def look_at_texts(self, columns: Sequence[str]) -> None:
        """Notes rows without a text to read, and measures the others."""
        missing, empty = {}, {}
        for split, rows in self.dataset.items():
            texts = {name: rows.with_format(None)[name][:] for name in columns}
            missing[split] = _any(np.array([text is None for text in column], bool) for column in texts.values())
            empty[split] = _any(np.array([is_blank(text) for text in column], bool) for column in texts.values())
            empty[split] &= ~missing[split]
            self.lengths[split] = {
                name: np.array([len(text or "") for text in column], np.int64) for name, column in texts.items()
            }
        self.note("missing_text", "missing text", missing)
        self.note("empty_text", "empty text", empty)

    def look_at_labels(self, label: str, label_map: LabelMap) -> None:
        """Notes rows whose label is missing or has no class number."""
        self.label_map = label_map
        missing, unknown = {}, {}
        strange: dict[str, None] = {}
        for split, rows in self.dataset.items():
            values = label_values(rows, label)
            self.labels[split] = label_map.encode_column(values, unknown="ignore")
            missing[split] = np.array([is_missing(value) for value in values], bool)
            unknown[split] = np.zeros(len(rows), bool)
            for name, numbers in label_map.unknown(values).items():
                strange[name] = None
                unknown[split][numbers] = True
        self.note("missing_label", "missing label", missing)
        is_not = "no finite number" if label_map.kind == "regression" else f"none of {_listed(label_map.names, 20)}"
        self.note("unknown_label", f"a label that is {is_not} ({_listed(map(repr, strange), NUM_EXAMPLES)})", unknown)

    def look_at_duplicates(self, columns: Sequence[str]) -> None:
        """Notes texts that are in several splits, and texts that have several labels."""
        numbers = text_numbers(self.dataset, columns)
        found, drop = {}, {}
        for position, (split, own) in enumerate(numbers.items()):
            none = np.empty(0, np.int64)
            earlier, later = list(numbers.values())[:position], list(numbers.values())[position + 1 :]
            drop[split] = (own >= 0) & np.isin(own, np.concatenate([none, *later]))
            found[split] = (own >= 0) & np.isin(own, np.concatenate([none, *earlier])) | drop[split]
        self.note("duplicate_text", "text that another split has too", found, drop)
        if self.label_map is None or self.label_map.kind == "regression":
            return
        first: dict[int, bytes] = {}
        conflicting = set()
        for split, own in numbers.items():
            rows = np.flatnonzero((own >= 0) & _is_labelled(self.labels[split]))
            for number, label in zip(own[rows].tolist(), self.labels[split][rows], strict=True):
                if first.setdefault(number, label.tobytes()) != label.tobytes():
                    conflicting.add(number)
        masks = {split: np.isin(own, list(conflicting)) for split, own in numbers.items()}
        self.note("conflicting_labels", "text that has different labels", masks)

    def look_at_training(self, batch_size: int | None) -> None:
        """Notes splits that are empty, and a training split with nothing to tell apart or with few rows."""
        for split, stays in self.stays.items():
            if not stays.any():
                text = f"all rows of {split} are to be dropped" if len(stays) else f"{split} has no rows"
                self.findings.append(Finding("empty_split", "error", text))
        num_rows = int(self.stays["train"].sum()) if "train" in self.dataset else 0
        if num_rows and self.label_map is not None and self.label_map.kind != "regression":
            labels = self.labels["train"][self.stays["train"] & _is_labelled(self.labels["train"])]
            if len(np.unique(labels, axis=0)) == 1:
                chosen = labels[:1] if labels.ndim == 1 else np.flatnonzero(labels[0] == 1)
                names = " and ".join(repr(self.label_map.names[number]) for number in chosen)
                text = f"all training rows have {f'the label {names}' if names else 'no label'}"
                self.findings.append(Finding("single_class", self.policies.single_class, text))
        if num_rows and batch_size is not None and num_rows < batch_size:
            text = f"{num_rows:,} training rows are fewer than the {batch_size:,} of a step (data.batch_size)"
            self.findings.append(Finding("small_training_split", self.policies.small_training_split, text))

    def raise_errors(self) -> None:
        """Raises what is to be an error, all of it at once."""
        errors = [finding for finding in self.findings if finding.policy == "error"]
        if not errors:
            return
        lines = [f"the data has {len(errors)} problem{'s' * (len(errors) != 1)} (rows count from 0 in the source):"]
        for finding in errors:
            others = set(get_args(get_type_hints(Policies).get(finding.kind))) - {"error"}
            way = f"; mend that or set data.checks.{finding.kind} to {' or '.join(sorted(others))}" if others else ""
            lines.append(f"- {finding}{way}")
        raise ValueError("\n".join(lines))

    def result(self) -> tuple[DatasetDict, Report]:
        """Returns what stays, and the report on it."""
        kept, splits, origins = DatasetDict(), {}, {}
        for split, rows in self.dataset.items():
            stays = self.stays[split]
            kept[split] = rows if stays.all() else rows.select(np.flatnonzero(stays))
            origins[split] = Origin(self.origins[split].split, self.origins[split].rows[stays])
            splits[split] = self._summary(split, rows)
        return kept, Report(splits, self.findings, origins)

    def _summary(self, split: str, rows: Dataset) -> SplitSummary:
        stays = self.stays[split]
        num_unlabelled, counts = 0, {}
        if self.label_map is not None:
            labels = self.labels[split][stays]
            labelled = _is_labelled(labels)
            num_unlabelled = int((~labelled).sum())
            if self.label_map.kind == "classes":
                counts = dict(enumerate(np.bincount(labels[labelled], minlength=len(self.label_map.names)).tolist()))
            elif self.label_map.kind == "multi_label":
                counts = dict(enumerate((labels == 1).sum(0).tolist()))
        characters = {
            name: tuple(np.percentile(lengths[stays], PERCENTILES, method="inverted_cdf").astype(int).tolist())
            for name, lengths in self.lengths[split].items()
        }
        names = self.label_map.names if self.label_map is not None else ()
        by_name = {names[number]: count for number, count in counts.items()}
        return SplitSummary(int(stays.sum()), int((~stays).sum()), num_unlabelled, by_name, characters)


def _is_labelled(labels: NDArray[Any]) -> Mask:
    """Tells which rows have a label that counts: ``[R]`` class numbers or values, or ``[R, C]``."""
    if np.issubdtype(labels.dtype, np.integer):
        return np.asarray(labels >= 0)
    known = ~np.isnan(labels)
    return np.asarray(known.any(1) if known.ndim == 2 else known)


def _any(masks: Iterable[Mask]) -> Mask:
    """Returns where any of some masks of one shape is true."""
    return np.asarray(np.logical_or.reduce(list(masks)))


def _listed(names: Iterable[str], most: int) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
