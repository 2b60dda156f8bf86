"""``fib validate``: whether a dataset is sound."""

# ruff: noqa: TC003 - typer reads the annotations at run time

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from flashinfer_bench.cli.datasets import dataset_roots
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import AsJson, GreedyCommand, Hub, Local, LogLevel, option
from flashinfer_bench.cli.output import emit_document, set_up_logging, table, talk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.validate import Finding, ValidationReport

Layers = Annotated[
    Optional[list[str]],
    option(
        "--layer",
        "--layers",
        metavar="NAME...",
        help="Only these: layout, definition, workload, solution, trace, baseline, benchmark.",
    ),
]
Jobs = Annotated[
    Optional[int],
    option(
        "--jobs",
        "-j",
        metavar="N",
        min=1,
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

    Exits with 1 if there is an error, or a warning under --strict.
    Notes, which sound datasets may have, do not count.
    """
    set_up_logging(log_level, default="ERROR")  # an unfinished line is a finding, not a log line
    roots = dataset_roots([*([dataset] if dataset else []), *(local or [])], hub)
    from flashinfer_bench.validate import validate_dataset

    reports = [validate_dataset(root, layers or None, jobs=jobs) for root in roots]
    shown = [report.errors if errors_only else report.findings for report in reports]
    if as_json:
        documents = [
            {
                "root": report.root,
                "layers": report.layers,
                "counts": report.counts,
                "errors": len(report.errors),
                "warnings": len(report.warnings),
                "notes": len(report.notes),
                "findings": findings,
            }
            for report, findings in zip(reports, shown, strict=True)
        ]
        emit_document(datasets=documents)
    else:
        for report, findings in zip(reports, shown, strict=True):
            _print(report, findings, f"{report.root}/" if len(reports) > 1 else "")
    bad = any(report.errors or (strict and report.warnings) for report in reports)
    raise typer.Exit(ExitCode.FINDINGS if bad else ExitCode.OK)


def _print(report: ValidationReport, findings: Sequence[Finding], folder: str) -> None:
    rows = [
        (
            *(one.severity.value, one.check, f"{folder}{one.where}"),
            f"{one.message} ({one.hint})" if one.hint else one.message,
        )
        for one in findings
    ]
    if rows:
        table(f"Findings in {report.root}", ("severity", "check", "place", "message"), rows)
    seen = ", ".join(f"{count:,} {noun}" for noun, count in report.counts.items())
    told = f"{len(report.errors)} errors, {len(report.warnings)} warnings"
    told += f", {len(report.notes)} notes" if report.notes else ""
    talk(f"{report.root}: {told} in {seen}")
