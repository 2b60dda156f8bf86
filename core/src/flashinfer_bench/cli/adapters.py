"""``fib adapters``: which functions of libraries are routed through apply and tracing."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.output import emit_json, table, talk
from flashinfer_bench.integration.chosen import Selection
from flashinfer_bench.integration.survey import survey
from flashinfer_bench.plugins import Settings, discover

if TYPE_CHECKING:
    from flashinfer_bench.integration.survey import Surveyed

SCHEMA_VERSION = 1

COLUMNS = ("target", "adapter", "state", "version", "definitions", "reason")

_WRONG = ("failed", "mismatch")

app = typer.Typer(
    name="adapters",
    help="Show which functions of libraries can be routed through apply and tracing.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def adapters() -> None:
    """Show which functions of libraries can be routed through apply and tracing."""


@app.command("list")
def list_adapters(
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Import the libraries, patch every target and restore it. "
            "Exits with 1 if one fails, or is of a version that is not supported.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """List the targets of all adapters: the state of each, and why it would not be patched."""
    selection = Selection.from_env()
    # What a plugin or a library prints is talk, and must not end up in the data.
    with redirect_stdout(sys.stderr):
        catalog = discover(replace(Settings.from_env(), strict=False))
        found = survey(catalog, selection, check=check)
    idle = selection.idle([entry.name for entry in catalog.adapters])
    if as_json:
        emit_json(
            {
                "schema_version": SCHEMA_VERSION,
                "checked": check,
                "unknown_in_adapters": idle,
                "targets": [each.as_dict() for each in found],
            }
        )
    else:
        for word in idle:
            talk(f"FIB_ADAPTERS names {word!r}, and there is no such adapter")
        table("Adapters", COLUMNS, [_row(each) for each in found])
    if check and any(each.status.state in _WRONG for each in found):
        raise typer.Exit(ExitCode.FINDINGS)


def _row(found: Surveyed) -> list[Any]:
    status = found.status
    definitions = " ".join(found.definitions)
    return [status.path, status.adapter, status.state, status.version, definitions, status.reason]
