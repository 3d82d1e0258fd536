"""What reaches the terminal, and what does not."""

import logging
import warnings

import pytest
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only

from lit_trainer.terminal import UNACTIONABLE_LINES, UNACTIONABLE_WARNINGS, set_up_terminal


@pytest.mark.parametrize(
    "text",
    [
        "The `srun` command is available on your system but is not used. HINT: If your intention is to run",
        "`isinstance(treespec, LeafSpec)` is deprecated, use `isinstance(treespec, TreeSpec)",
        "The 'train_dataloader' does not have many workers which may be a bottleneck.",
        "The number of training batches (3) is smaller than the logging interval Trainer(log_every_n_steps=50).",
        "Checkpoint directory /a/b exists and is not empty.",
        "Experiment logs directory runs/x exists and is not empty. Previous log files in this directory will be",
        "It is recommended to use `self.log('val/loss', ..., sync_dist=True)` when logging on epoch level",
        "The dirpath has changed from '/a' to '/b', therefore `best_model_score`",
        "Precision bf16-mixed is not supported by the model summary. ",
        '`.test(ckpt_path="best")` is called with Trainer configured with multiple `ModelCheckpoint` callbacks.',
    ],
)
def test_what_nobody_can_act_on_is_not_shown(text: str) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        set_up_terminal()
        warnings.warn(text, UserWarning, stacklevel=1)
    assert not seen


def test_what_may_name_a_mistake_is_shown() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        set_up_terminal()
        warnings.warn("Found 53 module(s) in eval mode at the start of training.", UserWarning, stacklevel=1)
    assert len(seen) == 1


def test_each_exception_has_its_reason() -> None:
    assert all(reason for reason in [*UNACTIONABLE_WARNINGS.values(), *UNACTIONABLE_LINES.values()])


def test_lines_of_lightning_pass_unless_unactionable(caplog: pytest.LogCaptureFixture) -> None:
    set_up_terminal()
    set_up_terminal()
    caplog.set_level(logging.INFO)
    for line in ("GPU available: False, used: False", "💡 Tip: buy this", "Metric val/loss improved"):
        rank_zero_info(line)
    assert caplog.messages == ["Metric val/loss improved"]


def bare_logger(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """Returns our logger as in a process in which nobody, pytest included, has set up logging."""
    logger = logging.getLogger("lit_trainer")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    return logger


@pytest.mark.parametrize(("rank", "expected"), [(0, "3 rows\nwarning: 1 row is odd\n"), (1, "")])
def test_our_log_is_shown_once_and_plainly(
    rank: int, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare_logger(monkeypatch)
    monkeypatch.setattr(rank_zero_only, "rank", rank)
    set_up_terminal()
    set_up_terminal()
    log = logging.getLogger("lit_trainer.data.text")
    log.debug("detail")
    log.info("%d rows", 3)
    log.warning("1 row is odd")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", expected)


def test_who_has_set_up_logging_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    logger, own = bare_logger(monkeypatch), logging.NullHandler()
    logger.addHandler(own)
    logger.setLevel(logging.ERROR)
    set_up_terminal()
    assert (logger.handlers, logger.level) == ([own], logging.ERROR)
