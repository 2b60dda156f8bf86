"""``fib plugins``: which plugins there are, what they provide, what is wrong, and new ones."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from flashinfer_bench.cli import _plugin_views as views
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.output import emit, emit_json, printable, table
from flashinfer_bench.cli.plugin_new import new_plugin
from flashinfer_bench.errors import SelectionError
from flashinfer_bench.plugins import KINDS, Settings, default_catalog, discover
from flashinfer_bench.plugins.checkup import check_up, idle_names
from flashinfer_bench.plugins.settings import canonical

if TYPE_CHECKING:
    from flashinfer_bench.plugins import Catalog, PluginStatus

SCHEMA_VERSION = 1

app = typer.Typer(
    name="plugins",
    help="List, show and diagnose plugins, and start new ones.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


def _known_kind(value: Optional[str]) -> Optional[str]:
    kind = value.strip().lower().replace("-", "_") if value is not None else None
    if kind is not None and kind not in KINDS:
        raise typer.BadParameter(f"{value!r} is no kind of record; there are: {', '.join(KINDS)}")
    return kind


def _complete_kind(incomplete: str) -> list[str]:
    return [kind for kind in KINDS if kind.startswith(incomplete)]


AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]
Kind = Annotated[
    Optional[str],
    typer.Option(
        callback=_known_kind,
        autocompletion=_complete_kind,
        metavar="KIND",
        help=f"Only records of this kind: {', '.join(KINDS)}.",
    ),
]


@app.command("list")
def list_plugins(kind: Kind = None, as_json: AsJson = False) -> None:
    """List what is registered and whether it can be used here, and the plugins that failed."""
    # What a plugin or a probe prints is talk, and must not end up in the data.
    with redirect_stdout(sys.stderr):
        catalog = default_catalog()
        plugins = catalog.survey()
    records = views.record_rows(catalog, kind)
    if as_json:
        emit_json(
            {
                "schema_version": SCHEMA_VERSION,
                "records": records,
                "plugins": [views.plugin_row(status) for status in plugins],
            }
        )
        return
    rows = [*records, *views.absent_rows(plugins)]
    table("Plugins", views.COLUMNS, [[row[column] for column in views.COLUMNS] for row in rows])


@app.command("show")
def show_plugin(
    name: Annotated[str, typer.Argument(help="A plugin, a distribution, or a record.")],
    as_json: AsJson = False,
) -> None:
    """Show a plugin and its records in full."""
    catalog, _ = _tolerant()
    with redirect_stdout(sys.stderr):
        chosen = catalog.survey(_named(catalog, name))
    shown = [views.plugin_details(catalog, status) for status in chosen]
    if as_json:
        emit_json({"schema_version": SCHEMA_VERSION, "plugins": shown})
        return
    for details in shown:
        for line in views.details_text(details):
            emit(printable(line))


@app.command("doctor")
def diagnose(
    name: Annotated[
        Optional[str], typer.Argument(help="A plugin, a distribution, or a record; default: all.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Load plugins and their code, and say what is wrong. Exits with 1 if anything is."""
    catalog, settings = _tolerant()
    with redirect_stdout(sys.stderr):
        chosen = catalog.survey(None if name is None else _named(catalog, name))
        checkups = [check_up(catalog, status) for status in chosen]
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "environment": views.environment(),
        "unknown_in_disable_plugins": idle_names(settings, catalog.plugins),
        "plugins": [views.checkup_row(checkup) for checkup in checkups],
    }
    if as_json:
        emit_json(report)
    else:
        for line in views.report_text(report):
            emit(printable(line))
    if any(checkup.problems for checkup in checkups):
        raise typer.Exit(ExitCode.FINDINGS)


app.command("new")(new_plugin)


def _tolerant() -> tuple[Catalog, Settings]:
    """Discover without strictness: to look at what is broken, it must be set aside, not raised."""
    settings = replace(Settings.from_env(), strict=False)
    with redirect_stdout(sys.stderr):
        return discover(settings), settings


def _named(catalog: Catalog, name: str) -> tuple[PluginStatus, ...]:
    """Return the plugins that are called `name`, or have a record or distribution called so."""
    wanted = canonical(name.strip())
    names = {id(status): set(_names_of(catalog, status)) for status in catalog.plugins}
    chosen = tuple(
        status
        for status in catalog.plugins
        if wanted in {canonical(each) for each in names[id(status)]}
    )
    if chosen:
        return chosen
    known = sorted(set().union(*names.values()))
    near = get_close_matches(name, known, n=3)
    advice = f"Did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise SelectionError(
        f"There is no plugin, distribution or record {name!r}. {advice}".rstrip(),
        hint="run `fib plugins list` to see what is installed",
        unknown=(name,),
    )


def _names_of(catalog: Catalog, status: PluginStatus) -> list[str]:
    records = [name for _, name in status.records]
    refused = [
        claim.name
        for conflict in catalog.conflicts
        for claim in conflict.claims
        if (claim.plugin, claim.distribution) == (status.name, status.distribution)
    ]
    return [part for part in (status.name, status.distribution, *records, *refused) if part]
