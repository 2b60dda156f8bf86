"""``fib apply``: which solutions apply would use here and why, and building them in advance."""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Optional

import typer

from fib_report.tables import takes
from flashinfer_bench.cli import options
from flashinfer_bench.cli.datasets import default_dataset, tell_broken
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import AsJson, GreedyCommand, LogLevel, option
from flashinfer_bench.cli.output import (
    emit,
    emit_document,
    printable,
    set_up_logging,
    table,
    talk,
    tell_counts,
)
from flashinfer_bench.cli.run_options import known_device
from flashinfer_bench.errors import BuildCapabilityError, CapabilityError, FibError, SelectionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flashinfer_bench.apply import ApplyConfig

app = options.command_group(
    "apply", "Show which recorded solutions apply would use here, and build them in advance."
)

_HARDWARE = "Use the traces of this hardware instead; give its name as in the traces."
Hardware = Annotated[Optional[str], option("--hardware", metavar="NAME", help=_HARDWARE)]
_DEVICE = (
    "Use the traces of this device: cpu, cuda or cuda:1. Default: a GPU if there is one, else the "
    "CPU."
)
Device = Annotated[
    Optional[str], option("--device", metavar="DEVICE", callback=known_device, help=_DEVICE)
]
_ATOL = "Largest absolute error. Default: by dtype."
MaxAtol = Annotated[Optional[float], option("--max-atol", metavar="X", help=_ATOL)]
_RTOL = "Largest relative error. Default: by dtype."
MaxRtol = Annotated[Optional[float], option("--max-rtol", metavar="X", help=_RTOL)]
_JOBS = "Number of parallel builds. Default: one per core, as far as memory allows."
Jobs = Annotated[Optional[int], option("--jobs", "-j", metavar="N", help=_JOBS)]
NoHelper = Annotated[
    bool,
    typer.Option("--no-helper", help="Do not compile the helper that dispatches calls faster."),
]
_AXES = "Only calls with these sizes: M=16, or M=16 N=4096. Must be the last option."
Axes = Annotated[Optional[list[str]], option("--axes", metavar="NAME=SIZE...", help=_AXES)]


class Given(NamedTuple):
    """What the options that all these commands have say.

    Attributes
    ----------
    local : Path or None
        The dataset, if one is named.
    hardware : str
        The hardware's name as it is in traces.
    config : ApplyConfig
        The limits on errors.
    as_json : bool
        Whether to write JSON.
    """

    local: Optional[Path]
    hardware: str
    config: ApplyConfig
    as_json: bool


