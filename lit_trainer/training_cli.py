"""The commands that need a model: settings from files and flags, objects from settings, and what each command does."""

import logging
import pydoc
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import lightning.pytorch as pl
import torch
from jsonargparse import Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.plugins import Precision
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.trainer.states import TrainerStatus
from lightning.pytorch.utilities.model_helpers import is_overridden

from lit_trainer import __version__, slurm
from lit_trainer.callbacks.loss_guard import LossGuard
from lit_trainer.callbacks.loss_scale_monitor import LossScaleMonitor
from lit_trainer.callbacks.prediction_writer import PredictionWriter
from lit_trainer.callbacks.preemption import Preempted, Preemption
from lit_trainer.callbacks.progress_bar import StepProgressBar
from lit_trainer.callbacks.run_plan import RunPlan
from lit_trainer.callbacks.run_report import RunReport
from lit_trainer.callbacks.run_summary import RunSummary
from lit_trainer.parsing import SettingsError, SettingsParser
from lit_trainer.preflight.before_training import check_job, check_ranks, has_several_ranks
from lit_trainer.preflight.cores import cgroup_quota
from lit_trainer.preflight.intended_run import IntendedRun
from lit_trainer.runtime.checkpoint_files import AtomicCheckpointIO
from lit_trainer.runtime.checkpoint_paths import ExplicitCheckpointConnector, find_checkpoint, run_of
from lit_trainer.runtime.job_checkpoint import checkpoint_of_job, is_auto
from lit_trainer.runtime.machine import AutoPrecisionTrainer, Machine
from lit_trainer.runtime.precision import ScaledMixedPrecision
from lit_trainer.runtime.process_group import leave_process_group
from lit_trainer.runtime.processor import fastest_precision
from lit_trainer.runtime.run_folder import (
    SETTINGS_FILE,
    RunCSVLogger,
    RunFolder,
    RunTensorBoardLogger,
    folder_of_job,
)
from lit_trainer.saved_settings import SaveSettings, differences, settings_by_key
from lit_trainer.tasks.base import Task
from lit_trainer.terminal import set_up_terminal

_log = logging.getLogger(__name__)

TRAINER_DEFAULTS = {
    "default_root_dir": "runs",
    "use_distributed_sampler": False,  # the data module deals rows to ranks; Lightning would put its own sampler in
}


