"""The page as a whole."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Optional

from fib_report.page.markup import Markup, element
from fib_report.page.payload import pack, page_parts, ratio_label
from fib_report.scores import best_solutions, geometric_mean, score_solutions
from flashinfer_bench import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fib_report.coverage import DefinitionCoverage
    from fib_report.results import Result
    from fib_report.scores import Best
    from flashinfer_bench.data import TraceSet

_VIEWS = ("leaderboard", "definitions", "solutions", "workloads", "evaluations", "failures")


@dataclass(frozen=True)
class PageInfo:
    """The header of the page.

    Parameters
    ----------
    title : str
        The title of the page.
    dataset : str
        Where the results come from.
    generated : str
        When the page was made.
    command : str
        The command that made it.
    """

    title: str
    dataset: str
    generated: str
    command: str = ""


def render_page(
    results: Sequence[Result],
    info: PageInfo,
    coverage: Sequence[DefinitionCoverage] = (),
    trace_set: Optional[TraceSet] = None,
) -> str:
    """Return the page as text.

    Parameters
    ----------
    results : sequence of Result
        At most one for each solution, workload and device, as `latest_results` returns them.
    info : PageInfo
        Its header.
    coverage : sequence of DefinitionCoverage
        What is missing, as `find_gaps` returns it; without it the page has no coverage.
    trace_set : TraceSet, optional
        The dataset. Without it the page has no sources, no earlier evaluations and no rooflines.

    Returns
    -------
    str
        A self-contained HTML document.
    """
    parts = page_parts(results, coverage, trace_set)
    data = parts["data"]
    more = {"compare": len(data["runs"]["time"]) > data["latest"], "coverage": bool(coverage)}
    body = element(
        "body",
        element("a", "Skip to the content", href="#view", class_="skip"),
        _header(info, data["facts"]),
        _tiles(results, best_solutions(score_solutions(results))),
        _navigation([*_VIEWS, *(name for name, is_shown in more.items() if is_shown)]),
        element("main", _waiting(), id="view", tabindex="-1"),
        element("footer", f"Made by flashinfer-bench {__version__} at {info.generated}."),
        element("div", id="tip", hidden=True),
        # The browser shows what precedes this while it reads the rest.
        *(_packed(name, part) for name, part in parts.items()),
        element("script", Markup(_script())),
    )
    return as_document(info.title, body, _script())


def as_document(title: str, body: Markup, script: str = "") -> str:
    """Return a self-contained HTML document in the style of the page."""
    document = element("html", _head(title, script), body, lang="en")
    return f"<!DOCTYPE html>\n{document}\n"


def _script() -> str:
    """Return all scripts as one, without global names; the last one starts the others."""
    scripts = list(files(__package__).joinpath("script").iterdir())
    scripts.sort(key=lambda script: (script.name == "main.js", script.name))
    parts = "".join(script.read_text(encoding="utf-8") for script in scripts)
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


def _packed(name: str, data: object) -> Markup:
    """Return a script element with packed data, which browsers neither show nor run."""
    return element("script", Markup(pack(data)), type="application/octet-stream", id=name)


def _head(title: str, script: str) -> Markup:
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    # Allow this style and script only, and no requests: a second line of defence in case a name in
    # a dataset gets past the escaping.
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(style)),
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _header(info: PageInfo, facts: Sequence[tuple[str, str]]) -> Markup:
    told = [("Dataset", info.dataset), ("Command", info.command), *facts]
    pairs = [
        element("div", element("dt", name), element("dd", element("bdi", value)))
        for name, value in told
        if value
    ]
    return element(
        "header",
        element("h1", element("bdi", info.title)),
        element("button", "Dark theme", type="button", id="theme", hidden=True),
        element("dl", *pairs, class_="facts"),
    )


def _navigation(views: Sequence[str]) -> Markup:
    links = [element("a", view.capitalize(), href=f"#/{view}", data_view=view) for view in views]
    return element("nav", *links, id="views", aria_label="Views")


def _waiting() -> Markup:
    needs = "This page needs JavaScript for its tables and plots, and your browser does not run it."
    return element(
        "section", element("p", "Unpacking …", class_="note"), element("noscript", needs)
    )


def _tiles(results: Sequence[Result], best: Sequence[Best]) -> Markup:
    passed = sum(result.passed for result in results)
    definitions = {result.definition for result in results}
    solved = {item.score.definition for item in best}
    speedup = geometric_mean([b.score.speedup.value for b in best if b.score.speedup is not None])
    return element(
        "section",
        tile("Definitions solved", f"{len(solved)} / {len(definitions)}"),
        tile("Solutions", f"{len({result.solution for result in results}):,}"),
        tile("Workloads", f"{len({(r.definition, r.workload) for r in results}):,}"),
        tile("Latest evaluations", f"{len(results):,}"),
        tile("Passed", f"{passed / len(results):.0%}"),
        tile("Mean speed-up of the best", "–" if speedup is None else ratio_label(speedup)),
        class_="tiles",
        aria_label="Totals",
    )


def tile(label: str, value: str) -> Markup:
    """Return a box with one number."""
    return element("div", element("b", value), element("span", label), class_="tile")
