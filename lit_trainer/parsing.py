"""The parser of all settings: jsonargparse, with one clear line for each mistake."""

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

import yaml  # type: ignore[import-untyped]
from jsonargparse import Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.cli import LightningArgumentParser

from lit_trainer.mistakes import did_you_mean, find_mistake, with_allowed

# Lightning's Timer has an enumeration as the default of an argument that is text, which would not be written otherwise.
yaml.SafeDumper.add_multi_representer(Enum, lambda dumper, member: dumper.represent_data(member.value))


class SettingsError(ValueError):
    """A mistake in the settings, told in one line."""


class SettingsParser(LightningArgumentParser):
    """Reads settings from files and flags, later ones winning, and raises a `SettingsError` for a mistake in them."""

    def __init__(self, **kwargs: Any) -> None:
        # An abbreviated flag would be a misspelt one that nobody notices.
        super().__init__(**{"allow_abbrev": False, "print_config": "--print_config", **kwargs})

    def add_class_arguments(self, *args: Any, **kwargs: Any) -> list[str]:
        """Adds what a class takes; a text that happens to be the path of a file stays a text and is not read."""
        added: list[str] = super().add_class_arguments(*args, **{**kwargs, "sub_configs": False})
        return added

    def parse_args(self, args: Sequence[str], *rest: Any, **kwargs: Any) -> Namespace:  # type: ignore[override]
        """Parses flags and the files that they name.

        Args:
            args: The flags.
            rest: As jsonargparse takes them.
            kwargs: As jsonargparse takes them.
        """
        if self.exit_on_error:
            for file in config_files(args):
                check_is_settings(file)
        return super().parse_args(args, *rest, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raises what is wrong, in one line that says where it stands.

        Args:
            message: As jsonargparse words it.
            ex: What made it say so.
        """
        message = with_allowed(message, [action.dest for action in self._actions if action.dest != "help"])
        if not self.exit_on_error:  # the parser of one object among the settings: the outer one will tell
            super().error(message, ex)
        mistake = find_mistake(message)
        flags = list(self.args or [])
        is_flag = any(_key(flag) == mistake.key for flag in flags)
        raise SettingsError(mistake.told([] if is_flag else config_files(flags))) from None

    def instantiate_classes(self, cfg: Namespace, **kwargs: Any) -> Namespace:
        """Builds the objects that the settings describe; what one of them refuses comes out as it said it.

        Args:
            cfg: The settings.
            kwargs: As jsonargparse takes them.
        """
        refusals: list[tuple[type, Exception]] = []

        def build(class_type: type, *args: Any, **kwargs: Any) -> Any:
            try:
                built = class_type(*args, **kwargs)
            except Exception as error:
                refusals.append((class_type, error))
                raise
            refusals.clear()  # what was refused before was one of several ways to build this
            return built

        try:
            objects: Namespace = self.instantiate(cfg, instantiators=[(build, object, True)], **kwargs)
            return objects
        except Exception:
            if not refusals:
                raise
        class_type, error = refusals[0]
        is_ours = class_type.__module__.startswith("lit_trainer.")
        if isinstance(error, ValueError | MisconfigurationException) and not is_ours:
            raise SettingsError(f"{class_type.__name__}: {error}") from error
        raise error


def _key(flag: str) -> str:
    """Returns the key that a flag sets, without the levels that it may leave out."""
    return flag.partition("=")[0].removeprefix("--").rstrip("+").replace(".init_args", "").replace(".dict_kwargs", "")


def config_files(args: Sequence[str]) -> list[Path]:
    """Returns the configuration files that flags name, in their order."""
    files: list[Path] = []
    for position, flag in enumerate(args):
        name, equals, file = flag.partition("=")
        if name in ("-c", "--config"):
            files += [Path(file)] if equals else [Path(following) for following in args[position + 1 : position + 2]]
    return files


def check_is_settings(file: Path) -> None:
    """Checks that a file can be read and holds settings by name.

    Args:
        file: A YAML or JSON file.

    Raises:
        SettingsError: If not.
    """
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"--config: there is no file {file}{did_you_mean(str(file), _beside(file))}") from None
    except OSError as error:
        raise SettingsError(f"--config: {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"--config: {file} is not text in UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise SettingsError(f"{file}{line}: this is not YAML: {problem}") from None
    if not isinstance(content, dict) or not any(value is not None for value in content.values()):
        what = "holds nothing" if content is None else "does not hold names with values"
        raise SettingsError(f"--config: {file} {what}")


def _beside(file: Path) -> list[str]:
    """Lists the files in the folder where a file was looked for."""
    return [str(path) for path in file.parent.glob("*")]
