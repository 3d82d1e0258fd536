"""The settings of a run, kept in its folder, and compared with those of a run that goes on from there."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import yaml  # type: ignore[import-untyped]
from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lit_trainer.runtime.run_folder import SETTINGS_FILE


class SaveSettings(SaveConfigCallback):
    """Writes all settings as ``config.yaml`` into the folder of the run, from where ``--config`` reads them again.

    Nothing is overwritten: other settings that a run adds to a folder get the next free name. Without a logger a run
    has no folder and nothing is written. Loggers that write elsewhere are given the settings as hyperparameters.
    """

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Writes the file when the run begins."""
        if self.already_saved or not trainer.loggers:
            return
        self.already_saved = True
        folder = trainer.log_dir  # all ranks have to ask
        if not trainer.is_global_zero or folder is None:
            return
        # The checkpoint that one run started from must not become what another one is evaluated with.
        text = settings_text(self.parser, self.config, ckpt_path=None)
        _write(Path(folder), text)
        for logger in trainer.loggers:
            if not isinstance(logger, TensorBoardLogger | CSVLogger):
                logger.log_hyperparams(yaml.safe_load(text))


def settings_text(parser: ArgumentParser, settings: Namespace, **replaced: Any) -> str:
    """Returns settings as YAML that the parser understands.

    Args:
        parser: The parser that the settings come from.
        settings: The settings.
        replaced: Top-level settings to state differently.
    """
    settings = settings.clone()
    for key, value in replaced.items():
        settings[key] = value
    return str(parser.dump(settings, skip_unset=False))


def _write(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file, number = folder / SETTINGS_FILE, 0
    while file.exists() and file.read_text(encoding="utf-8") != text:
        number += 1
        file = folder / f"{Path(SETTINGS_FILE).stem}_{number}.yaml"
    file.write_text(text, encoding="utf-8")


def differences(parser: ArgumentParser, settings: Namespace, saved: Path, parts: Sequence[str]) -> Iterator[str]:
    """Says in which settings a run differs from the one whose checkpoint it goes on with.

    Args:
        parser: The parser that the settings come from.
        settings: The settings of this run.
        saved: The settings of the other one.
        parts: The top-level settings that are compared.
    """
    now = yaml.safe_load(settings_text(parser, settings))
    try:
        before = yaml.safe_load(saved.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        before = None
    if not isinstance(before, dict):
        yield f"{saved} cannot be read, so that nobody knows whether its settings were the same"
        return
    for part in parts:
        new, old = (dict(_leaves(part, tree.get(part))) for tree in (now, before))
        for key in sorted(new.keys() | old.keys()):
            if new.get(key) != old.get(key):
                yield f"{key} is {new.get(key)} here, it was {old.get(key)} in {saved}; this run's wins"


def settings_by_key(parser: ArgumentParser, settings: Namespace) -> dict[str, Any]:
    """Returns all settings by dotted key, written as on the command line.

    Args:
        parser: The parser that the settings come from.
        settings: The settings.
    """
    tree = yaml.safe_load(settings_text(parser, settings))
    return dict(leaf for part, value in tree.items() for leaf in _leaves(part, value))


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields values by dotted key, written as on the command line."""
    if not isinstance(value, dict) or not value:
        yield key, value
        return
    for name, entry in value.items():
        yield from _leaves(key if name in ("init_args", "dict_kwargs") else f"{key}.{name}", entry)
