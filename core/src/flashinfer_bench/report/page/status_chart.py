"""Chart of what became of the evaluations of each author: passed, and each way to fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.data import EvaluationStatus
from flashinfer_bench.report.page.frame import drawing, figure, legend, text
from flashinfer_bench.report.page.markup import Markup, element, join
from flashinfer_bench.report.page.names import clip
from flashinfer_bench.report.scores import count_statuses

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashinfer_bench.report.results import Result

WIDTH = 560.0
AUTHORS = 12
"""Authors with a bar of their own; the others share one."""

_LEFT, _RIGHT, _ROW, _BAR = 130.0, 500.0, 26.0, 16.0


def status_class(status: str) -> str:
    """Return the class of the colour of a status."""
    return f"st-{status.lower().replace('_', '-')}"


def status_label(status: str) -> str:
    """Return a status as it is read: ``incorrect shape``."""
    return status.lower().replace("_", " ")


def status_chart(results: Sequence[Result]) -> Markup:
    """Draw the chart, the author with the most evaluations on top."""
    groups = _by_author(results)
    rows = [(author, count_statuses(group)) for author, group in groups.items()]
    height = _ROW * len(rows) + 6
    bars = [_bar(author, counts, 6 + _ROW * i) for i, (author, counts) in enumerate(rows)]
    total = count_statuses(results)
    entries = [
        (status_class(status), f"{status_label(status)} · {count:,}", f"{status}: {count:,}")
        for status, count in total.items()
    ]
    return figure(
        "Outcomes by author",
        "Share of each author’s evaluations; the number of evaluations stands at the end.",
        drawing(WIDTH, height, "Share of evaluations by status and author", *bars),
        legend(entries),
    )


def _by_author(results: Sequence[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.author, []).append(result)
    ordered = sorted(groups, key=lambda author: (-len(groups[author]), author))
    shown = {author: groups[author] for author in ordered[:AUTHORS]}
    rest = ordered[AUTHORS:]
    if rest:
        shown[f"{len(rest)} others"] = [r for author in rest for r in groups[author]]
    return shown


def _bar(author: str, counts: Mapping[str, int], y: float) -> Markup:
    total = sum(counts.values())
    parts = [
        element(
            "text",
            clip(author, 17),
            x=_LEFT - 10,
            y=y + 12,
            class_="name",
            text_anchor="end",
            data_tip=author,
        )
    ]
    x = _LEFT
    for status in EvaluationStatus:
        count = counts.get(status.value, 0)
        width = (_RIGHT - _LEFT) * count / total
        if count:
            # A gap of two pixels tells neighbours apart even where their colours do not.
            parts.append(
                element(
                    "rect",
                    x=x,
                    y=y,
                    width=max(width - 2, 1.0),
                    height=_BAR,
                    rx=2,
                    class_=status_class(status.value),
                    data_tip=f"{author}\n{status_label(status.value)}: {count} of {total}",
                )
            )
        x += width
    parts.append(text(_RIGHT + 8, y + 12, f"{total:,}", "tick"))
    return join(parts)
