"""``fib validate``: whether a dataset is sound."""

# ruff: noqa: TC001, TC003 - typer reads the annotations at run time

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from flashinfer_bench.cli.datasets import dataset_roots
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.greedy import GreedyCommand
from flashinfer_bench.cli.logs import set_up_logging
from flashinfer_bench.cli.options import AsJson, Definitions, Hub, Local, LogLevel
from flashinfer_bench.cli.output import emit_json, table, talk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.validate import Finding, ValidationReport

SCHEMA_VERSION = 1

Layers = Annotated[
    Optional[list[str]],
    typer.Option(
        *("--layer", "--layers"),
        metavar="NAME...",
        show_default=False,
        help="Only these: layout, definition, workload, solution, trace, baseline, benchmark.",
    ),
]
Jobs = Annotated[
    Optional[int],
    typer.Option(
        *("--jobs", "-j"),
        metavar="N",
        min=1,
        show_default=False,
        help="Processes that share the work. Default: one per core, where it is worth it.",
    ),
]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("validate", cls=GreedyCommand)
def validate(
    dataset: Annotated[
        Optional[Path],
        typer.Argument(
            metavar="[DATASET]", show_default=False, help="The same as --local DATASET."
        ),
    ] = None,
    local: Local = None,
    hub: Hub = None,
    mutants: Annotated[
        bool,
        typer.Option(
            "--mutants", help="Run the references, and feed wrong outputs to the checker."
        ),
    ] = False,
    definitions: Definitions = None,
    layers: Layers = None,
    jobs: Jobs = None,
    strict: Annotated[bool, typer.Option("--strict", help="Count warnings as errors.")] = False,
    errors_only: Annotated[
        bool, typer.Option("--errors-only", help="Hide warnings and notes.")
    ] = False,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Check that a dataset is sound; change nothing, run nothing, need no GPU.

    With --mutants it is the checker that is tested: the reference of each workload runs, its
    outputs are made wrong in several ways, and every one of them must be refused.

    Exits with 1 if there is an error, a warning under --strict, or a wrong output that passes.
    Notes, which sound datasets may have, do not count.
    """
    set_up_logging(log_level, default="ERROR")  # an unfinished line is a finding, not a log line
    roots = dataset_roots([*([dataset] if dataset else []), *(local or [])], hub)
    if mutants and layers:
        raise typer.BadParameter("--layer and --mutants are two different things; give one")
    if mutants:
        from flashinfer_bench.cli.validate_mutants import feed_mutants

        raise typer.Exit(feed_mutants(roots, definitions or (), strict=strict, as_json=as_json))
    if definitions:
        raise typer.BadParameter("only --mutants can be restricted to definitions")
    from flashinfer_bench.validate import validate_dataset

    reports = [validate_dataset(root, layers or None, jobs=jobs) for root in roots]
    if as_json:
        emit_json(_document(reports, errors_only))
    else:
        for report in reports:
            _print(report, errors_only, several=len(reports) > 1)
    bad = any(report.errors or (strict and report.warnings) for report in reports)
    raise typer.Exit(ExitCode.FINDINGS if bad else ExitCode.OK)


def _shown(report: ValidationReport, errors_only: bool) -> Sequence[Finding]:
    return report.errors if errors_only else report.findings


def _print(report: ValidationReport, errors_only: bool, *, several: bool) -> None:
    rows = [_row(report, finding, several) for finding in _shown(report, errors_only)]
    if rows:
        table(f"Findings in {report.root}", ("severity", "check", "place", "message"), rows)
    seen = ", ".join(f"{count:,} {noun}" for noun, count in report.counts.items())
    told = f"{len(report.errors)} errors, {len(report.warnings)} warnings"
    told += f", {len(report.notes)} notes" if report.notes else ""
    talk(f"{report.root}: {told} in {seen}")


def _row(report: ValidationReport, finding: Finding, several: bool) -> tuple[str, ...]:
    place = f"{report.root}/{finding.where}" if several else finding.where
    message = f"{finding.message} ({finding.hint})" if finding.hint else finding.message
    return finding.severity.value, finding.check, place, message


def _document(reports: Sequence[ValidationReport], errors_only: bool) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "datasets": [
            {
                "root": report.root,
                "layers": report.layers,
                "counts": report.counts,
                "errors": len(report.errors),
                "warnings": len(report.warnings),
                "notes": len(report.notes),
                "findings": _shown(report, errors_only),
            }
            for report in reports
        ],
    }