class TrainingCLI(LightningCLI):
    """A command with the objects it works with.

    All commands have the same settings, so that the configuration that one saves is understood by the others.

    Args:
        command: One of fit, validate, test and predict.
        args: What follows it on the command line.

    Attributes:
        trainer: The Trainer.
        model: The task.
        datamodule: The data module.
        config: All settings.

    Raises:
        SettingsError: For a mistake in the settings.
    """

    model: Task
    datamodule: pl.LightningDataModule

    def __init__(self, command: str, args: Sequence[str]) -> None:
        set_up_terminal()
        self.command = command
        super().__init__(
            Task,
            pl.LightningDataModule,
            trainer_class=AutoPrecisionTrainer,
            subclass_mode_model=True,
            subclass_mode_data=True,
            trainer_defaults=TRAINER_DEFAULTS,
            save_config_callback=SaveSettings,
            parser_class=SettingsParser,
            parser_kwargs={
                "prog": f"lit-trainer {command}",
                "usage": f"lit-trainer {command} [--config FILE ...] [--SETTING VALUE ...]",
                "description": "Each setting is a key in a YAML file and a flag; those of a class are shown by "
                "--model.help CLASS_PATH and the like.",
                "dump_header": [f"lit_trainer=={__version__}, lightning=={version('lightning')}"],
            },
            auto_configure_optimizers=False,
            # Restoring hyperparameters from a checkpoint would let it win over files and flags.
            load_from_checkpoint_support=False,
            args=list(args),
            run=False,
        )

    # -- settings ------------------------------------------------------------------------------------------------------

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the seed, of which there always is one."""
        parser.add_argument("--seed_everything", type=int, default=0, help="Seed of everything that is random.")

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds what the commands take besides trainer, model and data."""
        parser.add_lightning_class_args(PredictionWriter, "predictions")
        parser.add_lightning_class_args(Machine, "machine")
        parser.add_argument(
            "--ckpt_path",
            type=str | None,
            default=None,
            help="Checkpoint to start from: a file, the folder of a run, or best or last of the newest run. Of a "
            "folder, fit resumes from the last checkpoint and the other commands take the best one. With auto, fit "
            "goes on from the newest of its own SLURM job if that was queued again, with auto:PATH else from PATH.",
        )
        parser.add_argument(
            "--test_after_fit",
            type=bool,
            default=True,
            help="Whether fit ends with a test of the best checkpoint, if there is a test split.",
        )
        parser.add_argument(
            "--preflight_seconds",
            type=float,
            default=60.0,
            help="Where there are several ranks, how long they wait for one another before all else, when their nodes, "
            "code, settings and data are compared as by lit-trainer doctor; 0 leaves that out.",
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parses the arguments; unlike Lightning's own without a look at those of this process."""
        assert isinstance(args, list)
        self.config = parser.parse_args(args)

    def _set_seed(self) -> None:
        pl.seed_everything(self.config.seed_everything, workers=True, verbose=False)

    def before_instantiate_classes(self) -> None:
        """Refuses what contradicts itself, before anything is loaded."""
        precision, plugins = self.config.trainer.precision, self.config.trainer.plugins
        chosen = [path for path in map(_class_path, _as_list(plugins)) if _is_precision(path)]
        if precision is not None:
            chosen.insert(0, f"trainer.precision {precision}")
        if len(chosen) > 1:
            raise SettingsError(f"precision is set more than once: {' and '.join(chosen)} (trainer.plugins); keep one")
        if self._has_preflight():
            check_job(self._intended())

    def _intended(self) -> IntendedRun:
        return IntendedRun.of_settings({f"trainer.{key}": value for key, value in vars(self.config.trainer).items()})

    def _has_preflight(self) -> bool:
        return self.config.preflight_seconds > 0 and has_several_ranks(self._intended())

    def settings(self) -> dict[str, Any]:
        """Returns all settings by dotted key, written as on the command line."""
        return settings_by_key(self.parser, self.config)

    # -- objects -------------------------------------------------------------------------------------------------------

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Builds the Trainer, with a folder for the run."""
        slurm.name_run_after_job()
        settings = self.config_init.trainer
        self._folder = RunFolder(settings.default_root_dir)
        machine, quota = self.config_init.machine, cgroup_quota()
        machine.precision_is_auto = settings.precision == "auto"
        machine.max_threads = None if quota is None else max(1, int(quota))
        if settings.enable_model_summary is None:
            kwargs = {"enable_model_summary": False, **kwargs}  # the plan of the run says what is in it
        try:
            trainer = super().instantiate_trainer(
                logger=_loggers(settings.logger, self._folder) if not settings.barebones else settings.logger,
                callbacks=_with_standing_callbacks(_as_list(settings.callbacks), settings),
                **_precision(settings),
                **kwargs,
            )
        except (ValueError, MisconfigurationException) as error:
            raise SettingsError(f"trainer: {error}") from error
        ExplicitCheckpointConnector.install(trainer)
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        return trainer

    # -- commands ------------------------------------------------------------------------------------------------------

    def run(self) -> Any:
        """Runs the command; returns what the Trainer returns, for ``fit`` the metrics of its test if there was one."""
        try:
            if self._has_preflight():
                check_ranks(IntendedRun.of_settings(self.settings()), self.config.preflight_seconds)
            result = self._run_on(self._checkpoint())
        except BaseException as error:
            self._folder.release()
            if isinstance(error, Preempted):  # on all ranks, unlike any other error
                leave_process_group(self.trainer)
            raise
        leave_process_group(self.trainer)
        return result

    def _run_on(self, checkpoint: str | None) -> Any:
        objects: dict[str, Any] = {"model": self.model, "datamodule": self.datamodule, "ckpt_path": checkpoint}
        if self.command == "fit":
            with RunReport.once(self.trainer):
                self.trainer.fit(**objects)
                return self._test_best()
        if checkpoint is None:
            _log.warning("no ckpt_path: the model is used as model.pretrained has it, without any training")
        if self.command == "predict":  # what is predicted is written as it comes; nothing is kept in memory
            return self.trainer.predict(**objects, return_predictions=False)
        if self.command == "test":
            return self.trainer.test(**objects, verbose=False)  # the summary is the table
        return self.trainer.validate(**objects)

    def _checkpoint(self) -> str | None:
        given = self.config.ckpt_path
        if given is None:
            if self.command == "fit" and folder_of_job(self.config.trainer.default_root_dir) is not None:
                _log.warning("this job was queued again, but training begins anew: only ckpt_path auto goes on")
            return None
        if is_auto(given):
            if self.command != "fit":
                raise ValueError(f"ckpt_path is {given}, which is for fit; {self.command} takes a run, best or last")
            return checkpoint_of_job(given, self.config.trainer.default_root_dir)
        path = find_checkpoint(given, "last" if self.command == "fit" else "best", self.config.trainer.default_root_dir)
        run = run_of(path)
        if run is not None:
            parts = ("model", "data") if self.command == "fit" else ("model",)
            for line in differences(self.parser, self.config, run / SETTINGS_FILE, parts):
                _log.warning("%s", line)
        return path

    def _test_best(self) -> Any:
        trainer = self.trainer
        finished = trainer.state.status == TrainerStatus.FINISHED and not self.config.trainer.fast_dev_run
        best = best_checkpoint(trainer)
        if self.config.test_after_fit and finished and best and has_test_split(self.datamodule):
            return trainer.test(self.model, datamodule=self.datamodule, ckpt_path=best, verbose=False)
        return None


class SettingsOnly(TrainingCLI):
    """The settings of a command, checked, without any of the objects that they describe."""

    def before_instantiate_classes(self) -> None:
        """Leaves it to who asks for the settings to look at them."""

    def instantiate_classes(self) -> None:
        """Builds nothing."""


def best_checkpoint(trainer: pl.Trainer) -> str | None:
    """Returns the checkpoint of the best evaluation; where no metric was watched, the one Lightning calls the best."""
    callbacks = sorted(trainer.checkpoint_callbacks, key=lambda callback: getattr(callback, "monitor", None) is None)
    return next((path for callback in callbacks if (path := getattr(callback, "best_model_path", None))), None)


def has_test_split(datamodule: pl.LightningDataModule) -> bool:
    """Tells whether there is something to test on."""
    tables = getattr(datamodule, "tables", None)
    if tables is not None:
        return "test" in tables
    return is_overridden("test_dataloader", datamodule, pl.LightningDataModule)


def _with_standing_callbacks(given: list[pl.Callback], settings: Namespace) -> list[pl.Callback]:
    """Adds the callbacks that every run has unless it brings its own or does without."""
    callbacks = list(given)
    if settings.barebones:
        return callbacks
    if not any(isinstance(each, RunPlan) for each in given):
        callbacks.append(RunPlan())  # in front of the bar, which stays below what is printed
    if settings.enable_progress_bar is not False and not any(isinstance(each, ProgressBar) for each in given):
        callbacks.append(StepProgressBar())
    standing = (LossGuard, LossScaleMonitor, RunReport, RunSummary, Preemption)
    callbacks += [kind() for kind in standing if not any(isinstance(each, kind) for each in given)]
    return callbacks


def _precision(settings: Namespace) -> dict[str, Any]:
    """Returns our own plugin for mixed precision, which clips fused optimizers and counts skipped steps.

    A strategy with a precision of its own keeps it.
    """
    strategy, precision = str(settings.strategy).lower(), settings.precision
    if precision == "auto":
        is_cuda = settings.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
        is_cpu = settings.accelerator in ("auto", "cpu")
        precision = fastest_precision(torch.device("cuda" if is_cuda else "cpu" if is_cpu else "meta"))
    if precision not in ("16-mixed", "bf16-mixed") or "deepspeed" in strategy or "fsdp" in strategy:
        return {"precision": precision}
    return {"precision": None, "plugins": [*_as_list(settings.plugins), ScaledMixedPrecision(precision)]}


def _loggers(given: Logger | list[Logger] | bool | None, folder: RunFolder) -> list[Logger]:
    """Returns the loggers of a run; the first one is that of the run's folder."""
    if given is None or given is True:
        return [RunTensorBoardLogger(folder), RunCSVLogger(folder)]
    loggers: list[Logger] = _as_list(given or None)
    with_folder = [logger for logger in loggers if isinstance(logger, TensorBoardLogger | CSVLogger)]
    if loggers and not with_folder:
        with_folder = [RunCSVLogger(folder)]  # the others have no folder for checkpoints and the like
    return with_folder + [logger for logger in loggers if logger not in with_folder]


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _class_path(plugin: Any) -> str:
    return str(getattr(plugin, "class_path", plugin))


def _is_precision(class_path: str) -> bool:
    plugin = pydoc.locate(class_path)
    return isinstance(plugin, type) and issubclass(plugin, Precision)
