"""``fib apply explain`` and ``fib apply list``: who would take which calls here, and why."""

# ruff: noqa: TC003 - typer reads the annotations at run time

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from flashinfer_bench.cli.apply import (
    Dataset,
    Device,
    Hardware,
    MaxAtol,
    MaxRtol,
    bounds,
    hardware_name,
)
from flashinfer_bench.cli.datasets import tell_broken
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import AsJson, GreedyCommand, LogLevel, option
from flashinfer_bench.cli.output import emit, emit_document, printable, set_up_logging, table, talk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_AXES = "Only calls of these sizes: M=16, or M=16 N=4096. Goes last."
Axes = Annotated[Optional[list[str]], option("--axes", metavar="NAME=SIZE...", help=_AXES)]


# ------------------------------------------------------------------------------------- explain


def explain(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder of the dataset.")],
    definition: Annotated[str, typer.Argument(metavar="DEFINITION", help="Name of a definition.")],
    axes: Axes = None,
    device: Device = None,
    hardware: Hardware = None,
    max_atol: MaxAtol = None,
    max_rtol: MaxRtol = None,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Show which solution takes the calls of a definition, and why the others do not.

    First the solutions that may take each recorded key (size), the winner first; then all
    solutions, with the reasons for which traces of them do not count. Nothing is built or run.
    """
    set_up_logging(log_level)
    sizes = _parse_axes(axes or ())
    from fib_report.apply_choices import explain as explain_one

    place = hardware_name(hardware, device)
    found = explain_one(
        dataset, definition, bounds(max_atol, max_rtol), hardware=place, axes=sizes or None
    )
    if as_json:
        emit_document(dataset=dataset, **found)
    else:
        table(f"Who takes {definition}", _KEY_COLUMNS, _key_rows(found["keys"]))
        emit("")
        table("Solutions", _SOLUTION_COLUMNS, map(_solution_row, found["solutions"]))
    talk(printable(f"{definition} on {found['hardware']}"))
    errors = f"absolute error up to {found['atol']:.3g} {'and' if found['both'] else 'or'} relative"
    talk(f"tolerance: {errors} up to {found['rtol']:.3g}")
    winners = sum(bool(key["contenders"]) for key in found["keys"])
    talk(f"{winners:,} of {len(found['keys']):,} recorded keys have a winner")
    if found["best"] is not None:
        talk(printable(f"with on_miss_policy='use_def_best', other keys go to {found['best']}"))
    raise typer.Exit(_tell_problems(found["problems"]))


def _parse_axes(values: Sequence[str]) -> dict[str, int]:
    """Return sizes by axis from ``M=16`` and ``M=16,N=4``."""
    sizes: dict[str, int] = {}
    for part in (part for value in values for part in value.split(",")):
        name, equals, size = part.strip().partition("=")
        if not equals or not name or not (size.isascii() and size.isdecimal()):
            raise typer.BadParameter(f"{part!r} is no size of an axis; write it as M=16")
        if sizes.setdefault(name, int(size)) != int(size):
            raise typer.BadParameter(f"axis {name!r} has two sizes, {sizes[name]} and {int(size)}")
    return sizes


_KEY_COLUMNS = ("key", "place", "solution", "latency_ms", "slower", "runs")
_SOLUTION_COLUMNS = ("solution", "keys", "won", "runs", "counted", "why_not")


def _key_rows(keys: Sequence[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    for key in keys:
        # The sizes as ``--axes`` takes them, and what else counts after them.
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
    """Say what of the dataset could not be read; return the exit code of the command."""
    tell_broken([printable(problem.splitlines()[0]) for problem in problems])
    return ExitCode.FINDINGS if problems else ExitCode.OK


# ---------------------------------------------------------------------------------------- list


def list_definitions(
    dataset: Dataset = None,
    device: Device = None,
    hardware: Hardware = None,
    max_atol: MaxAtol = None,
    max_rtol: MaxRtol = None,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Show for each definition what would be put to work.

    One row for each: how many keys (sizes) were recorded on this hardware, how many of them have a
    winner, the winners with the number of their keys, and how many traces do not count for which
    reason. Nothing is built or run.
    """
    set_up_logging(log_level)
    from fib_report.apply_choices import explain_all

    place = hardware_name(hardware, device)
    found = explain_all(dataset, bounds(max_atol, max_rtol), hardware=place)
    definitions = found["definitions"]
    if as_json:
        emit_document(**found)
    else:
        table("Apply", _LIST_COLUMNS, map(_list_row, definitions))
    keys = sum(one["keys"] for one in definitions)
    won = keys - sum(one["open_keys"] for one in definitions)
    talk(printable(f"{won:,} of {keys:,} recorded keys have a winner on {found['hardware']}"))
    elsewhere = sum(one["refused"].get("hardware", 0) for one in definitions)
    if elsewhere:
        talk(f"not counted: {elsewhere:,} {_runs(elsewhere)} on other hardware")
    strangers = [one["definition"] for one in definitions if not one["known"]]
    if strangers:
        talk(printable(f"the dataset lacks the definitions of {', '.join(strangers)}"))
    raise typer.Exit(_tell_problems(found["problems"]))


_LIST_COLUMNS = ("definition", "op_type", "keys", "won", "winners", "runs", "not_counted")


def _list_row(one: dict[str, Any]) -> tuple[Any, ...]:
    winners, refused = (
        ", ".join(f"{name} {count:,}" for name, count in one[which].items()) or None
        for which in ("winners", "refused")
    )
    won = one["keys"] - one["open_keys"]
    return (one["definition"], one["op_type"], one["keys"], won, winners, one["runs"], refused)


explain_app = typer.Typer(add_completion=False, rich_markup_mode=None)
explain_app.command("explain", cls=GreedyCommand)(explain)
