"""``fib adapters``: which functions of libraries are routed through apply and tracing."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Annotated

import typer

from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import AsJson, command_group
from flashinfer_bench.cli.output import Column, emit_document, table, talk
from flashinfer_bench.plugins import Settings, discover
from flashinfer_bench.routing.installation import WRONG, Selection, survey

COLUMNS = (
    Column("target", "path"),
    Column("adapter", "adapter"),
    Column("state", "state"),
    Column("version", "version"),
    Column("definitions", lambda found: " ".join(found.definitions)),
    Column("reason", "reason"),
)

app = command_group(
    "adapters", "Show which functions of libraries can be routed through apply and tracing."
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
    as_json: AsJson = False,
) -> None:
    """List the targets of all adapters: the state of each, and why it would not be patched."""
    selection = Selection.from_env()
    # What a plugin or a library prints is talk, and must not end up in the data.
    with redirect_stdout(sys.stderr):
        catalog = discover(replace(Settings.from_env(), strict=False))
        found = survey(catalog, selection, check=check)
    idle = selection.idle([entry.name for entry in catalog.adapters])
    if as_json:
        emit_document(
            checked=check, unknown_in_adapters=idle, targets=[each.as_dict() for each in found]
        )
    else:
        for word in idle:
            talk(f"FIB_ADAPTERS names {word!r}, and there is no such adapter")
        table("Adapters", COLUMNS, found)
    if check and any(each.state in WRONG for each in found):
        raise typer.Exit(ExitCode.FINDINGS)
