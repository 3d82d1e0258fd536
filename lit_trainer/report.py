"""The command ``report``: writes a page about a run, from what is in its folder."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def main(args: Sequence[str]) -> None:
    """Writes the page and says where it is.

    Args:
        args: What follows ``report`` on the command line.

    Raises:
        ValueError: If the folder is not that of a run, or the page cannot be written.
    """
    parser = argparse.ArgumentParser(
        prog="lit-trainer report",
        description="Writes a page about a run, as fit and test do when they end.",
        allow_abbrev=False,
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="the folder of a run, such as runs/NAME/version_0")
    parser.add_argument("--path", type=Path, help="where the page is to be written (report.html in that folder)")
    options = parser.parse_args(list(args))

    from lit_trainer.reporting.page import FILE_NAME, write_page  # after --help and mistakes
    from lit_trainer.reporting.run import Run

    run = Run.read(options.run)
    path = options.path or options.run / FILE_NAME
    write_page(run, path)
    for problem in run.problems:
        print(f"left out: {problem}")
    print(path)
