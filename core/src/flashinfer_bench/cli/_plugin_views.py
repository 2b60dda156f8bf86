"""Plugins and records as rows, JSON values and text."""

from __future__ import annotations

import dataclasses
import platform
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench import env
from flashinfer_bench._version import __version__
from flashinfer_bench.plugins import PLUGIN_API

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from flashinfer_bench.plugins import Catalog, PluginStatus, Registered
    from flashinfer_bench.plugins.checkup import Checkup

COLUMNS = ("name", "kind", "provided_by", "state", "detail")
"""What the table of ``fib plugins list`` shows of each row."""

_TOLD_OF = ("flashinfer-bench", "pluggy", "typer", "torch", "triton", "flashinfer-python")


def record_rows(catalog: Catalog, kind: Optional[str]) -> list[dict[str, Any]]:
    """Return one row per record, refused ones included, in the order of selection."""
    catalog.check_all(catalog.entries(kind))
    rows = [record_row(entry) for entry in catalog.entries(kind)]
    for conflict in catalog.conflicts:
        if kind in (None, conflict.kind):
            rows += [record_row(claim, conflict.sentence()) for claim in conflict.claims]
    return rows


def record_row(entry: Registered[Any], refused: str = "") -> dict[str, Any]:
    """Return one record as JSON values; `refused` says why it is in no selection."""
    answer = None if refused else entry.availability()
    state = "broken" if answer is None else "ok" if answer else "unavailable"
    reason = refused if answer is None else answer.reason
    remedy = "" if answer is None else answer.remedy
    told = f"{reason} ({remedy})" if reason and remedy else reason
    return {
        "kind": entry.spec.kind,
        **dataclasses.asdict(entry.spec),
        "plugin": entry.plugin,
        "distribution": entry.distribution,
        "version": entry.version,
        "provided_by": entry.origin,
        "state": state,
        "reason": reason,
        "remedy": remedy,
        "detail": entry.spec.summary if state == "ok" else told,
    }


def absent_rows(plugins: Iterable[PluginStatus]) -> list[dict[str, Any]]:
    """Return one row for each plugin that is missing, wholly or in part, from the records."""
    return [
        {
            "name": status.name,
            "kind": "plugin",
            "provided_by": status.origin,
            "state": status.state,
            "detail": status.reason,
        }
        for status in plugins
        if status.state in ("broken", "blocked")
    ]


def plugin_row(status: PluginStatus) -> dict[str, Any]:
    """Return one plugin as JSON values."""
    row = dataclasses.asdict(status)
    row["records"] = [{"kind": kind, "name": name} for kind, name in status.records]
    row["load_ms"] = round(status.load_ms, 3)
    return row


def plugin_details(catalog: Catalog, status: PluginStatus) -> dict[str, Any]:
    """Return one plugin as JSON values, with its records in full."""
    records = [record_row(entry) for entry in catalog.from_plugin(status)]
    return {**plugin_row(status), "records": records}


def checkup_row(checkup: Checkup) -> dict[str, Any]:
    """Return the result of a closer look as JSON values."""
    return {
        **plugin_row(checkup.status),
        "problems": [dataclasses.asdict(problem) for problem in checkup.problems],
        "notes": list(checkup.notes),
    }


def environment() -> dict[str, Any]:
    """Return the versions and settings that decide what plugins can do here."""
    return {
        "flashinfer_bench": __version__,
        "plugin_api": ".".join(map(str, PLUGIN_API)),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "distributions": {name: version for name in _TOLD_OF if (version := _version_of(name))},
        "variables": env.set_variables(),
    }


def _version_of(distribution: str) -> Optional[str]:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def details_text(details: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of ``fib plugins show`` for one plugin."""
    yield _heading(details)
    for record in details["records"]:
        told = "" if record["state"] == "ok" else f": {record['detail']}"
        yield f"  {record['kind']} {record['name']} - {record['state']}{told}"
        for field in dict.fromkeys((*_FIRST, *record)):
            value = record.get(field)
            # Neither what is empty nor what is off; a priority of 0 is told.
            if field not in _SAID and value is not False and value not in (None, "", ()):
                yield f"    {field:<12}{_listed(value)}"


_FIRST = (
    "summary",
    "handles",
    "devices",
    "compiles",
    "op_types",
    "definitions",
    "dtypes",
    "targets",
)
_SAID = frozenset(("kind", "name", "plugin", "distribution", "version", "provided_by")) | {
    *("state", "reason", "remedy", "detail")
}


def report_text(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of ``fib plugins doctor``."""
    around = report["environment"]
    yield f"flashinfer-bench-core {around['flashinfer_bench']}, plugin API {around['plugin_api']}"
    yield f"Python {around['python']} on {around['platform']}"
    yield ", ".join(f"{name} {version}" for name, version in around["distributions"].items())
    yield from (f"{name}={value}" for name, value in around["variables"].items())
    for name in report["unknown_in_disable_plugins"]:
        yield f"FIB_DISABLE_PLUGINS names {name!r}, and there is no such plugin"
    for plugin in report["plugins"]:
        yield ""
        yield from _plugin_text(plugin)


def _plugin_text(plugin: Mapping[str, Any]) -> Iterator[str]:
    # The reasons of a broken plugin follow one by one, each with its traceback.
    yield _heading(plugin, reason=plugin["state"] != "broken")
    for problem in plugin["problems"]:
        yield f"  problem: {problem['message']}"
        yield from (f"    {line}" for line in problem["traceback"].splitlines())
    yield from (f"  note: {note}" for note in plugin["notes"])
    if plugin["state"] != "blocked":
        names = [f"{each['kind']} {each['name']}" for each in plugin["records"]]
        yield f"  registers {', '.join(names) or 'nothing'} (loaded in {plugin['load_ms']:.1f} ms)"


def _heading(plugin: Mapping[str, Any], *, reason: bool = True) -> str:
    origin = f"{plugin['distribution']} {plugin['version']}".strip()
    where = f"{plugin['target']} of {origin}" if origin else plugin["target"]
    told = f": {plugin['reason']}" if reason and plugin["reason"] else ""
    return f"{plugin['name']} ({where}) - {plugin['state']}{told}"


def _listed(value: Any) -> str:
    if value is True:
        return "yes"
    if isinstance(value, (tuple, list)):
        return ", ".join(map(_pair, value))
    return str(value)


def _pair(item: Any) -> str:
    if isinstance(item, (tuple, list)):
        language, binding = item
        return f"{language} (binding: {binding})" if binding else str(language)
    return str(item)
