"""Charts follow the colours of the page, share no ids, and show any name."""

import re
import warnings
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from lit_trainer.reporting.charts import evaluation_charts, training_charts
from lit_trainer.reporting.drawing import VARIABLES, as_pixels, as_svg, blank, named, styled
from lit_trainer.reporting.run import Run
from tests.reporting.folders import KINDS, make_run


@pytest.mark.parametrize("kind", KINDS)
def test_every_chart_has_the_colours_of_the_page_and_ids_of_its_own(tmp_path, kind):
    run = Run.read(make_run(tmp_path, kind))
    charts = [*training_charts(run), *evaluation_charts(run)]
    assert len({chart.key for chart in charts}) == len(charts)
    seen: set[str] = set()
    for number, chart in enumerate(charts):
        svg = as_svg(chart.draw(), f"c{number}", chart.title)
        ElementTree.fromstring(svg)
        style = " ".join(re.findall(r'style="([^"]*)"', svg))
        assert "var(--" in style
        assert not [colour for colour in VARIABLES if colour in style], "a colour that cannot change"
        assert not set(re.findall(r"#[0-9a-f]{6}\b", style)), "a colour of matplotlib's own"
        assert "font-family" not in svg
        assert "<style" not in svg
        ids = set(re.findall(r'\bid="([^"]*)"', svg))
        assert not ids & seen
        seen |= ids
        assert set(re.findall(r'(?:href="|url\()#([^")]*)', svg)) <= ids


@pytest.mark.parametrize("name", ["<b>&\"'", "$x$ and $", "_hidden", "日本語 🙂", "a\nb\x00", "\\1 \\g<0>", "x" * 300])
def test_any_name_can_be_shown(name):
    @styled
    def draw():
        figure, axes = blank()
        axes.plot([0, 1], [0, 1], label=named(name))
        axes.legend()
        return figure

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svg = as_svg(draw(), "p", name)
        pixels = as_pixels(draw())
    root = ElementTree.fromstring(svg.replace("\x00", ""))
    texts = "".join(root.itertext())
    assert named(name) in texts
    assert root.attrib["aria-label"].split() == name.replace("\x00", "").split()
    assert pixels.ndim == 3
    assert pixels.dtype == np.uint8


def test_numbers_in_texts_keep_their_decimals():
    @styled
    def draw():
        figure, axes = blank()
        axes.text(0, 0, "area 0.123456")
        return figure

    assert "area 0.123456" in as_svg(draw(), "p", "a chart")


def test_pixels_are_on_white():
    figure, _ = blank()
    assert (as_pixels(figure)[0, 0] == 255).all()
