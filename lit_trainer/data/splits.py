"""Which rows are trained on, which choose the best model, which test it, and which decisions are fitted on."""

import difflib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from datasets import Dataset, DatasetDict
from numpy.typing import NDArray

from lit_trainer.data.columns import require_columns, text_numbers
from lit_trainer.data.labels import Kind, LabelMap, is_missing, label_values

logger = logging.getLogger(__name__)

NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
    "calibration": ("calibration",),
}
"""What a source may call each split."""


@dataclass(frozen=True)
class Origin:
    """Where the rows of a split come from.

    Args:
        split: The source's split.
        rows: int64 ``[R]``, the rows' numbers in it.
    """

    split: str
    rows: NDArray[np.int64]


@dataclass(frozen=True)
class Splits:
    """Takes the splits that a source has and cuts those that it lacks from its training rows.

    The cut depends on the seed and on the order of the rows alone, not on the machine or on the run's own seed.

    Args:
        validation: The name of the source's split; or the share of the training rows to cut if the source has none
            that is called validation, valid, val or dev. 0 for no validation split at all.
        test: The same for the split to test on.
        seed: Of the cut.
        stratify: Whether each class is cut in the same shares, to within a row, so that every class stays in training;
            rows with several classes go by their rarest one, values by their decile.
        group_by: A column whose equal values stay on one side, such as an author or a conversation. A row that has no
            value is a group of its own. Shares are then met as nearly as the groups allow.
        drop_duplicates: Whether rows that repeat an earlier row of their source's split are dropped before the cut:
            the same text with the same label.
        leave_out: Splits of the source to take as not there.
        calibration: The same for rows on which decisions are fitted and nothing else is done. They are cut from those
            to train on: without groups, validation and test stay as they are without.

    Raises:
        ValueError: If a share is not from 0 to below 1, or nothing is left to train on.
    """

    validation: float | str = 0.1
    test: float | str = 0.1
    seed: int = 0
    stratify: bool = True
    group_by: str | None = None
    drop_duplicates: bool = False
    leave_out: tuple[str, ...] = ()
    calibration: float | str = 0.0

    def __post_init__(self) -> None:
        for name, share in self._wanted.items():
            if not isinstance(share, str) and not 0 <= share < 1:
                raise ValueError(f"data.splits.{name} is {share}, not a share from 0 to below 1 or a split's name")
        shares = {name: share for name, share in self._wanted.items() if not isinstance(share, str) and share}
        if sum(shares.values()) >= 1:
            raise ValueError(
                f"data.splits: {_listed(shares)} take {sum(shares.values()):g}, so none is left to train on"
            )

    @property
    def _wanted(self) -> dict[str, float | str]:
        """What is asked for besides training, in the order in which it is cut."""
        return {"validation": self.validation, "test": self.test, "calibration": self.calibration}

    def make(
        self, dataset: DatasetDict, text: Sequence[str], label: str | None = None, kind: Kind = "classes"
    ) -> tuple[DatasetDict, dict[str, Origin]]:
        """Returns train, validation, test and calibration, as far as there are any, and where their rows come from.

        Args:
            dataset: The source's splits.
            text: The columns of the text.
            label: The column of the label.
            kind: What a label is.

        Raises:
            ValueError: If a split or column is not there, or there are too few rows or groups to cut.
        """
        names = self._given(dataset)
        chosen = DatasetDict({split: dataset[name] for split, name in names.items()})
        require_columns(chosen, text, "data.text")
        if label is not None:
            require_columns(chosen, [label], "data.label")
        rows = {split: np.arange(len(table)) for split, table in chosen.items()}
        if self.drop_duplicates:
            numbers = text_numbers(chosen, text)
            rows = {split: _first_of_each(numbers[split], chosen[split], label) for split in chosen}
            dropped = sum(map(len, chosen.values())) - sum(map(len, rows.values()))
            logger.info("%d rows are dropped that repeat an earlier row's text and label", dropped)
        origins = {split: Origin(name, rows[split]) for split, name in names.items()}
        shares = {
            split: share
            for split, share in self._wanted.items()
            if split not in names and isinstance(share, float | int) and share > 0
        }
        if shares:
            origins |= self._cut(chosen["train"], origins["train"], shares, label, kind)
        made = {
            split: dataset[origin.split].select(origin.rows)
            for split in NAMES
            if (origin := origins.get(split)) is not None
        }
        return DatasetDict(made), {split: origins[split] for split in made}

    def _given(self, dataset: DatasetDict) -> dict[str, str]:
        """Returns the name that the source has for each of the splits that it has."""
        there = [name for name in dataset if name not in self.leave_out]
        found = {}
        for split, wanted in {"train": 1.0, **self._wanted}.items():
            if isinstance(wanted, str):
                if wanted not in there:
                    close = difflib.get_close_matches(wanted, there, n=1)
                    meant = f"; did you mean {close[0]!r}?" if close else ""
                    raise ValueError(
                        f"data.splits.{split}: the source has no split {wanted!r}, only {', '.join(there)}{meant}"
                    )
                found[split] = wanted
            elif wanted and (names := [name for name in NAMES[split] if name in there]):
                found[split] = names[0]
        if "train" not in found and len(there) == 1 and there[0] not in found.values():
            found["train"] = there[0]
        if "train" not in found:
            raise ValueError(f"the source has no split called train, only {', '.join(there) or 'none at all'}")
        if len(set(found.values())) < len(found):
            raise ValueError(
                f"data.splits: {', '.join(found)} would be {', '.join(found.values())} of the source, and one split "
                "cannot be two (a share of 0 leaves validation or test out)"
            )
        ignored = [name for name in there if name not in found.values()]
        if ignored:
            logger.info("splits of the source that are not used: %s", ", ".join(ignored))
        return found

    def _cut(
        self, train: Dataset, origin: Origin, shares: dict[str, float], label: str | None, kind: Kind
    ) -> dict[str, Origin]:
        """Deals the training rows to training and to the splits that are missing."""
        rng = np.random.Generator(np.random.PCG64(self.seed))
        strata = np.zeros(len(origin.rows), np.int64)
        if self.stratify and label is not None:
            strata = _strata(label_values(train.select(origin.rows), label), kind)
        if self.group_by is None:
            sides = cut_rows(strata, list(shares.values()), rng)
        else:
            require_columns(DatasetDict(train=train), [self.group_by], "data.splits.group_by")
            groups = _groups(train.select(origin.rows), self.group_by)
            if groups.max(initial=-1) < len(shares):
                raise ValueError(
                    f"data.splits.group_by: {self.group_by!r} has {groups.max(initial=-1) + 1} different values, and "
                    f"{len(shares) + 1} are needed to keep train, {_listed(shares)} apart"
                )
            sides = cut_groups(groups, strata, list(shares.values()), rng)
        parts = {split: origin.rows[sides == side] for side, split in enumerate(["train", *shares])}
        empty = [split for split, part in parts.items() if not len(part)]
        if empty:
            raise ValueError(
                f"data.splits: {len(origin.rows)} rows are too few to cut {_listed(shares)} from, as every class "
                f"keeps a row to train on: {_listed(empty)} would be empty. Give more rows, set that share to 0 "
                "or data.splits.stratify to false"
            )
        return {split: Origin(origin.split, part) for split, part in parts.items()}


