"""What a check has found: a line, and how bad it is."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["ok", "look", "wrong"]

GIB = 2**30


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        kind: Whether it is fine, worth a look, or keeps training from working.
        text: What was found and, unless it is fine, what to do.
    """

    kind: Kind
    text: str
