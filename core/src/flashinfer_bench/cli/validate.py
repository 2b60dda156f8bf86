"""``fib validate``: check a dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from flashinfer_bench.cli.datasets import dataset_roots, require_writable, show_findings
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import AsJson, GreedyCommand, Hub, Local, LogLevel, option
from flashinfer_bench.cli.output import emit_json, set_up_logging, talk, to_plain
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

OUTPUTS = ("stdout", "json", "html")

Checks = Annotated[
    Optional[list[str]],
    option(
        *("--checks", "--layer", "--layers"),
        metavar="NAME...",
        help="Only these: layout, definition, workload, solution, trace, baseline, benchmark.",
    ),
]
Outputs = Annotated[
    Optional[list[str]],
    option(
        "--outputs",
        metavar="FORMAT...",
        help=f"Where findings go: {', '.join(OUTPUTS)}. Default: stdout.",
    ),
]
OutputFolder = Annotated[
    Optional[Path],
    option(
        "--output-folder",
        metavar="DIR",
        help="Folder of validation.json and validation.html. Default: DATASET/reports.",
    ),
]
Jobs = Annotated[
    Optional[int],
    option(
        "--jobs",
        "-j",
        metavar="N",
        min=1,
        help="Number of processes. Default: one per core for large datasets, else 1.",
    ),
]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("validate", cls=GreedyCommand)
def validate(
    local: Local = None,
    hub: Hub = None,
    checks: Checks = None,
    outputs: Outputs = None,
    output_folder: OutputFolder = None,
    jobs: Jobs = None,
    strict: Annotated[bool, typer.Option("--strict", help="Count warnings as errors.")] = False,
    errors_only: Annotated[
        bool, typer.Option("--errors-only", help="Hide warnings and notes.")
    ] = False,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Check that a dataset is valid, without changing it, running anything, or needing a GPU.

    Exits with 1 if there is an error, or a warning under --strict. Notes do not count.
    """
    set_up_logging(log_level, default="ERROR")  # unfinished lines are findings, not log lines
    wanted = _separated(outputs) or ["stdout"]
    for name in wanted:
        if name not in OUTPUTS:
            raise typer.BadParameter(f"unknown output {name!r}; allowed: {', '.join(OUTPUTS)}")
    to_files = {"json", "html"}.intersection(wanted)
    if output_folder and not to_files:
        raise typer.BadParameter("--output-folder is for --outputs json and html; add one of them")
    if to_files and hub and not (output_folder or local):
        raise ConfigError(
            "--hub names a dataset in a shared cache, where reports cannot be saved",
            hint="name a folder for them with --output-folder",
        )
    roots = dataset_roots(local, hub)
    folder = output_folder or roots[0] / "reports"
    if to_files:
        require_writable(folder, "name another one with --output-folder")
    from flashinfer_bench.data.storage import replace_file
    from flashinfer_bench.plugins import default_catalog
    from flashinfer_bench.validate import validate_dataset

    draw = default_catalog().find("command", "validate-render").load() if "html" in wanted else None
    reports = [validate_dataset(root, _separated(checks) or None, jobs=jobs) for root in roots]
    documents = [
        {
            "root": report.root,
            "layers": report.layers,
            "counts": report.counts,
            "errors": len(report.errors),
            "warnings": len(report.warnings),
            "notes": len(report.notes),
            "findings": report.errors if errors_only else report.findings,
        }
        for report in reports
    ]
    document = {"schema_version": 1, "datasets": documents}
    if as_json:
        emit_json(document)
    else:
        show_findings(documents, listed="stdout" in wanted)
    if "json" in wanted:
        path = folder / "validation.json"
        replace_file(path, json.dumps(to_plain(document), indent=2).encode())
        talk(f"report written to {path}")
    if draw is not None:
        draw(documents, folder / "validation.html")
    bad = any(report.errors or (strict and report.warnings) for report in reports)
    raise typer.Exit(ExitCode.FINDINGS if bad else ExitCode.OK)


def _separated(values: Optional[Sequence[str]]) -> list[str]:
    return [name.strip() for value in values or () for name in value.split(",")]