def given_by(
    local: options.OneLocal = None,
    device: Device = None,
    hardware: Hardware = None,
    max_atol: MaxAtol = None,
    max_rtol: MaxRtol = None,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> Given:
    """Check and combine the options that all these commands have."""
    set_up_logging(log_level)
    if hardware is not None and device is not None:
        raise typer.BadParameter("give --device or --hardware, not both")
    from flashinfer_bench.apply import ApplyConfig
    from flashinfer_bench.tensors.devices import this_hardware

    config = ApplyConfig(max_atol=max_atol, max_rtol=max_rtol)
    # Older scripts pass devices to --hardware; no hardware has such a name.
    if hardware is None or hardware == "cpu" or hardware.partition(":")[0] == "cuda":
        hardware = this_hardware(hardware or device)
    return Given(local, hardware, config, as_json)


# --------------------------------------------------------------------------------------- build


@app.command("build", cls=GreedyCommand)
@takes(given=given_by)
def build(given: Given, jobs: Jobs = None, no_helper: NoHelper = False) -> None:
    """Build the solutions that apply would use here, several at a time.

    The builds stay in the cache for programs that enable apply. Like apply, this command builds and
    imports the solutions in its own process. Exits with 1 if a build fails, and with 4 if this
    machine lacks something that a solution needs.

    Also compiles a small helper that makes dispatch faster, once for each version of torch. Without
    the helper, dispatch is slower but otherwise the same.
    """
    from flashinfer_bench.apply.runtime import Builds
    from flashinfer_bench.apply.table import ApplyTable

    place, folder = given.hardware, given.local or default_dataset()
    found = ApplyTable.load_or_build(folder, given.config, hardware=place)
    counts: Counter[tuple[str, str]] = Counter()
    for name, one in found.definitions.items():
        counts.update({(name, solution): keys for solution, keys in one.winners.items()})
        if one.best is not None:
            counts[name, one.best] += 0  # listed, even if it wins no key
    if not counts:
        raise SelectionError(
            f"apply can use no solution of the dataset on {place}", hint="see 'fib apply list'"
        )
    # Solutions with the most keys first, ties by name.
    wanted = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    results: dict[str, Optional[Exception]] = {}
    begin, interrupted, helper = time.monotonic(), True, _helper("skipped")
    with suppress(KeyboardInterrupt), redirect_stdout(sys.stderr):  # builders may print
        for name, error in Builds(found.source).ahead([each for (_, each), _ in wanted], jobs):
            results[name] = error
            talk(printable(f"build {len(results)}/{len(wanted)}: {_state(error)} {name}"))
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
    if given.as_json:
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


_WITHOUT = "dispatch works without it, but is slower"
_HELPER_TEXTS = {
    "built": "compiled; programs that enable apply use it from now on",
    "present": "already compiled; programs that enable apply use it",
    "skipped": f"not compiled (--no-helper); {_WITHOUT}",
    "unavailable": f"not compiled ({{}}); {_WITHOUT}",
    "failed": f"not compiled ({{}}); {_WITHOUT}",
}


def _helper(state: str, reason: Optional[str] = None, log: str = "") -> dict[str, Any]:
    """Return the JSON about the dispatch helper; `state` is a key of `_HELPER_TEXTS`."""
    return {"state": state, "reason": reason, "log": log}


def _build_helper() -> dict[str, Any]:
    """Compile the dispatch helper unless it exists; a failure is reported and not raised."""
    try:
        from flashinfer_bench.apply.dispatch.recognition import build_helper, by_helper

        if by_helper() is not None:
            return _helper("present")
        talk("helper: compiling, may take half a minute")
        build_helper()
        if by_helper() is not None:
            return _helper("built")
    except (CapabilityError, ImportError) as error:  # no compiler, no torch
        return _helper("unavailable", _reason(error))
    except FibError as error:
        return _helper("failed", _reason(error), getattr(error, "log", ""))
    return _helper("failed", "it does not work with the installed torch")


def _state(error: Optional[Exception]) -> str:
    if error is None:
        return "built"
    return "unavailable" if isinstance(error, BuildCapabilityError) else "failed"


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, FibError) else f"{type(error).__name__}: {error}"


# ------------------------------------------------------------------------------------- explain


@app.command("explain", cls=GreedyCommand)
@takes(given=given_by)
def explain(
    given: Given,
    definition: Annotated[str, typer.Argument(metavar="DEFINITION", help="Name of a definition.")],
    axes: Axes = None,
) -> None:
    """Show which solutions apply would use for a definition, and why not the others.

    The first table ranks the solutions for each recorded key (size), the winner first. The second
    lists all solutions, with the reasons why traces do not count. Nothing is built or run.
    """
    sizes, local = _parse_axes(axes or ()), given.local
    if local is not None and Path(definition).is_dir() and not local.exists():
        definition, local = str(local), Path(definition)  # in either order
    dataset = local or default_dataset()
    from fib_report.apply_choices import explain as explain_one

    place = given.hardware
    found = explain_one(dataset, definition, given.config, hardware=place, axes=sizes or None)
    if given.as_json:
        emit_document(dataset=dataset, **found)
    else:
        table(f"Ranking for {definition}", _KEY_COLUMNS, _key_rows(found["keys"]))
        emit("")
        table("Solutions", _SOLUTION_COLUMNS, map(_solution_row, found["solutions"]))
    talk(printable(f"{definition} on {found['hardware']}"))
    errors = f"absolute error up to {found['atol']:.3g} {'and' if found['both'] else 'or'} relative"
    talk(f"tolerance: {errors} up to {found['rtol']:.3g}")
    winners = sum(bool(key["contenders"]) for key in found["keys"])
    talk(f"{winners:,} of {len(found['keys']):,} recorded keys have a winner")
    if found["best"] is not None:
        talk(printable(f"with on_miss_policy='use_def_best', {found['best']} takes all other keys"))
    raise typer.Exit(_tell_problems(found["problems"]))


