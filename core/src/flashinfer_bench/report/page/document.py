"""The page as a whole."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from typing import TYPE_CHECKING

from flashinfer_bench._version import __version__
from flashinfer_bench.report.page.fastp_chart import fastp_chart, fastp_curves
from flashinfer_bench.report.page.frame import colours
from flashinfer_bench.report.page.markup import Markup, element, join
from flashinfer_bench.report.page.results_table import results_table
from flashinfer_bench.report.page.scale import ratio_label
from flashinfer_bench.report.page.sections import definition_section, failures_section
from flashinfer_bench.report.page.status_chart import status_chart
from flashinfer_bench.report.scores import best_solutions, score_solutions
from flashinfer_bench.report.statistics import geometric_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.report.results import Result
    from flashinfer_bench.report.scores import Best, SolutionScore

_UNFOLDED = 3


@dataclass(frozen=True)
class PageInfo:
    """What the head of the page says.

    Parameters
    ----------
    title : str
        Its title.
    dataset : str
        Where the results come from.
    generated : str
        When the page was made.
    """

    title: str
    dataset: str
    generated: str


def render_page(results: Sequence[Result], info: PageInfo) -> str:
    """Return the page as text.

    Parameters
    ----------
    results : sequence of Result
        At most one for each solution, workload and device, as `latest_results` gives them.
    info : PageInfo
        What its head says.

    Returns
    -------
    str
        An HTML document that needs no other file and asks for none.
    """
    scores = score_solutions(results)
    best = best_solutions(scores)
    body = element(
        "body",
        _header(results, info),
        element("main", _tiles(results, best), *_content(results, scores, best)),
        element("footer", f"Made by flashinfer-bench {__version__} at {info.generated}."),
        element("div", id="tip", role="status", hidden=True),
        element("script", Markup(_asset("page.js"))),
    )
    document = element("html", _head(info), body, lang="en")
    return f"<!DOCTYPE html>\n{document}\n"


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _head(info: PageInfo) -> Markup:
    style, script = _asset("page.css"), _asset("page.js")
    # Nothing may be fetched and nothing may run but this very style and script: a second wall, in
    # case a name in a dataset ever found a hole in the escaping.
    policy = f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", info.title),
        element("style", Markup(style)),
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _header(results: Sequence[Result], info: PageInfo) -> Markup:
    devices = sorted({result.hardware for result in results})
    shown = ", ".join(devices[:3]) + (f" and {len(devices) - 3} more" if devices[3:] else "")
    return element(
        "header",
        element(
            "div",
            element("h1", info.title),
            element("p", f"{info.dataset} · {shown}", class_="note"),
        ),
        element("button", "Light or dark", type="button", id="theme", hidden=True),
    )


def _tiles(results: Sequence[Result], best: Sequence[Best]) -> Markup:
    passed = sum(result.passed for result in results)
    definitions = {result.definition for result in results}
    solved = {item.score.definition for item in best}
    speedup = geometric_mean([b.score.speedup for b in best if b.score.speedup is not None])
    return element(
        "section",
        _tile("Definitions solved", f"{len(solved)} / {len(definitions)}"),
        _tile("Solutions", f"{len({result.solution for result in results}):,}"),
        _tile("Workloads", f"{len({(r.definition, r.workload) for r in results}):,}"),
        _tile("Latest evaluations", f"{len(results):,}"),
        _tile("Passed", f"{passed / len(results):.0%}"),
        _tile("Mean speed-up of the best", "–" if speedup is None else ratio_label(speedup)),
        class_="tiles",
    )


def _tile(label: str, value: str) -> Markup:
    return element("div", element("b", value), element("span", label), class_="tile")


def _content(
    results: Sequence[Result], scores: Sequence[SolutionScore], best: Sequence[Best]
) -> list[Markup]:
    parts = [_overview(results), _table(scores, best), _definitions(results, scores)]
    failures = failures_section(results)
    return parts if failures is None else [*parts, failures]


def _overview(results: Sequence[Result]) -> Markup:
    curves = fastp_curves(results)
    chart = fastp_chart(curves, colours(curves))
    drawn = [status_chart(results)] if chart is None else [chart, status_chart(results)]
    return element("section", element("h2", "Overview"), element("div", *drawn, class_="pair"))


def _table(scores: Sequence[SolutionScore], best: Sequence[Best]) -> Markup:
    marked = {(b.score.definition, b.score.hardware, b.score.solution) for b in best}
    filter_box = element(
        "input", type="search", id="filter", placeholder="Filter rows", aria_label="Filter rows"
    )
    note = (
        "Latency: median over the workloads that passed. Speed-up over the reference: geometric "
        "mean, with the smallest and the largest. Click a heading to sort."
    )
    return element(
        "section",
        element("h2", "Results"),
        element("p", note, class_="note"),
        element("p", filter_box, element("span", id="shown", class_="note"), class_="controls"),
        results_table(scores, marked),
    )


def _definitions(results: Sequence[Result], scores: Sequence[SolutionScore]) -> Markup:
    several = len({score.hardware for score in scores}) > 1
    by_place: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        by_place.setdefault((result.definition, result.hardware), []).append(result)
    groups = groupby(scores, key=lambda score: (score.definition, score.hardware))
    sections = [
        definition_section(by_place[place], list(ranked), index < _UNFOLDED, several)
        for index, (place, ranked) in enumerate(groups)
    ]
    return element("section", element("h2", "Definitions"), join(sections))
