"""``fib adapters``: list the library functions that are routed through apply and tracing."""

from __future__ import annotations

import fnmatch
import importlib
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from flashinfer_bench import env
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import AsJson, command_group
from flashinfer_bench.cli.output import Column, emit_document, table, talk
from flashinfer_bench.plugins import Settings, discover
from flashinfer_bench.routing import patch_manager
from flashinfer_bench.routing.installation import WRONG, Chosen
from flashinfer_bench.routing.patch_manager import NotPatchedError, PatchStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashinfer_bench.plugins import Catalog

COLUMNS = (
    Column("target", "path"),
    Column("adapter", "adapter"),
    Column("state", "state"),
    Column("version", "version"),
    Column("definitions", lambda found: " ".join(found.definitions)),
    Column("reason", "reason"),
)
_LATER = "patched on import, while a definition that it routes is applied or traced"

app = command_group(
    "adapters", "Show which library functions can be routed through apply and tracing."
)


@app.callback()
def adapters() -> None:
    """Show which library functions can be routed through apply and tracing."""


@app.command("list")
def list_adapters(
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Import the libraries, patch every target and restore it. "
            "Exits with 1 if one fails or has an unsupported version.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the targets of all adapters: the state of each, and why one would not be patched."""
    # Output printed by plugins or libraries must not end up in the data on stdout.
    with redirect_stdout(sys.stderr):
        catalog = discover(replace(Settings.from_env(), strict=False))
        found = survey(catalog, check=check)
    known = [entry.name for entry in catalog.adapters]
    words = sorted(env.adapters(), key=lambda word: word.startswith("-"))  # adapters to use first
    patterns = [word.removeprefix("-").strip() for word in words]
    idle = [each for each in patterns if not fnmatch.filter(known, each)]
    if as_json:
        emit_document(
            checked=check, unknown_in_adapters=idle, targets=[each.as_dict() for each in found]
        )
    else:
        for word in idle:
            talk(f"FIB_ADAPTERS names {word!r}, but there is no such adapter")
        table("Adapters", COLUMNS, found)
    if check and any(each.state in WRONG for each in found):
        raise typer.Exit(ExitCode.FINDINGS)


def survey(catalog: Catalog, *, check: bool = False) -> list[PatchStatus]:
    """Return the status of each target of each adapter.

    Parameters
    ----------
    catalog : Catalog
        The plugins.
    check : bool
        Whether to import the libraries, patch every target, and restore it. Otherwise no library is
        imported, and installed libraries are assumed to work.

    Returns
    -------
    list of PatchStatus
        In the order of selection. Rejected adapters, whose name is registered twice, come last.
    """
    found: list[PatchStatus] = []
    manager = patch_manager.PatchManager()
    try:
        for chosen in map(Chosen, catalog.adapters):
            try:
                chosen.require_used()
                for library in chosen.libraries:
                    _require(library, import_it=check)
                orders = chosen.orders(late=check)
            except NotPatchedError as error:
                found += chosen.statuses(error.state, error.reason)
                continue
            if check:
                found += manager.patch_all(orders)
            else:
                statuses = [order.status("waiting", _LATER) for order in orders]
                known = {each.path for each in statuses}
                late = (e for e in chosen.statuses("waiting", _LATER) if e.path not in known)
                found += [*statuses, *late]
    finally:
        manager.unpatch_all()
    for conflict in catalog.conflicts:
        for claim in conflict.claims if conflict.kind == "adapter" else ():
            found += Chosen(claim).statuses("failed", conflict.sentence())
    return [_dated(each) for each in found]


def _require(library: str, *, import_it: bool) -> None:
    """Raise if a library is not available."""
    found, reason = None, f"{library} is not installed"
    look_up: Callable[[str], object] = importlib.import_module if import_it else find_spec
    try:
        found = look_up(library)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a library may raise anything
        if not (isinstance(error, ModuleNotFoundError) and error.name == library):
            reason = f"{library} cannot be imported: {patch_manager.told(error)}"
    if found is None:
        raise NotPatchedError("missing", reason)


def _dated(status: PatchStatus) -> PatchStatus:
    """Return a status with the version of the imported or installed library."""
    found = status.version or patch_manager.version_of(status.path)
    return replace(status, version=found or _installed_version(status.path.partition(".")[0]))


@lru_cache(maxsize=64)
def _installed_version(library: str) -> str:
    for name in packages_distributions().get(library, [library]):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""
