"""``fib apply``: building ahead what would be substituted here."""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import AsJson, LogLevel, command_group, option
from flashinfer_bench.cli.output import (
    emit_document,
    printable,
    set_up_logging,
    table,
    talk,
    tell_counts,
)
from flashinfer_bench.errors import BuildCapabilityError, CapabilityError, FibError, SelectionError

if TYPE_CHECKING:
    from flashinfer_bench.apply import ApplyConfig


app = command_group(
    "apply", "Show which recorded solutions would be put to work here, and build them ahead."
)

app.callback()(lambda: None)  # a group of one command, to which plugins add others

Dataset = Annotated[
    Optional[Path],
    typer.Argument(
        metavar="[DATASET]", show_default=False, help="Its folder. Default: $FIB_DATASET_PATH."
    ),
]
_HARDWARE = "Look at the traces of other hardware: its name as traces have it."
Hardware = Annotated[Optional[str], option("--hardware", metavar="NAME", help=_HARDWARE)]
_DEVICE = (
    "The device here whose traces count: cpu, cuda or cuda:1. Default: a GPU if there is one, else "
    "the CPU."
)
Device = Annotated[Optional[str], option("--device", metavar="DEVICE", help=_DEVICE)]
_ATOL = "Largest absolute error. Default: by dtype."
MaxAtol = Annotated[Optional[float], option("--max-atol", metavar="X", help=_ATOL)]
_RTOL = "Largest relative error. Default: by dtype."
MaxRtol = Annotated[Optional[float], option("--max-rtol", metavar="X", help=_RTOL)]
_JOBS = "Builds at once. Default: one for each core, as far as memory goes."
Jobs = Annotated[Optional[int], option("--jobs", "-j", metavar="N", help=_JOBS)]
NoHelper = Annotated[
    bool,
    typer.Option("--no-helper", help="Do not compile the helper that calls are dispatched with."),
]


def bounds(max_atol: Optional[float], max_rtol: Optional[float]) -> ApplyConfig:
    """Return the settings of apply with these bounds."""
    from flashinfer_bench.apply import ApplyConfig

    return ApplyConfig(max_atol=max_atol, max_rtol=max_rtol)


def hardware_name(hardware: Optional[str], device: Optional[str]) -> str:
    """Return the name of the hardware as traces have it."""
    if hardware is not None and device is not None:
        raise typer.BadParameter("give --device or --hardware, not both")
    from flashinfer_bench.tensors.devices import this_hardware

    # No hardware is called like a device; older scripts have these here.
    if hardware is None or hardware == "cpu" or hardware.partition(":")[0] == "cuda":
        return this_hardware(hardware if device is None else device)
    return hardware


@app.command("build")
def build(
    dataset: Dataset = None,
    jobs: Jobs = None,
    device: Device = None,
    hardware: Hardware = None,
    max_atol: MaxAtol = None,
    max_rtol: MaxRtol = None,
    no_helper: NoHelper = False,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Build the solutions that would be put to work, several at a time.

    Compiled solutions stay in the cache, so that programs that enable apply find them there. They
    are built as apply builds them: in this process, which imports their code. Exits with 1 if one
    fails, and with 4 if this machine lacks something for one.

    Once for each torch a small helper is compiled as well, with which calls are dispatched more
    quickly. Where that is not possible, they are dispatched without it.
    """
    set_up_logging(log_level)
    from flashinfer_bench.apply.runtime import Builds
    from flashinfer_bench.apply.table import ApplyTable

    place = hardware_name(hardware, device)
    found = ApplyTable.load_or_build(dataset, bounds(max_atol, max_rtol), hardware=place)
    counts: Counter[tuple[str, str]] = Counter()
    for name, one in found.definitions.items():
        counts.update({(name, solution): keys for solution, keys in one.winners.items()})
        if one.best is not None:
            counts[name, one.best] += 0  # listed, even if it wins no key
    if not counts:
        raise SelectionError(
            f"no solution of the dataset may be used on {place}", hint="'fib apply list' says why"
        )
    # Those with most keys first; equals by name.
    wanted = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    results: dict[str, Optional[Exception]] = {}
    begin, interrupted, helper = time.monotonic(), True, _helper("skipped")

    def on_built(name: str, error: Optional[Exception]) -> None:
        results[name] = error
        talk(printable(f"build {len(results)}/{len(wanted)}: {_state(error)} {name}"))

    with suppress(KeyboardInterrupt), redirect_stdout(sys.stderr):  # for what a builder prints
        Builds(found.source).ahead([solution for (_, solution), _ in wanted], jobs, on_built)
        if not no_helper:
            helper = _build_helper()
        interrupted = False
    builds: list[dict[str, Any]] = [
        {
            "definition": name,
            "solution": solution,
            "keys": keys,
            "result": _state(error),
            "reason": None if error is None else _reason(error),
            "log": getattr(error, "log", ""),
        }
        for (name, solution), keys in wanted
        if solution in results
        for error in [results[solution]]
    ]
    if as_json:
        emit_document(hardware=place, interrupted=interrupted, helper=helper, builds=builds)
    elif builds:
        rows = (
            (*list(each.values())[:4], (each["reason"] or "").partition("\n")[0]) for each in builds
        )
        table("Builds", ("definition", "solution", "keys", "result", "detail"), rows)
    states = Counter(each["result"] for each in builds)
    tell_counts("builds", states, begin, interrupted=interrupted)
    text = _HELPER_TEXTS[helper["state"]]
    talk(printable(f"helper: {text.format((helper['reason'] or '').partition(chr(10))[0])}"))
    hints = {error.hint for error in results.values() if isinstance(error, FibError)}
    for hint in sorted(filter(None, hints)):
        talk(printable(f"hint: {hint}"))
    if interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if "failed" in states:
        raise typer.Exit(ExitCode.FINDINGS)
    raise typer.Exit(ExitCode.CAPABILITY if "unavailable" in states else ExitCode.OK)


_WITHOUT = "calls are dispatched without it, as rightly but more slowly"
_HELPER_TEXTS = {
    "built": "compiled; programs that enable apply from now on dispatch calls with it",
    "present": "compiled before; programs that enable apply dispatch calls with it",
    "skipped": f"not asked for; unless it was compiled before, {_WITHOUT}",
    "unavailable": f"not compiled ({{}}); {_WITHOUT}",
    "failed": f"not compiled ({{}}); {_WITHOUT}",
}


def _helper(state: str, reason: Optional[str] = None, log: str = "") -> dict[str, Any]:
    """Say what became of the helper of the dispatcher: `state` is one of `_HELPER_TEXTS`."""
    return {"state": state, "reason": reason, "log": log}


def _build_helper() -> dict[str, Any]:
    """Compile the helper of the dispatcher, unless it is there; what goes wrong costs only it."""
    try:
        from flashinfer_bench.apply.dispatch.recognition import build_helper, by_helper

        if by_helper() is not None:
            return _helper("present")
        talk("helper: compiling, which may take half a minute")
        build_helper()
        if by_helper() is not None:
            return _helper("built")
    except (CapabilityError, ImportError) as error:  # no compiler, no torch
        return _helper("unavailable", _reason(error))
    except FibError as error:
        return _helper("failed", _reason(error), getattr(error, "log", ""))
    return _helper("failed", "it does not work with the torch that is installed")


def _state(error: Optional[Exception]) -> str:
    if error is None:
        return "built"
    return "unavailable" if isinstance(error, BuildCapabilityError) else "failed"


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, FibError) else f"{type(error).__name__}: {error}"
