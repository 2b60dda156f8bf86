"""Chart of the speed-up of each solution on each workload of one definition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from flashinfer_bench.report.page.frame import (
    drawing,
    figure,
    horizontal_grid,
    line,
    text,
)
from flashinfer_bench.report.page.markup import Markup, element, join
from flashinfer_bench.report.page.names import clip, split_labels
from flashinfer_bench.report.page.scale import Scale, doubling_scale, duration_label, ratio_label

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashinfer_bench.report.results import Result

WIDTH, HEIGHT = 560.0, 306.0
_LEFT, _RIGHT, _TOP = 52.0, 548.0, 14.0
_BOTTOM, _FAILED = 220.0, 236.0  # a failure has no speed-up: it stands on a line of its own
_LABELS = 252.0
_LETTER = 6.6  # width of one


def speedup_chart(
    results: Sequence[Result], labels: Mapping[str, str], classes: Mapping[str, str]
) -> Optional[Markup]:
    """Draw the chart.

    Parameters
    ----------
    results : sequence of Result
        Of one definition on one device.
    labels : mapping of str to str
        Label of each workload by its uuid, in the order in which they stand side by side.
    classes : mapping of str to str
        Class of the colour of each solution, the best first.

    Returns
    -------
    Markup or None
        None if nothing was compared with the reference.
    """
    speedups = [r.speedup for r in results if r.speedup is not None]
    if not speedups:
        return None
    scale = doubling_scale(speedups, _BOTTOM, _TOP)
    places = _places(list(labels))
    drawn = [
        horizontal_grid(scale, _LEFT, _RIGHT, ratio_label),
        line(_LEFT, scale(1.0), _RIGHT, scale(1.0), "reference"),
        _workload_axis(places, labels),
        _failures(results, places, classes, labels),
        *(
            _series([r for r in results if r.solution == name], places, scale, class_, labels)
            for name, class_ in reversed(list(classes.items()))  # the best is drawn last, on top
        ),
    ]
    return figure(
        "Speed-up per workload",
        "Over the definition’s reference (1×, dashed); a cross is a failed evaluation.",
        drawing(WIDTH, HEIGHT, "Speed-up of each solution on each workload", *drawn),
    )


def _places(uuids: Sequence[str]) -> dict[str, float]:
    step = (_RIGHT - _LEFT) / len(uuids)
    return {uuid: _LEFT + (index + 0.5) * step for index, uuid in enumerate(uuids)}


def _workload_axis(places: Mapping[str, float], labels: Mapping[str, str]) -> Markup:
    title, short = split_labels(labels)
    stride = max(1, -(-len(places) // 14))
    shown = list(places.items())[::stride]
    room = (_RIGHT - _LEFT) / len(places) * stride
    level = max(len(short[uuid]) for uuid, _ in shown) * _LETTER < room
    parts = [line(_LEFT, _BOTTOM, _RIGHT, _BOTTOM, "axis")]
    for uuid, x in shown:
        if level:
            parts.append(text(x, _LABELS + 4, short[uuid], "tick", "middle"))
        else:
            parts.append(_slanted(x, short[uuid], labels[uuid]))
    below = _LABELS + 22 if level else HEIGHT - 4
    parts.append(text(_RIGHT, below, clip(title, 70), "tick", "end"))
    return join(parts)


def _slanted(x: float, short: str, label: str) -> Markup:
    return element(
        "text",
        clip(short, 13),
        class_="tick",
        text_anchor="end",
        data_tip=label,
        transform=f"translate({x + 4:.1f} {_LABELS:.1f}) rotate(-28)",
    )


def _series(
    results: Sequence[Result],
    places: Mapping[str, float],
    scale: Scale,
    class_: str,
    labels: Mapping[str, str],
) -> Markup:
    found = {r.workload: r for r in results if r.speedup is not None}
    points = [
        (places[uuid], scale(found[uuid].speedup or 0.0), found[uuid])
        for uuid in places
        if uuid in found
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    dots = [
        element("circle", cx=x, cy=y, r=4, class_=f"dot {class_}", data_tip=_tip(result, labels))
        for x, y, result in points
    ]
    return join([element("polyline", points=path, class_=f"curve {class_}"), *dots])


def _tip(result: Result, labels: Mapping[str, str]) -> str:
    latency = duration_label(result.latency_ms or 0.0)
    return (
        f"{result.solution}\n{labels[result.workload]}\n"
        f"{ratio_label(result.speedup or 0.0)} · {latency}"
    )


def _failures(
    results: Sequence[Result],
    places: Mapping[str, float],
    classes: Mapping[str, str],
    labels: Mapping[str, str],
) -> Markup:
    failed = [r for r in results if not r.passed]
    if not failed:
        return Markup("")
    parts = [text(_LEFT - 8, _FAILED + 4, "failed", "tick", "end")]
    order = list(classes)
    room = min(10.0, 0.8 * (_RIGHT - _LEFT) / len(places) / len(order))
    for result in failed:
        shift = (order.index(result.solution) - (len(order) - 1) / 2) * room
        x = places[result.workload] + shift
        parts.append(
            element(
                "path",
                d=f"M{x - 3:.1f} {_FAILED - 3:.1f}l6 6m0 -6l-6 6",
                class_=f"cross {classes[result.solution]}",
                data_tip=f"{result.solution}\n{labels[result.workload]}\n{result.status.value}",
            )
        )
    return join(parts)
