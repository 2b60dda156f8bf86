"""``fib plugins``: list, show and diagnose plugins."""

from __future__ import annotations

import platform
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from flashinfer_bench import env
from flashinfer_bench._providers import clash
from flashinfer_bench._version import __version__
from flashinfer_bench.cli.commands import near_matches
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import AsJson, command_group
from flashinfer_bench.cli.output import emit, emit_document, printable, table, talk
from flashinfer_bench.errors import ConfigError, PluginLoadError, SelectionError
from flashinfer_bench.plugins import KINDS, PLUGIN_API, Settings, default_catalog, discover
from flashinfer_bench.plugins.records import Availability, canonical, full_traceback, one_line
from flashinfer_bench.plugins.registry import CORE_DISTRIBUTION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from flashinfer_bench.plugins import Catalog, PluginStatus, Registered

COLUMNS = ("name", "kind", "provided_by", "state", "detail")

_VERSIONS_OF = ("flashinfer-bench", "pluggy", "typer", "torch", "triton", "flashinfer-python")

app = command_group("plugins", "List, show and diagnose plugins.")


Kind = Annotated[
    Optional[str],
    typer.Option(
        callback=lambda value: None if value is None else known_kind(value),
        metavar="KIND",
        help=f"Only records of this kind: {', '.join(KINDS)}.",
    ),
]


@app.command("list")
def list_plugins(kind: Kind = None, as_json: AsJson = False) -> None:
    """List records and whether they can be used on this machine, and plugins that failed."""
    if problem := clash():
        talk(f"warning: {problem}")
    # Output of plugins and probes must not be mixed with the data on stdout.
    with redirect_stdout(sys.stderr):
        catalog = default_catalog()
        plugins = catalog.survey()
    records = record_rows(catalog, kind)
    if as_json:
        emit_document(records=records, plugins=[_plugin_row(status) for status in plugins])
        return
    absent = [
        (status.name, "plugin", status.origin, status.state, status.reason)
        for status in plugins
        if status.state in ("broken", "blocked")
    ]
    table("Plugins", COLUMNS, [*([row[name] for name in COLUMNS] for row in records), *absent])


@app.command("show")
def show_plugin(
    name: Annotated[str, typer.Argument(help="A plugin, a distribution, or a record.")],
    as_json: AsJson = False,
) -> None:
    """Show a plugin and all fields of its records."""
    catalog, _ = _tolerant()
    with redirect_stdout(sys.stderr):
        chosen = catalog.survey(_named(catalog, name))
    shown = [
        {**_plugin_row(one), "records": [record_row(each) for each in catalog.from_plugin(one)]}
        for one in chosen
    ]
    if as_json:
        emit_document(plugins=shown)
        return
    for plugin in shown:
        for line in _plugin_text(plugin):
            emit(printable(line))


