"""What a check of the data found: each split in figures, and each kind of problem with its first rows."""

from dataclasses import asdict, dataclass, field
from typing import Any

from lit_trainer.data.splits import Origin

PERCENTILES = (5, 50, 95, 100)


@dataclass(frozen=True)
class Finding:
    """One kind of problem in all splits.

    Args:
        kind: The kind, by the name of its policy.
        policy: What is done about it.
        text: What it is, in words.
        num_rows: How many rows have it, by split of the source; empty where it is not a matter of single rows.
        examples: The numbers of the first of them, by split of the source.
    """

    kind: str
    policy: str
    text: str
    num_rows: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[int]] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.num_rows:
            return self.text
        where = []
        for split, rows in self.examples.items():
            more = self.num_rows[split] - len(rows)
            where.append(f"{split} {', '.join(map(str, rows))}" + (f" and {more:,} more" if more else ""))
        total = sum(self.num_rows.values())
        return f"{self.text}: {total:,} row{'s' * (total != 1)} ({'; '.join(where)})"


@dataclass(frozen=True)
class SplitSummary:
    """What a split is like after the check.

    Args:
        num_rows: Its rows.
        num_dropped: How many more there were before.
        num_unlabelled: Rows without a label to learn from.
        class_counts: Rows by label; empty for values.
        num_characters: Percentiles 5, 50, 95 and 100 of the texts' length, by column.
    """

    num_rows: int
    num_dropped: int
    num_unlabelled: int
    class_counts: dict[str, int]
    num_characters: dict[str, tuple[int, ...]]

    def __str__(self) -> str:
        parts = [f"{self.num_rows:,} row{'s' * (self.num_rows != 1)}"]
        counts = self.class_counts
        if len(counts) > 10:
            parts.append(f"{len(counts)} classes of {min(counts.values()):,} to {max(counts.values()):,}")
        elif counts:
            parts.append(", ".join(f"{name} {count:,}" for name, count in counts.items()))
        if self.num_unlabelled:
            parts.append(f"{self.num_unlabelled:,} without a label")
        for column, (_, median, high, most) in self.num_characters.items():
            parts.append(f"{column} of {median:,} characters (95 %: {high:,}, longest: {most:,})")
        return "; ".join(parts)


@dataclass(frozen=True)
class Report:
    """What a check found; as text it is a few lines for the log.

    Args:
        splits: What each split is like.
        findings: The problems that are none too bad, and what was done about them.
        origins: Where the rows that are left come from.
    """

    splits: dict[str, SplitSummary]
    findings: list[Finding]
    origins: dict[str, Origin]

    def __str__(self) -> str:
        done = {"drop": "dropped", "keep": "kept"}
        lines = [f"{split}: {summary}" for split, summary in self.splits.items()]
        return "\n".join(lines + [f"{done[finding.policy]}: {finding}" for finding in self.findings])

    def as_dict(self) -> dict[str, Any]:
        """Returns all but the origins as plain data."""
        return {
            "splits": {split: asdict(summary) for split, summary in self.splits.items()},
            "findings": [asdict(finding) for finding in self.findings],
        }