def cut_rows(strata: NDArray[np.int64], shares: Sequence[float], rng: np.random.Generator) -> NDArray[np.int64]:
    """Deals rows to sides in given shares, each stratum in the same shares to within a row.

    Args:
        strata: int64 ``[R]``, the number of each row's stratum. The first side keeps a row of every one.
        shares: Of all rows, for every side but the first.
        rng: Where chance comes from.

    Returns:
        int64 ``[R]``, the side of each row; 0 is the first.
    """
    sizes = np.bincount(strata)
    shuffled = np.argsort(rng.random(len(strata)), kind="stable")
    left = np.split(shuffled[np.argsort(strata[shuffled], kind="stable")], np.cumsum(sizes)[:-1])
    sides = np.zeros(len(strata), np.int64)
    for side, share in enumerate(shares, start=1):
        room = np.array([max(len(rows) - 1, 0) for rows in left])
        exact = np.round(np.minimum(share * sizes, room), 9)  # 0.1 * 30 is a hair above 3
        quota = np.floor(exact).astype(np.int64)
        missing = max(1, round(share * len(strata))) - int(quota.sum())
        by_remainder = np.lexsort((rng.random(len(sizes)), quota - exact))
        quota[by_remainder[(quota < exact)[by_remainder]][: max(missing, 0)]] += 1
        for stratum, number in enumerate(quota):
            sides[left[stratum][:number]] = side
            left[stratum] = left[stratum][number:]
    return sides


