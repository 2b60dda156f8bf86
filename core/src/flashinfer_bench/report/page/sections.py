"""The part of the page about one definition on one device, and the list of what failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from flashinfer_bench.report.page.frame import COLOURS, OTHERS, colours, legend
from flashinfer_bench.report.page.latency_chart import latency_chart
from flashinfer_bench.report.page.markup import Markup, element, join
from flashinfer_bench.report.page.names import clip, counted, short_solution, workload_labels
from flashinfer_bench.report.page.scale import duration_label, ratio_label
from flashinfer_bench.report.page.speedup_chart import speedup_chart
from flashinfer_bench.report.page.status_chart import status_class, status_label

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashinfer_bench.report.results import Result
    from flashinfer_bench.report.scores import SolutionScore

FAILURES = 60
"""Failed evaluations whose log is shown; one for each solution and status."""

_LOG = 4_000


def definition_section(
    results: Sequence[Result], ranked: Sequence[SolutionScore], is_open: bool, several: bool
) -> Markup:
    """Make the section of one definition on one device.

    Parameters
    ----------
    results : sequence of Result
        Its results.
    ranked : sequence of SolutionScore
        Its solutions, the best first.
    is_open : bool
        Whether it is unfolded at first.
    several : bool
        Whether the page is about several devices, so that each has to be named.
    """
    classes = colours(score.solution for score in ranked)
    labels = workload_labels(results)
    charts = (speedup_chart(results, labels, classes), latency_chart(results, labels, classes))
    drawn = [chart for chart in charts if chart is not None]
    if drawn:
        body = join([_legend(ranked, classes), element("div", *drawn, class_="pair")])
    else:
        body = element("p", "No solution passed, so there is nothing to draw.", class_="note")
    return element("details", _summary(ranked, several), body, open=is_open, class_="definition")


def _summary(ranked: Sequence[SolutionScore], several: bool) -> Markup:
    first = ranked[0]
    facts = [first.op_type or "unknown definition", counted(len(ranked), "solution")]
    if several:
        facts.append(first.hardware)
    return element(
        "summary",
        element("span", first.definition, class_="title"),
        element("span", " · ".join(facts), class_="note"),
        element("span", _headline(first), class_="headline"),
    )


def _headline(first: SolutionScore) -> str:
    if not (first.all_passed and first.mean_latency_ms):
        return "not solved"
    speedup = f" · {ratio_label(first.speedup)}" if first.speedup else ""
    name = short_solution(first.solution, first.definition)
    return f"{name} · {duration_label(first.mean_latency_ms)}{speedup}"


def _legend(ranked: Sequence[SolutionScore], classes: Mapping[str, str]) -> Markup:
    entries = [
        (classes[s.solution], short_solution(s.solution, s.definition), _tip(s))
        for s in ranked[:COLOURS]
    ]
    if len(ranked) > COLOURS:
        others = [score.solution for score in ranked[COLOURS:]]
        entries.append((OTHERS, f"{len(others)} others", "\n".join(others[:20])))
    return legend(entries)


def _tip(score: SolutionScore) -> str:
    return f"{score.solution}\nby {score.author}\n{score.passed} of {score.workloads} passed"


def failures_section(results: Sequence[Result]) -> Optional[Markup]:
    """Make the list of failures with their logs; None if there are none."""
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        if not result.passed:
            key = (result.definition, result.solution, result.status.value)
            groups.setdefault(key, []).append(result)
    if not groups:
        return None
    shown = list(groups.values())[:FAILURES]
    note = "One for each solution and outcome."
    if len(shown) < len(groups):
        note += f" The first {len(shown)} of {len(groups)}."
    return element(
        "section",
        element("h2", "Failures"),
        element("p", note, class_="note"),
        *(_failure(group) for group in shown),
    )


def _failure(group: Sequence[Result]) -> Markup:
    first = group[0]
    status = first.status.value
    log = next((result.log for result in group if result.log.strip()), "")
    return element(
        "details",
        element(
            "summary",
            element("span", class_=f"mark {status_class(status)}"),
            element("span", first.solution, class_="title"),
            element(
                "span", f"{first.definition} · {counted(len(group), 'workload')}", class_="note"
            ),
            element("span", status_label(status), class_="headline"),
        ),
        element("pre", _excerpt(log) if log else "(no log was recorded)"),
        class_="failure",
    )


def _excerpt(log: str) -> str:
    """Keep both ends of a long log: the beginning says what ran, the end what went wrong."""
    log = "\n".join(clip(row, 400) for row in log.strip().splitlines())
    if len(log) <= _LOG:
        return log
    left_out = len(log) - _LOG
    return f"{log[: _LOG // 4]}\n… {left_out:,} characters left out …\n{log[-3 * _LOG // 4 :]}"
