"""Chart of the latency of each solution on some workloads of one definition, with its spread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from flashinfer_bench.report.page.frame import drawing, figure, line, text, vertical_grid
from flashinfer_bench.report.page.markup import Markup, element, join
from flashinfer_bench.report.page.names import clip, short_solution
from flashinfer_bench.report.page.scale import Scale, decimal_scale, duration_label
from flashinfer_bench.report.statistics import Spread, spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashinfer_bench.report.results import Result

WIDTH = 560.0
WORKLOADS, SOLUTIONS = 3, 6
"""At most so many are drawn; more would be a wall that nobody reads."""

_LEFT, _RIGHT, _TOP = 196.0, 536.0, 2.0
_ROW, _HEADING, _AXIS = 17.0, 20.0, 34.0


def latency_chart(
    results: Sequence[Result], labels: Mapping[str, str], classes: Mapping[str, str]
) -> Optional[Markup]:
    """Draw the chart.

    Parameters
    ----------
    results : sequence of Result
        Of one definition on one device.
    labels : mapping of str to str
        Label of each workload by its uuid, in the order in which they stand one below the other.
    classes : mapping of str to str
        Class of the colour of each solution, the best first.

    Returns
    -------
    Markup or None
        None if nothing passed.
    """
    names = list(classes)[:SOLUTIONS]
    timed = [r for r in results if r.latency_ms and r.solution in names]
    if not timed:
        return None
    groups = _groups(timed, labels, names)
    parts = []
    y = _TOP
    for label, rows in groups:
        parts.append(_group(label, rows, y, classes))
        y += _HEADING + _ROW * len(rows) + _AXIS
    return figure(
        "Latency with spread",
        _note(timed, groups, labels),
        drawing(WIDTH, y - _AXIS + 22, "Latency of each solution with its spread", *parts),
    )


def _groups(
    timed: Sequence[Result], labels: Mapping[str, str], names: Sequence[str]
) -> list[tuple[str, list[Result]]]:
    uuids = [uuid for uuid in labels if any(r.workload == uuid for r in timed)]
    groups = []
    for uuid in _evenly(uuids, WORKLOADS):
        rows = sorted(
            (r for r in timed if r.workload == uuid), key=lambda r: names.index(r.solution)
        )
        groups.append((labels[uuid], rows))
    return groups


def _evenly(items: Sequence[str], count: int) -> list[str]:
    """Choose `count` items, with the first and the last, at equal distances."""
    if len(items) <= count:
        return list(items)
    return [items[round(index * (len(items) - 1) / (count - 1))] for index in range(count)]


def _extent(rows: Sequence[Result]) -> list[float]:
    values: list[float] = []
    for result in rows:
        found = spread(result.samples_ms)
        values += [result.latency_ms or 0.0, *((found.p10, found.p90) if found else ())]
        values += [result.reference_latency_ms] if result.reference_latency_ms else []
    return values


def _note(timed: Sequence[Result], groups: Sequence[object], labels: Mapping[str, str]) -> str:
    note = "Dot: recorded latency; dashed: reference. "
    if any(result.samples_ms for result in timed):
        note += "Thick: middle half of the samples; thin: all but a tenth at each end."
    else:
        note += "These traces hold no samples, so the spread is not known."
    if len(groups) < len(labels):
        note += f" Shown: {len(groups)} of {len(labels)} workloads."
    return note


def _group(label: str, rows: Sequence[Result], y: float, classes: Mapping[str, str]) -> Markup:
    """Draw one workload, on a scale of its own: between workloads latencies differ too much."""
    top, bottom = y + _HEADING, y + _HEADING + _ROW * len(rows)
    scale = decimal_scale(_extent(rows), _LEFT, _RIGHT)
    parts = [
        text(0, y + 14, clip(label, 60), "heading"),
        vertical_grid(scale, top, bottom, duration_label),
    ]
    reference = next((r.reference_latency_ms for r in rows if r.reference_latency_ms), None)
    if reference is not None:
        parts.append(line(scale(reference), top, scale(reference), bottom, "reference"))
    for index, result in enumerate(rows):
        middle = top + _ROW * (index + 0.5)
        parts.append(_row(result, middle, scale, classes[result.solution]))
    return join(parts)


def _row(result: Result, y: float, scale: Scale, class_: str) -> Markup:
    found = spread(result.samples_ms)
    latency = result.latency_ms or 0.0
    name = short_solution(result.solution, result.definition, 26)
    return element(
        "g",
        text(_LEFT - 10, y + 4, name, "name", "end"),
        # Something to point at that is larger than a dot.
        element("rect", x=0, y=y - _ROW / 2, width=WIDTH, height=_ROW, class_="catch"),
        *(_bars(found, y, scale, class_) if found else ()),
        element("circle", cx=scale(latency), cy=y, r=4, class_=f"dot {class_}"),
        data_tip=_tip(result, latency, found),
    )


def _bars(found: Spread, y: float, scale: Scale, class_: str) -> list[Markup]:
    return [
        line(scale(found.p10), y, scale(found.p90), y, f"whisker {class_}"),
        line(scale(found.p25), y, scale(found.p75), y, f"box {class_}"),
    ]


def _tip(result: Result, latency: float, found: Optional[Spread]) -> str:
    lines = [result.solution, f"latency {duration_label(latency)}"]
    if found is not None:
        ends = f"{duration_label(found.p10)} – {duration_label(found.p90)}"
        lines.append(f"{len(result.samples_ms)} samples, 80 % within {ends}")
    if result.reference_latency_ms:
        lines.append(f"reference {duration_label(result.reference_latency_ms)}")
    return "\n".join(lines)
