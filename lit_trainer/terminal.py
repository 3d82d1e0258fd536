"""What a run says on the terminal: our own log on one rank, and nothing that the reader can do nothing about."""

import logging
import sys
import warnings
from typing import Any, TextIO

from lightning.pytorch.utilities import rank_zero_only

UNACTIONABLE_WARNINGS = {
    r"The `srun` command is available on your system": "who is not in a SLURM job knows it",
    r"`isinstance\(treespec, LeafSpec\)` is deprecated": "this is between Lightning and PyTorch",
    r"The '.*_dataloader' does not have many workers": "rows are tokenised beforehand, so that loading is cheap",
    r"The number of training batches .* is smaller than the logging interval": "one number at the end is intended then",
    r"Checkpoint directory .* exists and is not empty": "names hold the step, and a run may go on in its folder",
    r"Experiment logs directory .* exists and is not empty": "a logger of the user's, pointed there on purpose",
    r"It is recommended to use `self.log\(.*sync_dist=True": "each rank computes the metrics of all rows by itself",
    r"The dirpath has changed from": "a resumed run writes to a folder of its own",
    r"Precision .* is not supported by the model summary": "it counts in 32 bits then, which is what is stored",
    r"`\..*\(ckpt_path=\"best\"\)` is called with Trainer configured with multiple": "paths are resolved beforehand",
}
"""Warnings that are not shown, as patterns of how they begin, each with the reason.

What may name a mistake is shown. "Modules in eval mode" above all: it says that dropout is off in training.
"""

UNACTIONABLE_LINES = {
    "GPU available: ": "the summary says where the run took place",
    "TPU available: ": "as above",
    "💡 Tip: ": "advertises a service",
    "Seed set to ": "the saved configuration says so",
    "`Trainer.fit` stopped: ": "the summary says how far it got",
    "Restoring states from the checkpoint path at ": "said when the path was chosen",
    "Restored all states from the checkpoint at ": "as above",
    "Loaded model weights from the checkpoint at ": "as above",
}
"""Lines of Lightning's log that are not shown, as how they begin, each with the reason."""


def set_up_terminal() -> None:
    """Lets our own log through in a plain form, on one rank, and keeps what is unactionable out. Can be repeated."""
    for pattern in UNACTIONABLE_WARNINGS:
        warnings.filterwarnings("ignore", pattern)
    lightning = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    if _is_actionable not in lightning.filters:
        lightning.addFilter(_is_actionable)
    ours = logging.getLogger("lit_trainer")
    if ours.level == logging.NOTSET:
        ours.setLevel(logging.INFO)
    # Who has set up logging already, a notebook or a test, has the lines where they want them.
    if not ours.hasHandlers():
        ours.addHandler(_Terminal())


def _is_actionable(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(tuple(UNACTIONABLE_LINES))


class _Terminal(logging.StreamHandler[TextIO]):
    """Writes on what standard error is at that moment, on rank zero."""

    def __init__(self) -> None:
        super().__init__()
        # What happens to a single rank is said by that rank.
        self.addFilter(lambda record: getattr(rank_zero_only, "rank", 0) == 0 or hasattr(record, "on_every_rank"))

    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, _: Any) -> None:
        """Has no other stream."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {text}"
