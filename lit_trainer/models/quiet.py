"""Keeps Transformers from drawing bars and tables while it loads or saves a model."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def quiet() -> Iterator[None]:
    """Silences its progress bars and all that is no error; what was shown before is shown again after."""
    bar, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()
