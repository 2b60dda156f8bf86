"""The parts that charts are made of."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from flashinfer_bench.report.page.frame import (
    drawing,
    figure,
    horizontal_grid,
    legend,
    line,
    text,
    vertical_grid,
)
from flashinfer_bench.report.page.scale import Scale

SCALE = Scale(0.0, 4.0, 100.0, 200.0, False, (0.0, 2.0, 4.0))


def test_a_drawing_has_a_size_and_a_name():
    root = ElementTree.fromstring(drawing(560.0, 300.5, "What it shows", line(0, 0, 1, 1, "grid")))
    assert root.get("viewBox") == "0 0 560 300.5"
    assert root.get("role") == "img"
    assert root.get("aria-label") == "What it shows"
    assert root[0].tag == "line"


@pytest.mark.parametrize("anchor", ["start", "middle", "end"])
def test_text(anchor):
    root = ElementTree.fromstring(text(1.0, 2.5, "a < b", "tick", anchor))
    assert root.text == "a < b"
    assert root.attrib == {"x": "1", "y": "2.5", "class": "tick", "text-anchor": anchor}


def test_text_without_class():
    assert "class" not in text(0, 0, "x")


def test_a_horizontal_axis_has_a_line_and_a_label_for_each_tick():
    root = ElementTree.fromstring(f"<g>{vertical_grid(SCALE, 10.0, 90.0, str)}</g>")
    lines, labels = root.findall("line"), root.findall("text")
    assert [one.get("x1") for one in lines] == ["100", "150", "200"]
    assert all(one.get("x1") == one.get("x2") for one in lines)
    assert all((one.get("y1"), one.get("y2")) == ("10", "90") for one in lines)
    assert [one.text for one in labels] == ["0.0", "2.0", "4.0"]
    assert [one.get("x") for one in labels] == ["100", "150", "200"]


def test_a_vertical_axis_has_a_line_and_a_label_for_each_tick():
    root = ElementTree.fromstring(f"<g>{horizontal_grid(SCALE, 50.0, 500.0, str)}</g>")
    lines, labels = root.findall("line"), root.findall("text")
    assert [one.get("y1") for one in lines] == ["100", "150", "200"]
    assert all((one.get("x1"), one.get("x2")) == ("50", "500") for one in lines)
    assert all(one.get("text-anchor") == "end" for one in labels)
    assert all(float(one.get("x")) < 50.0 for one in labels)


def test_a_legend_names_each_series_with_its_colour():
    root = ElementTree.fromstring(legend([("c1", "short", "the full name"), ("c2", "b", "bb")]))
    entries = root.findall("li")
    assert ["".join(one.itertext()) for one in entries] == ["short", "b"]
    assert [one.get("data-tip") for one in entries] == ["the full name", "bb"]
    assert [one.find("span").get("class") for one in entries] == ["swatch c1", "swatch c2"]


def test_a_figure_says_what_it_is():
    root = ElementTree.fromstring(figure("Title", "How to read it", line(0, 0, 1, 1, "grid")))
    assert root.find("figcaption/h3").text == "Title"
    assert root.find("figcaption/p").text == "How to read it"
    assert root.find("line") is not None
