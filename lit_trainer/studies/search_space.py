"""What a search may change: for each key of the settings the values it can take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_RANGE_KEYS = {"low", "high", "log", "step"}


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included; whole ones where low and high are.

    Args:
        low: The smallest.
        high: The largest.
        log: Whether they are spread evenly on a logarithmic scale.
        step: What two neighbours differ by; None is anything, or 1 of whole numbers.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    @property
    def texts(self) -> list[str]:
        """Values to try out whether the setting takes such."""
        return [str(self.low), str(self.high)]

    def distribution(self) -> "BaseDistribution":
        """Returns it as Optuna knows it."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if isinstance(self.low, int) and isinstance(self.high, int) and isinstance(self.step, int | None):
            return IntDistribution(self.low, self.high, log=self.log, step=self.step or 1)
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)


@dataclass(frozen=True)
class Choice:
    """One of several values, without an order.

    Args:
        texts: The values as on the command line.
    """

    texts: tuple[str, ...]

    def distribution(self) -> "BaseDistribution":
        """Returns it as Optuna knows it."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.texts)


@dataclass(frozen=True)
class Search:
    """A search, as its file has it.

    Args:
        space: What each key can be.
        monitor: The metric of validation to go by; None is that of the recipe's best checkpoint.
        mode: Whether the best is the smallest or the largest; None likewise.
    """

    space: Mapping[str, Range | Choice] = field(default_factory=dict)
    monitor: str | None = None
    mode: str | None = None

    @property
    def kinds(self) -> dict[str, list[str]]:
        """What must stay the same while a search goes on, by key: the choices; of numbers the limits may change."""
        return {key: list(values.texts) if isinstance(values, Choice) else [] for key, values in self.space.items()}


def read_search(file: str | None, texts: Sequence[str]) -> Search:
    """Reads a search from a file, and from ``KEY=VALUES`` that come after it.

    Args:
        file: YAML with ``space`` and, if they differ from the recipe's, ``monitor`` and ``mode``.
        texts: Such as ``model.optimizer.lr={low: 1e-5, high: 1e-3, log: true}`` or ``data.batch_size=[16, 32]``.

    Raises:
        ValueError: If there is nothing to search, or something is not understood.
    """
    content = _read(file) if file else {}
    unknown = sorted(set(content) - {"space", "monitor", "mode"})
    if unknown:
        raise ValueError(f"{file}: there is no {', '.join(map(str, unknown))}; a search has space, monitor and mode")
    given = content.get("space") or {}
    if not isinstance(given, dict):
        raise ValueError(f"{file}: space is {given!r} but must hold keys of settings with their values")
    values: dict[str, Any] = {str(key): value for key, value in given.items()}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ValueError(f"--space is {text} but must be KEY=VALUES")
        try:
            values[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ValueError(f"--space {key}: {value} is not YAML") from None
    if not values:
        raise ValueError("there is nothing to search: give --search FILE or --space KEY=VALUES")
    mode = content.get("mode")
    if mode not in (None, "min", "max"):
        raise ValueError(f"{file}: mode is {mode!r} but must be min or max")
    return Search({key: _values(key, value) for key, value in values.items()}, content.get("monitor"), mode)


def _read(file: str) -> dict[str, Any]:
    try:
        content = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"--search: there is no file {file}") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"--search: {file} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"--search: {file} does not hold names with values")
    return content


def _values(key: str, given: Any) -> Range | Choice:
    """Reads what a key can be."""
    if isinstance(given, list) and given:
        return Choice(tuple(dict.fromkeys(_text(value) for value in given)))
    if isinstance(given, dict) and {"low", "high"} <= set(given) <= _RANGE_KEYS:
        low, high, step = (_number(key, name, given.get(name)) for name in ("low", "high", "step"))
        log = given.get("log", False)
        if low is None or high is None or not low < high or not isinstance(log, bool) or (log and low <= 0):
            raise ValueError(
                f"space: {key} goes from {low} to {high}; low is below high, and above 0 where log is true"
            )
        if step is not None and (log or step <= 0):
            raise ValueError(f"space: {key} has step {step}; it is above 0, and there is none where log is true")
        return Range(low, high, log, step)
    raise ValueError(f"space: {key} is {given!r} but must be a list of values, or low and high with log or step")


def _number(key: str, name: str, value: Any) -> float | None:
    """Reads a number; YAML takes 1e-5, without a dot, for text."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"space: {key} has {name} {value!r}, which is no number") from None


def _text(value: Any) -> str:
    """Returns a value as on the command line."""
    if isinstance(value, str):
        return value
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...").strip()


def overlay(settings: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Returns the part of all settings that sets some keys, to be written as an overlay.

    Args:
        settings: All settings, with the keys as they are to be.
        keys: Keys as on the command line, which leave out ``init_args``.

    Raises:
        ValueError: If a key leads into a list, which an overlay can only replace as a whole.
    """
    made: dict[str, Any] = {}
    for key in keys:
        source: Any = settings
        path: list[str] = []
        for part in key.split("."):
            if isinstance(source, dict) and part not in source and part in (source.get("init_args") or {}):
                path.append("init_args")
                source = source["init_args"]
            if not isinstance(source, dict) or part not in source:
                raise ValueError(f"space: {key} is not a setting by itself: an overlay could not set {part} alone")
            path.append(part)
            source = source[part]
        target = made
        for part in path[:-1]:
            target = target.setdefault(part, {})
        target[path[-1]] = source
    return made
