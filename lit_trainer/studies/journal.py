"""The study of a search: a file to which every trial is added, so that a search can go on after any end."""

import json
from pathlib import Path
from typing import Any

NAME = "search"
JOURNAL_FILE = "study.journal"
_ABOUT = "about"
_INTERRUPTED = "interrupted"


def import_optuna() -> Any:
    """Returns the module.

    Raises:
        ValueError: If it is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise ValueError('tune needs Optuna, which is not installed: pip install "lit_trainer[tune]"') from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def open_study(folder: Path, mode: str, about: dict[str, Any], seed: int) -> Any:
    """Opens the study of a folder, or begins one.

    Args:
        folder: Where its journal is.
        mode: Whether the best is the smallest or the largest.
        about: What is searched, as plain data.
        seed: Of what is tried next; together with the number of trials so far, so that it does not repeat itself.

    Raises:
        ValueError: If the study that is there searched something else.
    """
    optuna = import_optuna()
    folder.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name=NAME,
        storage=_storage(folder),
        direction="minimize" if mode == "min" else "maximize",
        load_if_exists=True,
        pruner=_pruner(),
    )
    text = json.dumps(about, sort_keys=True)
    if study.user_attrs.get(_ABOUT, text) != text:
        raise ValueError(f"the study in {folder} searched something else, or started elsewhere; give another --folder")
    study.set_user_attr(_ABOUT, text)
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        interrupt(study, folder, trial.number)  # of a process that was killed
    study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.get_trials(deepcopy=False)))
    return study


def interrupt(study: Any, folder: Path, number: int) -> None:
    """Ends a trial that did not come to its own end, and has its values tried again."""
    optuna = import_optuna()
    trial = study.get_trials(deepcopy=False)[number]
    load_trial(folder, number).set_user_attr(_INTERRUPTED, True)
    study.tell(number, state=optuna.trial.TrialState.FAIL)
    study.enqueue_trial(trial.params)


def counted(study: Any) -> list[Any]:
    """Returns the trials that came to an end of their own, a good one or a bad one."""
    return [
        trial
        for trial in study.get_trials(deepcopy=False)
        if trial.state.is_finished() and not trial.user_attrs.get(_INTERRUPTED)
    ]


def load_trial(folder: Path, number: int) -> Any:
    """Returns a trial, as the process that runs it reports to it.

    Args:
        folder: Where the journal is.
        number: Of the trial.
    """
    optuna, storage = import_optuna(), _storage(folder)
    study = optuna.load_study(study_name=NAME, storage=storage, pruner=_pruner())
    study_id = storage.get_study_id_from_name(NAME)
    return optuna.trial.Trial(study, storage.get_trial_id_from_study_id_trial_number(study_id, number))


def _storage(folder: Path) -> Any:
    optuna = import_optuna()
    journal = optuna.storages.journal
    return optuna.storages.JournalStorage(journal.JournalFileBackend(str(folder / JOURNAL_FILE)))


def _pruner() -> Any:
    """Stops a trial that is below the median of five others at the same evaluation, not at its first."""
    return import_optuna().pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=2)
