"""What every chart has: the drawing, its grid, its colours and its legend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.report.page.markup import Markup, element, join

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from flashinfer_bench.report.page.scale import Scale

COLOURS = 8
"""Series that get a colour of their own; eyes tell no more of them apart reliably."""

OTHERS = "c0"
"""Class of the grey that all further series share."""


def colours(names: Iterable[str]) -> dict[str, str]:
    """Give each name the class of a colour, the same order always giving the same colours."""
    return {name: f"c{n}" if n <= COLOURS else OTHERS for n, name in enumerate(names, start=1)}


def drawing(width: float, height: float, label: str, *children: Markup) -> Markup:
    """Make an SVG drawing that shrinks with the page.

    Parameters
    ----------
    width, height : float
        Its size in its own units, which are pixels where there is room.
    label : str
        What it shows, for those who cannot see it.
    *children
        Its content.
    """
    return element(
        "svg",
        *children,
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
        aria_label=label,
    )


def text(x: float, y: float, content: str, class_: str = "", anchor: str = "start") -> Markup:
    """Make a line of text that starts, ends or has its middle at `x`."""
    return element("text", content, x=x, y=y, class_=class_ or None, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """Make a straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def vertical_grid(scale: Scale, top: float, bottom: float, label: Callable[[float], str]) -> Markup:
    """Draw the lines of a horizontal axis, with their values below."""
    parts = []
    for tick in scale.ticks:
        x = scale(tick)
        parts += [
            line(x, top, x, bottom, "grid"),
            text(x, bottom + 16, label(tick), "tick", "middle"),
        ]
    return join(parts)


def horizontal_grid(
    scale: Scale, left: float, right: float, label: Callable[[float], str]
) -> Markup:
    """Draw the lines of a vertical axis, with their values on the left."""
    parts = []
    for tick in scale.ticks:
        y = scale(tick)
        parts += [
            line(left, y, right, y, "grid"),
            text(left - 8, y + 4, label(tick), "tick", "end"),
        ]
    return join(parts)


def legend(entries: Sequence[tuple[str, str, str]]) -> Markup:
    """Make the legend of a chart.

    Parameters
    ----------
    entries : sequence of (class, short name, full name)
        In the order of the chart.
    """
    items = [
        element("li", element("span", class_=f"swatch {class_}"), name, data_tip=tip)
        for class_, name, tip in entries
    ]
    return element("ul", *items, class_="legend")


def figure(title: str, note: str, *content: Markup) -> Markup:
    """Put a title above a chart, and what has to be known to read it below the title."""
    return element(
        "figure",
        element("figcaption", element("h3", title), element("p", note, class_="note")),
        *content,
    )