def cut_groups(
    groups: NDArray[np.int64], strata: NDArray[np.int64], shares: Sequence[float], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Deals whole groups to sides so that rows, and strata among them, come near to the shares.

    The largest group comes first; each goes where it reduces the squared distance from the shares most. The last ones
    go to sides that are still empty.

    Args:
        groups: int64 ``[R]``, the number of each row's group, from 0 without gaps.
        strata: int64 ``[R]``, the number of each row's stratum.
        shares: Of all rows, for every side but the first.
        rng: Decides which of equally large groups comes first.

    Returns:
        int64 ``[R]``, the side of each row; 0 is the first.
    """
    counts = np.zeros((groups.max() + 1, strata.max() + 1))
    np.add.at(counts, (groups, strata), 1)
    totals = np.maximum(counts.sum(0), 1)
    surplus = -np.outer([1 - sum(shares), *shares], totals)
    side_of = np.zeros(len(counts), np.int64)
    is_empty = np.ones(len(surplus), bool)
    for done, group in enumerate(np.lexsort((rng.random(len(counts)), -counts.sum(1)))):
        last_ones = len(counts) - done <= is_empty.sum()
        sides = np.flatnonzero(is_empty) if last_ones else np.arange(len(surplus))
        cost = (counts[group] * (counts[group] + 2 * surplus[sides]) / totals).sum(1)
        side = sides[np.argmin(cost)]
        side_of[group] = side
        is_empty[side] = False
        surplus[side] += counts[group]
    return side_of[groups]


def _strata(values: Sequence[object], kind: Kind) -> NDArray[np.int64]:
    """Numbers what is to be spread evenly: classes, rarest classes or deciles; rows without a label are one more."""
    labels = LabelMap.from_columns({"train": values}, kind).encode_column(values, unknown="ignore")
    if kind == "classes":
        strata = np.where(labels < 0, labels.max(initial=0) + 1, labels)
    elif kind == "regression":
        known = ~np.isnan(labels)
        ranks = np.argsort(np.argsort(labels, kind="stable"), kind="stable")
        strata = np.where(known, ranks * 10 // max(1, known.sum()), 10)
    else:
        counts = np.nansum(labels, axis=0)
        rarity = np.where(labels == 1, counts, np.inf)
        strata = np.where(np.isfinite(rarity).any(1), rarity.argmin(1), labels.shape[1])
    return np.unique(strata, return_inverse=True)[1].astype(np.int64)


def _groups(rows: Dataset, column: str) -> NDArray[np.int64]:
    """Numbers the values of a column; every missing one is a value of its own."""
    numbers: dict[object, int] = {}
    keys = (object() if is_missing(value) else repr(value) for value in rows.with_format(None)[column][:])
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _first_of_each(numbers: NDArray[np.int64], rows: Dataset, label: str | None) -> NDArray[np.int64]:
    """Returns the rows that do not repeat an earlier one; a blank text repeats nothing."""
    labels = [None] * len(rows) if label is None else label_values(rows, label)
    seen = set()
    first = []
    for row, (number, value) in enumerate(zip(numbers, labels, strict=True)):
        key = (int(number), repr(value))
        if number < 0 or key not in seen:
            first.append(row)
        seen.add(key)
    return np.array(first, np.int64)
