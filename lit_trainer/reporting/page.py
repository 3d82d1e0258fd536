"""The report of a run as one page of HTML that needs nothing else: no script, no other file, no network."""

from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lit_trainer import __version__
from lit_trainer.reporting import evaluation_sections as evaluation
from lit_trainer.reporting import training_sections as training
from lit_trainer.reporting.charts import Chart
from lit_trainer.reporting.drawing import VARIABLES, as_svg
from lit_trainer.reporting.page_parts import Section, number
from lit_trainer.reporting.run import Run
from lit_trainer.reporting.wrong_rows import WrongRow

FILE_NAME: Final = "report.html"
"""What the page is called in the folder of a run."""

NUM_TILES = 6


def write_page(run: Run, path: Path) -> None:
    """Writes the page, whole or not at all.

    Args:
        run: The run.
        path: The file; one that is there is replaced.

    Raises:
        ValueError: If the file cannot be written.
    """
    text = page(run)
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8", errors="replace")
        partial.replace(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from error


def page(run: Run) -> str:
    """Returns the page.

    Args:
        run: The run.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    decides = run.scores is None or run.scores.rule is not None
    return environment.get_template("page.html.jinja").render(
        run=run,
        status=run.notes.status if run.notes else "of unknown state",
        story=list(training.story(run)),
        tiles=list(_tiles(run)),
        sections=sections(run),
        variables=VARIABLES,
        drawn=_drawn,
        said="decided" if decides else "predicted",
        measured=_probability if decides else _distance,
        footer=f"{run.folder} · lit_trainer {__version__}",
    )


def sections(run: Run) -> list[Section]:
    """Returns what is on the page, in order.

    Args:
        run: The run.
    """
    return [
        evaluation.metrics_section(run),
        training.learning_section(run),
        *evaluation.decision_sections(run),
        evaluation.rule_section(run),
        training.data_section(run),
        training.rates_section(run),
        training.gradients_section(run),
        training.speed_section(run),
        training.settings_section(run),
    ]


def _tiles(run: Run) -> list[tuple[str, str, str]]:
    """Returns the first metrics of the test, else of the last validation, each with what it is to be compared with.

    The one that the best evaluation was chosen by comes first.
    """
    stage = "test" if run.last("test/") else "val"
    notes = run.notes
    baseline = notes.baseline if notes and stage == "test" else {}
    monitor = str(((notes and notes.best) or {}).get("monitor")).rpartition("/")[2]
    metrics = [(name, value) for name, value in run.last(f"{stage}/").items() if "/" not in name]
    metrics.sort(key=lambda metric: metric[0] != monitor)
    return [
        (
            f"{stage} {name.replace('_', ' ')}",
            number(value),
            f"majority {number(baseline[name])}" if name in baseline else "",
        )
        for name, value in metrics[:NUM_TILES]
    ]


def _drawn(chart: Chart) -> str:
    prefix = "".join(character if character.isalnum() else "-" for character in chart.key)
    return as_svg(chart.draw(), prefix, chart.title)


def _probability(row: WrongRow) -> str:
    return f"the truth had a probability of {row.measure:.2g}"


def _distance(row: WrongRow) -> str:
    return f"off by {number(row.measure)}"
