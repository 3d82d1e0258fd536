"""Choosing parameters by regular expression, where a pattern that chooses none is an error."""

import re
from collections.abc import Collection

NUM_SHOWN = 8
"""How many names an error lists: enough to see how they are built."""


def compiled(pattern: str, key: str) -> re.Pattern[str]:
    """Compiles a regular expression of the user's.

    Args:
        pattern: A regular expression in Python's syntax.
        key: Where it stands in the configuration, for the error.

    Raises:
        ValueError: If it is not one.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{key}: {pattern!r} is not a regular expression: {error}") from None


def matching(pattern: str, names: Collection[str], key: str) -> list[str]:
    """Returns the names in which a pattern is found, anywhere in the name, in their order.

    Args:
        pattern: A regular expression in Python's syntax.
        names: Names of parameters, as in ``model.encoder.layer.0.output.dense.weight``.
        key: Where the pattern stands in the configuration, for the error.

    Raises:
        ValueError: If it is not a regular expression, or is found in no name.
    """
    search = compiled(pattern, key).search
    if found := [name for name in names if search(name)]:
        return found
    raise ValueError(f"{key}: {pattern!r} matches no parameter; there are {sample(names)}")


def sample(names: Collection[str]) -> str:
    """Lists some names, spread over all of them, for an error."""
    step = max(1, len(names) // NUM_SHOWN)
    shown = list(names)[::step][:NUM_SHOWN]
    rest = f" ... ({len(names)} in all)" if len(names) > len(shown) else ""
    return ", ".join(shown) + rest if shown else "none"
