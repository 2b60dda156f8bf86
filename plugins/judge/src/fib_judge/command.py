"""``fib calibrate``: what a device can do at most, measured once for the runs that come."""

# ruff: noqa: TC001 - typer reads the annotations at run time

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashinfer_bench.cli import run_options
from flashinfer_bench.cli.options import AsJson, LogLevel
from flashinfer_bench.cli.output import console, emit_json, printable, set_up_logging, table, talk
from flashinfer_bench.errors import SelectionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from fib_judge.calibration import Ceilings

SCHEMA_VERSION = 1
COLUMNS = ("device", "ceiling", "of", "value", "unit")

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("calibrate")
def calibrate(
    device: run_options.Device = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print the stored figures; measure nothing.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Discard better figures from earlier calibrations.")
    ] = False,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Measure the peak performance of a device: bandwidth, matrix products, shortest call.

    A latency that would need more than that is rejected. Takes 10 to 30 seconds for each device,
    which should be idle. Figures only ever improve: a higher one from an earlier calibration of
    the same machine is kept. With --show, exits with 5 if nothing is stored.
    """
    set_up_logging(log_level, default="WARNING")
    found = _stored(device) if show else [_measure(name, fresh) for name in _devices(device)]
    if as_json:
        emit_json(
            {
                "schema_version": SCHEMA_VERSION,
                "ceilings": [{**each.to_json(), "path": path} for path, each in found],
            }
        )
    else:
        table("Ceilings", COLUMNS, [row for _, ceilings in found for row in _rows(ceilings)])
    for path, ceilings in found:
        _tell(path, ceilings)


def _devices(device: str | None) -> list[str]:
    from flashinfer_bench.bench.backends import choose_devices

    return choose_devices(device)


def _stored(device: str | None) -> list[tuple[Path, Ceilings]]:
    """Return what is stored for one device or, if none is named, for all of this machine."""
    from fib_judge.calibration import ceilings_path, list_ceilings, load_ceilings

    found: list[tuple[Path, Ceilings]]
    if device is None:
        found = list_ceilings()
    else:
        from flashinfer_bench.tensors import hardware_from_device

        (name,) = _devices(device)
        hardware = hardware_from_device(name)
        ceilings = load_ceilings(name, hardware)
        found = [] if ceilings is None else [(ceilings_path(name, hardware), ceilings)]
    if not found:
        raise SelectionError(
            f"nothing is stored for {device or 'any device of this machine'} "
            "with the installed torch",
            hint=f"run 'fib calibrate{f' --device {device}' if device else ''}'",
        )
    return found


def _measure(device: str, fresh: bool) -> tuple[Path, Ceilings]:
    from fib_judge.calibration import calibrate, load_ceilings, store_ceilings
    from fib_judge.watch import restore_clocks

    restore_clocks(device)
    with _progress(device) as on_progress:
        ceilings = calibrate(device, on_progress=on_progress)
    earlier = None if fresh else load_ceilings(device, ceilings.hardware)
    if earlier is not None:
        ceilings = ceilings.merged(earlier)
    return store_ceilings(ceilings), ceilings


@contextmanager
def _progress(device: str) -> Iterator[Callable[[float], None]]:
    """Draw a bar on a terminal; elsewhere say once what is going on."""
    screen = console(sys.stderr)
    if not screen.is_terminal or screen.is_dumb_terminal:
        talk(f"measuring {device}")
        yield lambda share: None
        return
    from rich import progress

    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=None),
        progress.TaskProgressColumn(),
        progress.TimeElapsedColumn(),
        console=screen,
        transient=True,
    )
    task = bar.add_task(printable(f"measuring {device}"), total=1.0)
    with bar:
        yield lambda share: bar.update(task, completed=share)


def _rows(ceilings: Ceilings) -> Iterator[Sequence[Any]]:
    name = ceilings.device
    for size, rate in sorted(ceilings.bytes_per_s.items()):
        yield name, "bandwidth", _size(size), rate / 1e9, "GB/s"
    for dtype, rate in sorted(ceilings.flops_per_s.items()):
        yield name, "matrix product", dtype, rate / 1e12, "TFLOP/s"
    yield name, "shortest call", None, ceilings.call_ms * 1e3, "us"
    if ceilings.process_ms or ceilings.process_share:
        yield name, "process to process", "short calls", ceilings.process_ms * 1e3, "us"
        yield name, "process to process", "long calls", ceilings.process_share * 1e2, "%"


def _tell(path: Path, ceilings: Ceilings) -> None:
    talk(f"{ceilings.device}: {ceilings.hardware}, {ceilings.created}, in {path}")
    if not ceilings.settled:
        talk(
            f"warning: {ceilings.device} was busy, so these figures may be far too low and "
            "no latency is checked against them. Run it again when the machine is idle."
        )


def _size(nbytes: int) -> str:
    value, units = nbytes, list(_UNITS)
    while value % 1024 == 0 and len(units) > 1:
        value //= 1024
        units.pop(0)
    return f"{value} {units[0]}"
