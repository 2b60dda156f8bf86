"""``fib timers``: list timers, and check what they can do on this machine."""

from __future__ import annotations

import dataclasses
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from flashinfer_bench.cli import plugins as views
from flashinfer_bench.cli import run_options
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import AsJson, LogLevel, command_group
from flashinfer_bench.cli.output import emit_document, set_up_logging, table, talk
from flashinfer_bench.errors import UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fib_timing_cuda.check import CheckReport
    from flashinfer_bench.plugins import Catalog, Registered, TimerSpec

LISTED = ("name", "devices", "priority", "state", "resolution_us", "trust", "caches", "detail")
CHECKED = ("device", "timer", "version", "resolution_us", "overhead_us")

app = command_group(
    "timers", "List timers, and check their resolution, overhead and agreement on this machine."
)


@app.command("list")
def list_timers(as_json: AsJson = False) -> None:
    """List timers in the order of selection, and whether they can be used here."""
    from flashinfer_bench.plugins import default_catalog

    # Output printed by plugins or probes must not end up in the data on stdout.
    with redirect_stdout(sys.stderr):
        catalog = default_catalog()
        rows = views.record_rows(catalog, "timer")
    for row in rows:
        row["trust"] = "off only" if row["repeats"] or row["trusting"] else "any"
    if as_json:
        emit_document(timers=rows)
        return
    for row in rows:
        resolution = row["resolution_ms"]
        row["resolution_us"] = None if resolution is None else resolution * 1e3
        row.update(devices=" ".join(row["devices"]), caches=" ".join(row["caches"]))
    table("Timers", LISTED, [[row[column] for column in LISTED] for row in rows])


@app.command("check")
def check(
    device: run_options.Device = None,
    timer: Annotated[
        Optional[list[str]],
        typer.Option("--timer", metavar="NAME", help="Check only this timer; can be repeated."),
    ] = None,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Measure resolution, overhead, agreement and noise of the timers for a device.

    Work of 10, 100 and 1000 microseconds, by the device's own clock, is measured with each timer.
    Lengths with a timer overhead of more than 5 %, or not known to within 5 %, are shown but not
    judged. Noise is from A/A tests: by how much two medians over the same work differ. The
    machine should be idle.

    Exits with 1 if timers differ by more than 5 % from a known length or from one another, or if
    one fails.
    """
    set_up_logging(log_level, default="WARNING")
    from flashinfer_bench.bench.backends import choose_devices
    from flashinfer_bench.plugins import default_catalog

    with redirect_stdout(sys.stderr):
        catalog = default_catalog()
        for name in set(timer or ()).difference(known := catalog.timers.names):
            told = f"No timer {name!r}. Available timers: {', '.join(known)}."
            hint = "Run `fib plugins list --kind timer` to see what is installed."
            raise UnknownNameError(told, hint=hint, unknown=(name,))
        reports = [_check(catalog, name, timer or []) for name in choose_devices(device)]
    unusable = [
        {"device": one.device, "name": entry.name, "reason": no.reason, "remedy": no.remedy}
        for one in reports
        for entry in _for_device(catalog, one.device)
        if not (no := entry.availability())
    ]
    passed = all(report.passed for report in reports)
    if as_json:
        devices = [_document(report) for report in reports]
        emit_document(passed=passed, devices=devices, unusable=unusable)
    else:
        _print(reports)
    _tell(reports, [] if timer else unusable)
    if not passed:
        raise typer.Exit(ExitCode.FINDINGS)


def _check(catalog: Catalog, device: str, names: Sequence[str]) -> CheckReport:
    from fib_timing_cuda.check import check_timers
    from fib_timing_cuda.known_work import work_for
    from flashinfer_bench.bench.locks import device_lock
    from flashinfer_bench.bench.timing import Timer

    usable = [entry for entry in _for_device(catalog, device) if entry.availability()]
    chosen = [catalog.timers.for_device(device, name) for name in names] or usable
    if not chosen:
        catalog.timers.for_device(device)  # raises with the reason
    timers = [entry.load_subclass(Timer)() for entry in chosen]  # type: ignore[type-abstract]
    with device_lock(device):
        return check_timers(
            timers,
            device,
            work_for(device),
            on_progress=lambda name: talk(f"checking {name} on {device}"),
        )


def _for_device(catalog: Catalog, device: str) -> list[Registered[TimerSpec]]:
    return [entry for entry in catalog.timers if entry.spec.serves(device)]


def _print(reports: Sequence[CheckReport]) -> None:
    from fib_timing_cuda.check import LENGTHS_US

    lengths = [f"{length:g}_us" for length in LENGTHS_US]
    columns = (*CHECKED, *lengths, "spread_%", "a_a_typical_%", "a_a_worst_%")
    rows: list[list[Any]] = []
    for report in reports:
        for one in report.timers:
            row: list[Any] = [report.device, one.name, one.version]
            if one.noise is not None:
                shares = (one.noise.spread, one.noise.typical, one.noise.worst)
                row += [one.resolution_us, one.overhead_us]
                row += [known.found_us for known in one.lengths]
                row += [100 * share for share in shares]
            rows.append(row + [None] * (len(columns) - len(row)))
    table("Timers", columns, rows)


def _document(report: CheckReport) -> dict[str, Any]:
    document = dataclasses.asdict(report)
    for timer in document["timers"]:
        for length in timer["lengths"]:
            length["deviation"] = length["found_us"] / length["length_us"] - 1.0
    return {**document, "passed": report.passed}


def _tell(reports: Sequence[CheckReport], unusable: Sequence[dict[str, str]]) -> None:
    for one in unusable:
        remedy = f" ({one['remedy']})" if one["remedy"] else ""
        talk(f"{one['device']}: {one['name']} cannot be used: {one['reason']}{remedy}")
    for report in reports:
        for timer in report.timers:
            for note in timer.notes:
                talk(f"{report.device}: {timer.name} notes: {note}")
            if timer.error is not None:
                talk(f"{report.device}: {timer.name} failed: {timer.error}")
        for found in report.disagreements:
            talk(
                f"{report.device}: {found.first} and {found.second} differ by "
                f"{100 * found.share:.3g} % on work of {found.length_us:g} us"
            )
        if report.passed:
            talk(f"{report.device}: the timers agree")
