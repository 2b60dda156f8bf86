"""Rankings, reports and the report page, and which solution apply uses for which call.

Registers subcommands of ``fib report``, ``fib apply`` and ``fib validate-render``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flashinfer_bench.plugins import CommandSpec, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable


_MODULES = {
    "baselines": ("Against", "NamedBaseline"),
    "causes": ("Failures", "cause", "group_failures", "reason_of"),
    "coverage": ("DefinitionCoverage", "find_gaps"),
    "page": ("PageInfo", "render_page"),
    "ratings": ("Rating", "fastp_curves", "rate_authors"),
    "results": ("Result", "collect_results", "latest_results", "with_intervals"),
    "scores": ("Best", "Measured", "SolutionScore", "best_solutions", "score_solutions"),
    "summary": ("DatasetSummary", "summarize"),
    "regressions": ("Change", "Comparison", "compare_dates", "parse_date"),
}
_EXPORTS = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)


@hookimpl
def fib_register_commands() -> Iterable[CommandSpec]:
    """Register the commands of this plugin."""
    yield CommandSpec(
        name="report best",
        factory="fib_report.best:app",
        summary="Show the fastest correct solution of each definition.",
    )
    for name, summary in (
        ("summary", "Count definitions, solutions and traces, and rank the authors."),
        ("scores", "Rate authors or solutions: scores, fast_p, win rates and means."),
        ("coverage", "List definitions that lack workloads, solutions or evaluations."),
        ("regressions", "Compare the results before a date with those after it."),
        ("visualize", "Write a page with tables and plots."),
    ):
        yield CommandSpec(
            name=f"report {name}",
            factory=f"fib_report.commands:{name}_app",
            summary=summary,
        )
    yield CommandSpec(
        name="run report",
        factory="fib_report.run_addition:add_to_run",
        summary="Reasons for failures; --lf, -x, --maxfail, --junit.",
    )
    yield CommandSpec(
        name="show",
        factory="fib_report.show:app",
        summary="Show everything recorded about a definition, solution, workload or trace.",
        priority=935,
    )
    yield CommandSpec(
        name="validate-render",
        factory="fib_report.commands:validate_render",
        summary="Show a saved report of 'fib validate', or convert it to HTML.",
        priority=915,
    )
    yield CommandSpec(
        name="apply",
        factory="fib_report.apply_commands:app",
        summary="Show which solutions apply would use here, and build them.",
        priority=910,
    )