@app.command("doctor")
def diagnose(
    name: Annotated[
        Optional[str], typer.Argument(help="A plugin, a distribution, or a record; default: all.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Load plugins and their code, and report problems. Exits with 1 if there are any."""
    catalog, settings = _tolerant()
    with redirect_stdout(sys.stderr):
        chosen = catalog.survey(None if name is None else _named(catalog, name))
        plugins = [check_up(catalog, status) for status in chosen]
    known = {canonical(name) for one in catalog.plugins for name in (one.name, one.distribution)}
    report: dict[str, Any] = {
        "environment": {
            "flashinfer_bench": __version__,
            "plugin_api": ".".join(map(str, PLUGIN_API)),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "distributions": dict(_versions()),
            "variables": env.set_variables(),
        },
        "unknown_in_disable_plugins": [
            name for name in settings.disabled if canonical(name) not in known
        ],
        "clash": clash(),
        "plugins": plugins,
    }
    if as_json:
        emit_document(**report)
    else:
        for line in _report_text(report):
            emit(printable(line))
    if report["clash"] or any(plugin["problems"] for plugin in plugins):
        raise typer.Exit(ExitCode.FINDINGS)


def check_up(catalog: Catalog, status: PluginStatus) -> dict[str, Any]:
    """Check the requirements of a plugin, and that the code of its records can be imported.

    This imports the code of each record that can be used here, which may take seconds and import
    torch.

    Returns
    -------
    dict
        The plugin as JSON values: ``broken`` if it has ``problems``; ``notes`` are not problems.
    """
    problems: list[dict[str, str]] = []
    notes: list[str] = []
    if status.state == "broken":
        problems.append({"message": status.reason, "traceback": status.traceback})
    if status.state != "blocked":
        unmet = _unmet_requirements(status.distribution)
        problems += [{"message": message, "traceback": ""} for message in unmet]
        if status.heavy_imports:
            names = ", ".join(status.heavy_imports)
            notes.append(f"it imports {names} at load time, which is slow: import in the factory")
        for entry in catalog.from_plugin(status):
            answer, failure = entry.availability(), entry.check and entry.check.failure
            if failure:
                message = f"provides {entry.label}, but {answer.reason}"
                problems.append({"message": message, "traceback": full_traceback(failure)})
            elif not answer:
                remedy = f" ({answer.remedy})" if answer.remedy else ""
                notes.append(f"{entry.label} cannot be used here: {answer.reason}{remedy}")
            for path in entry.spec.paths if answer else ():
                try:
                    entry.load(path)
                except PluginLoadError as error:
                    cause = error.__cause__ or error
                    message = f"provides {entry.label}, which cannot be imported: {one_line(cause)}"
                    problems.append({"message": message, "traceback": full_traceback(cause)})
    if problems:
        reason = "; ".join(problem["message"] for problem in problems)
        status = replace(status, state="broken", reason=reason)
    return {**_plugin_row(status), "problems": problems, "notes": notes}


def _unmet_requirements(distribution: str) -> Iterator[str]:
    """Yield the requirements of a distribution that the installed core does not meet."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        texts = (requires(distribution) or []) if distribution else []
    except PackageNotFoundError:
        return
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            yield f"has an invalid requirement: {text!r} ({error})".replace("\n", " ")
            continue
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ours = applies and canonical(requirement.name) == CORE_DISTRIBUTION
        if ours and not requirement.specifier.contains(__version__, prereleases=True):
            yield f"requires {requirement}, but {CORE_DISTRIBUTION} {__version__} is installed"


def known_kind(value: str) -> str:
    """Return a kind of records as spelt in `KINDS`, or raise `ConfigError`."""
    kind = value.strip().lower().replace("-", "_")
    if kind not in KINDS:
        raise ConfigError(f"unknown kind {value!r}", hint=f"available kinds: {', '.join(KINDS)}")
    return kind


def record_rows(catalog: Catalog, kind: Optional[str]) -> list[dict[str, Any]]:
    """Return one row per record, including refused ones, in the order of selection."""
    entries = catalog.records if kind is None else catalog.entries(kind)
    catalog.check_all(entries)
    rows = [record_row(entry) for entry in entries]
    for conflict in catalog.conflicts:
        if kind in (None, conflict.kind):
            rows += [record_row(claim, conflict.sentence()) for claim in conflict.claims]
    return rows


def record_row(entry: Registered[Any], refused: str = "") -> dict[str, Any]:
    """Return one record as JSON values; `refused` is why it is never selected."""
    answer = Availability(False, refused) if refused else entry.availability()
    state = "broken" if refused else "ok" if answer else "unavailable"
    reason, remedy = answer.reason, answer.remedy
    told = f"{reason} ({remedy})" if reason and remedy else reason
    return {
        "kind": entry.spec.kind,
        **asdict(entry.spec),
        "plugin": entry.plugin,
        "distribution": entry.distribution,
        "version": entry.version,
        "provided_by": entry.origin,
        "state": state,
        "reason": reason,
        "remedy": remedy,
        "detail": entry.spec.summary if state == "ok" else told,
    }


def _plugin_row(status: PluginStatus) -> dict[str, Any]:
    """Return one plugin as JSON values."""
    row = asdict(status)
    row["records"] = [{"kind": kind, "name": name} for kind, name in status.records]
    row["load_ms"] = round(status.load_ms, 3)
    return row


def _versions() -> Iterator[tuple[str, str]]:
    for name in _VERSIONS_OF:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


# Fields that are shown last, and those that are in the heading or not shown.
_LAST = ("factory", "probe", "priority")
_ELSEWHERE = (
    *("kind", "name", "plugin", "distribution", "version", "provided_by"),
    *("state", "reason", "remedy", "detail"),
)


def _plugin_text(plugin: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of ``fib plugins show`` for one plugin."""
    yield _heading(plugin)
    for record in plugin["records"]:
        told = "" if record["state"] == "ok" else f": {record['detail']}"
        yield f"  {record['kind']} {record['name']} - {record['state']}{told}"
        for field in sorted(record, key=_LAST.__contains__):
            value = record[field]
            # Empty fields and False are left out; a priority of 0 is shown.
            if field not in _ELSEWHERE and value is not False and value not in (None, "", ()):
                yield f"    {field:<12}{_listed(value)}"


def _report_text(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of ``fib plugins doctor``."""
    around = report["environment"]
    yield f"flashinfer-bench-core {around['flashinfer_bench']}, plugin API {around['plugin_api']}"
    yield f"Python {around['python']} on {around['platform']}"
    yield ", ".join(f"{name} {version}" for name, version in around["distributions"].items())
    yield from (f"{name}={value}" for name, value in around["variables"].items())
    for name in report["unknown_in_disable_plugins"]:
        yield f"FIB_DISABLE_PLUGINS names {name!r}, which is not an installed plugin"
    if report["clash"]:
        yield f"problem: {report['clash']}"
    for plugin in report["plugins"]:
        yield ""
        # The problems of a broken plugin follow, each with its traceback.
        yield _heading(plugin, reason=plugin["state"] != "broken")
        for problem in plugin["problems"]:
            yield f"  problem: {problem['message']}"
            yield from (f"    {line}" for line in problem["traceback"].splitlines())
        yield from (f"  note: {note}" for note in plugin["notes"])
        if plugin["state"] != "blocked":
            names = ", ".join(f"{each['kind']} {each['name']}" for each in plugin["records"])
            yield f"  registers {names or 'nothing'} (loaded in {plugin['load_ms']:.1f} ms)"


def _heading(plugin: Mapping[str, Any], *, reason: bool = True) -> str:
    origin = f"{plugin['distribution']} {plugin['version']}".strip()
    where = f"{plugin['target']} of {origin}" if origin else plugin["target"]
    told = f": {plugin['reason']}" if reason and plugin["reason"] else ""
    return f"{plugin['name']} ({where}) - {plugin['state']}{told}"


def _listed(value: Any) -> str:
    if value is True:
        return "yes"
    if not isinstance(value, (tuple, list)):
        return str(value)
    pairs = [item if isinstance(item, (tuple, list)) else (item, None) for item in value]
    return ", ".join(f"{one} (binding: {two})" if two else str(one) for one, two in pairs)


def _tolerant() -> tuple[Catalog, Settings]:
    """Discover plugins without strict mode, so that broken ones can be reported."""
    settings = replace(Settings.from_env(), strict=False)
    with redirect_stdout(sys.stderr):
        return discover(settings), settings


def _named(catalog: Catalog, name: str) -> tuple[PluginStatus, ...]:
    """Return the plugins with this name, or with a record or distribution of this name."""
    refused = [claim for conflict in catalog.conflicts for claim in conflict.claims]
    names: dict[PluginStatus, set[str]] = {}
    for status in catalog.plugins:
        key = (status.name, status.distribution)
        own = [one.name for one in (*catalog, *refused) if (one.plugin, one.distribution) == key]
        names[status] = {*key, *own} - {""}
    wanted = canonical(name.strip())
    chosen = tuple(status for status in names if wanted in map(canonical, names[status]))
    if chosen:
        return chosen
    raise SelectionError(
        f"no plugin, distribution or record {name!r}."
        + near_matches(name, sorted(set().union(*names.values()))),
        hint="run `fib plugins list` to see what is installed",
        unknown=(name,),
    )