def _parse_axes(values: Sequence[str]) -> dict[str, int]:
    """Return sizes by axis from ``M=16`` and ``M=16,N=4``."""
    sizes: dict[str, int] = {}
    for part in (part for value in values for part in value.split(",")):
        name, equals, size = part.strip().partition("=")
        if not equals or not name or not (size.isascii() and size.isdecimal()):
            raise typer.BadParameter(f"{part!r} is not of the form NAME=SIZE, such as M=16")
        if sizes.setdefault(name, int(size)) != int(size):
            raise typer.BadParameter(f"axis {name!r} has two sizes, {sizes[name]} and {int(size)}")
    return sizes


_KEY_COLUMNS = ("key", "place", "solution", "latency_ms", "slower", "runs")
_SOLUTION_COLUMNS = ("solution", "keys", "won", "runs", "counted", "why_not")


def _key_rows(keys: Sequence[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    for key in keys:
        # Sizes in the form of ``--axes``, then the other features of the key.
        parts = {**key["axes"], **key["feats"]}.items()
        text = " ".join(f"{name}={value}" for name, value in parts) or "any"
        if not key["contenders"]:
            yield (text, None, None, None, None, 0)
        for place, each in enumerate(key["contenders"], 1):
            yield (text, place, *map(each.get, ("solution", "latency_ms", "slower", "runs")))


def _solution_row(one: dict[str, Any]) -> tuple[Any, ...]:
    reasons = [
        f"{each['text']} ({each['runs']:,} {_runs(each['runs'])})" if each["runs"] else each["text"]
        for each in one["refusals"]
    ]
    lost = one["keys"] - one["won"]
    if lost:
        reasons.insert(0, f"slower in {lost:,} {'key' if lost == 1 else 'keys'}")
    return (*map(one.get, ("name", "keys", "won", "runs", "counted")), "; ".join(reasons))


def _runs(count: int) -> str:
    return "run" if count == 1 else "runs"


def _tell_problems(problems: Sequence[str]) -> ExitCode:
    """Report unreadable parts of the dataset; return the exit code of the command."""
    tell_broken([printable(problem.splitlines()[0]) for problem in problems])
    return ExitCode.FINDINGS if problems else ExitCode.OK


# ---------------------------------------------------------------------------------------- list


@app.command("list", cls=GreedyCommand)
@takes(given=given_by)
def list_definitions(given: Given) -> None:
    """Show which solutions apply would use for each definition.

    A row has the number of keys (sizes) recorded on this hardware, how many of them have a winner,
    each winner with its number of keys, and how many traces do not count, by reason. Nothing is
    built or run.
    """
    from fib_report.apply_choices import explain_all

    dataset = given.local or default_dataset()
    found = explain_all(dataset, given.config, hardware=given.hardware)
    definitions = found["definitions"]
    if given.as_json:
        emit_document(**found)
    else:
        table("Apply", _LIST_COLUMNS, map(_list_row, definitions))
    keys = sum(one["keys"] for one in definitions)
    won = keys - sum(one["open_keys"] for one in definitions)
    talk(printable(f"{won:,} of {keys:,} recorded keys have a winner on {found['hardware']}"))
    elsewhere = sum(one["refused"].get("hardware", 0) for one in definitions)
    if elsewhere:
        talk(f"not counted: {elsewhere:,} {_runs(elsewhere)} on other hardware")
    unknown = [one["definition"] for one in definitions if not one["known"]]
    if unknown:
        talk(printable(f"definitions with traces that the dataset lacks: {', '.join(unknown)}"))
    raise typer.Exit(_tell_problems(found["problems"]))


_LIST_COLUMNS = ("definition", "op_type", "keys", "won", "winners", "runs", "not_counted")


def _list_row(one: dict[str, Any]) -> tuple[Any, ...]:
    winners, refused = (
        ", ".join(f"{name} {count:,}" for name, count in one[which].items()) or None
        for which in ("winners", "refused")
    )
    won = one["keys"] - one["open_keys"]
    return (one["definition"], one["op_type"], one["keys"], won, winners, one["runs"], refused)
