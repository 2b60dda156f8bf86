"""Table of how every solution did on every device; the page's script sorts and filters it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from flashinfer_bench.report.page.markup import Markup, breakable, element
from flashinfer_bench.report.page.scale import duration_label, ratio_label
from flashinfer_bench.report.page.status_chart import status_class, status_label

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from flashinfer_bench.report.scores import SolutionScore

_COLUMNS = (
    ("Definition", False),
    ("Solution", False),
    ("Author", False),
    ("Language", False),
    ("Outcome", False),
    ("Workloads", True),
    ("Latency", True),
    ("Speed-up", True),
    ("Range", True),
    ("Max. error", True),
)


def results_table(
    scores: Sequence[SolutionScore], best: Collection[tuple[str, str, str]]
) -> Markup:
    """Make the table.

    Parameters
    ----------
    scores : sequence of SolutionScore
        One row each.
    best : collection of (definition, hardware, solution)
        The rows to mark as the best of their definition and device.
    """
    several = len({score.hardware for score in scores}) > 1
    columns = [*_COLUMNS, ("Device", False)] if several else list(_COLUMNS)
    head = element("tr", *(_heading(name, numeric) for name, numeric in columns))
    rows = [
        _row(score, (score.definition, score.hardware, score.solution) in best, several)
        for score in scores
    ]
    return element(
        "div",
        element("table", element("thead", head), element("tbody", *rows), id="results"),
        class_="scroll",
    )


def _heading(name: str, numeric: bool) -> Markup:
    button = element("button", name, type="button")
    return element("th", button, scope="col", class_="n" if numeric else None)


def _row(score: SolutionScore, best: bool, several: bool) -> Markup:
    badge = element("span", "best", class_="badge") if best else None
    cells = [
        _cell(score.definition),
        element("td", breakable(score.solution), badge, data_v=score.solution),
        _cell(score.author),
        _cell(score.language),
        _outcome(score),
        _number(f"{score.passed}/{score.workloads}", float(score.passed)),
        _latency(score.median_latency_ms),
        _ratio(score.speedup),
        _range(score),
        _error(score.max_absolute_error),
    ]
    if several:
        cells.append(_cell(score.hardware))
    return element("tr", *cells)


def _cell(text: str) -> Markup:
    return element("td", breakable(text), data_v=text)


def _number(text: str, value: Optional[float]) -> Markup:
    return element("td", text, class_="n", data_v="" if value is None else repr(value))


def _latency(milliseconds: Optional[float]) -> Markup:
    shown = "–" if milliseconds is None else duration_label(milliseconds)
    return _number(shown, milliseconds)


def _ratio(value: Optional[float]) -> Markup:
    return _number("–" if value is None else ratio_label(value), value)


def _range(score: SolutionScore) -> Markup:
    if score.min_speedup is None or score.max_speedup is None:
        return _number("–", None)
    shown = f"{ratio_label(score.min_speedup)} – {ratio_label(score.max_speedup)}"
    return _number(shown, score.min_speedup)


def _error(value: Optional[float]) -> Markup:
    return _number("–" if value is None else f"{value:.2g}", value)


def _outcome(score: SolutionScore) -> Markup:
    """Show the worst outcome in a word, and all of them under the pointer."""
    worst = list(score.statuses)[-1] if score.statuses else ""
    label = status_label(worst)
    if score.passed and not score.all_passed:
        label = f"{score.workloads - score.passed} failed"
    counts = "\n".join(f"{status_label(name)}: {n}" for name, n in score.statuses.items())
    mark = element("span", class_=f"mark {status_class(worst)}")
    return element("td", mark, label, class_="outcome", data_v=label, data_tip=counts)
