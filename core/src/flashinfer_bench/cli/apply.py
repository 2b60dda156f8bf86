"""``fib apply``: what would be substituted here and why, and building it ahead."""

# ruff: noqa: TC001 - typer reads the annotations at run time

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.greedy import GreedyCommand
from flashinfer_bench.cli.logs import set_up_logging
from flashinfer_bench.cli.options import AsJson, LogLevel
from flashinfer_bench.cli.output import emit, emit_json, printable, table, talk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashinfer_bench.apply import ApplyConfig
    from flashinfer_bench.apply.explain import (
        DefinitionOverview,
        Explanation,
        KeyExplanation,
        Overview,
        SolutionExplanation,
    )

SCHEMA_VERSION = 1
_SHOWN = 10

app = typer.Typer(
    name="apply",
    help="Show which recorded solutions would be put to work here, and build them ahead.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Dataset = Annotated[
    Optional[Path],
    typer.Argument(
        metavar="[DATASET]", show_default=False, help="Its folder. Default: $FIB_DATASET_PATH."
    ),
]
Axes = Annotated[
    Optional[list[str]],
    typer.Option(
        "--axes",
        metavar="NAME=SIZE...",
        show_default=False,
        help="Only calls of these sizes: M=16, or M=16 N=4096. Goes last.",
    ),
]
Hardware = Annotated[
    Optional[str],
    typer.Option(
        "--hardware",
        metavar="NAME",
        show_default=False,
        help="Look at the traces of other hardware: its name as traces have it.",
    ),
]
Device = Annotated[
    Optional[str],
    typer.Option(
        "--device",
        metavar="DEVICE",
        show_default=False,
        help="The device here whose traces count: cpu, cuda or cuda:1. Default: a GPU if there is "
        "one, else the CPU.",
    ),
]
MaxAtol = Annotated[
    Optional[float],
    typer.Option(
        "--max-atol",
        metavar="X",
        show_default=False,
        help="Largest absolute error. Default: by dtype.",
    ),
]
MaxRtol = Annotated[
    Optional[float],
    typer.Option(
        "--max-rtol",
        metavar="X",
        show_default=False,
        help="Largest relative error. Default: by dtype.",
    ),
]
Jobs = Annotated[
    Optional[int],
    typer.Option(
        "--jobs",
        "-j",
        metavar="N",
        show_default=False,
        help="Builds at once. Default: one for each core, as far as memory goes.",
    ),
]
NoHelper = Annotated[
    bool,
    typer.Option("--no-helper", help="Do not compile the helper that calls are dispatched with."),
]


# ------------------------------------------------------------------------------------- explain


@app.command("explain", cls=GreedyCommand)
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
    from flashinfer_bench.apply.explain import explain as explain_one

    config = _config(max_atol, max_rtol)
    found = explain_one(
        dataset, definition, config, hardware=_hardware_name(hardware, device), axes=sizes or None
    )
    if as_json:
        emit_json({"schema_version": SCHEMA_VERSION, "dataset": dataset, **found.to_dict()})
    else:
        _print_explanation(found)
    _tell_explanation(found)
    raise typer.Exit(_tell_problems(found.problems))


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


def _config(max_atol: Optional[float], max_rtol: Optional[float]) -> Optional[ApplyConfig]:
    if max_atol is None and max_rtol is None:
        return None
    from flashinfer_bench.apply import ApplyConfig

    return ApplyConfig(max_atol=max_atol, max_rtol=max_rtol)


def _hardware_name(hardware: Optional[str], device: Optional[str]) -> str:
    """Return the name of the hardware as traces have it."""
    if hardware is not None and device is not None:
        raise typer.BadParameter("give --device or --hardware, not both")
    from flashinfer_bench.apply.hardware import this_hardware

    # No hardware is called like a device; older scripts have these here.
    if hardware is None or hardware == "cpu" or hardware.partition(":")[0] == "cuda":
        return this_hardware(hardware if device is None else device)
    return hardware


_KEY_COLUMNS = ("key", "place", "solution", "latency_ms", "slower", "runs")
_SOLUTION_COLUMNS = ("solution", "keys", "won", "runs", "counted", "why_not")


def _print_explanation(found: Explanation) -> None:
    table(f"Who takes {found.definition}", _KEY_COLUMNS, [*_key_rows(found.keys)])
    emit("")
    table("Solutions", _SOLUTION_COLUMNS, map(_solution_row, found.solutions))


def _key_rows(keys: Sequence[KeyExplanation]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for key in keys:
        text = _key_text(key)
        rows += [
            (text, place, each.solution, each.latency_ms, each.slower, each.runs)
            for place, each in enumerate(key.contenders, 1)
        ] or [(text, None, None, None, None, 0)]
    return rows


def _key_text(key: KeyExplanation) -> str:
    """Return the sizes as ``--axes`` takes them, and what else counts after them."""
    parts = {**key.axes, **key.feats}.items()
    return " ".join(f"{name}={value}" for name, value in parts) or "any"


def _solution_row(one: SolutionExplanation) -> tuple[Any, ...]:
    reasons = [
        f"{each.text} ({each.runs:,} {_runs(each.runs)})" if each.runs else each.text
        for each in one.refusals
    ]
    lost = one.keys - one.won
    if lost:
        reasons.insert(0, f"slower in {lost:,} {'key' if lost == 1 else 'keys'}")
    return (one.name, one.keys, one.won, one.runs, one.counted, "; ".join(reasons))


def _runs(count: int) -> str:
    return "run" if count == 1 else "runs"


def _tell_explanation(found: Explanation) -> None:
    talk(printable(f"{found.definition} on {found.hardware}"))
    joint = "and" if found.both else "or"
    talk(
        f"tolerance: absolute error up to {found.atol:.3g} {joint} relative up to {found.rtol:.3g}"
    )
    winners = sum(bool(key.contenders) for key in found.keys)
    talk(f"{winners:,} of {len(found.keys):,} recorded keys have a winner")
    if found.best is not None:
        talk(printable(f"with on_miss_policy='use_def_best', other keys go to {found.best}"))
    if not found.keys:
        _tell_hardware(found)


def _tell_hardware(found: Explanation) -> None:
    """Say where the definition was recorded, if it was nowhere here."""
    from flashinfer_bench.cli.lazy_group import near_matches

    texts = {
        each.text for one in found.solutions for each in one.refusals if each.kind == "hardware"
    }
    names = sorted(text.removeprefix("recorded on ") for text in texts)
    if names:
        hint = near_matches(found.hardware, names)
        talk(printable(f"hint: there are traces of {', '.join(names)}.{hint}"))


def _tell_problems(problems: Sequence[str]) -> ExitCode:
    """Say what of the dataset could not be read; return the exit code of the command."""
    for problem in problems[:_SHOWN]:
        talk(printable(f"error: {problem.splitlines()[0]}"))
    if len(problems) > _SHOWN:
        talk(f"error: … and {len(problems) - _SHOWN} more like these")
    if problems:
        talk("hint: what is broken was left out; 'fib validate' lists all of it")
    return ExitCode.FINDINGS if problems else ExitCode.OK


# ---------------------------------------------------------------------------------------- list


@app.command("list")
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
    from flashinfer_bench.apply.explain import explain_all

    config = _config(max_atol, max_rtol)
    found = explain_all(dataset, config, hardware=_hardware_name(hardware, device))
    if as_json:
        emit_json({"schema_version": SCHEMA_VERSION, **found.to_dict()})
    else:
        table("Apply", _LIST_COLUMNS, map(_list_row, found.definitions))
    _tell_overview(found)
    raise typer.Exit(_tell_problems(found.problems))


_LIST_COLUMNS = ("definition", "op_type", "keys", "won", "winners", "runs", "not_counted")


def _list_row(one: DefinitionOverview) -> tuple[Any, ...]:
    won = one.keys - one.open_keys
    winners = _counts(one.winners) or None
    refused = _counts(one.refused) or None
    return (one.definition, one.op_type, one.keys, won, winners, one.runs, refused)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _tell_overview(found: Overview) -> None:
    keys = sum(one.keys for one in found.definitions)
    won = keys - sum(one.open_keys for one in found.definitions)
    talk(printable(f"{won:,} of {keys:,} recorded keys have a winner on {found.hardware}"))
    elsewhere = sum(one.refused.get("hardware", 0) for one in found.definitions)
    if elsewhere:
        talk(f"not counted: {elsewhere:,} {_runs(elsewhere)} on other hardware")
    strangers = [one.definition for one in found.definitions if not one.known]
    if strangers:
        talk(printable(f"the dataset lacks the definitions of {', '.join(strangers)}"))


# --------------------------------------------------------------------------------------- build


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
    from flashinfer_bench.cli.apply_build import build_winners

    raise typer.Exit(
        build_winners(
            dataset,
            _config(max_atol, max_rtol),
            hardware=_hardware_name(hardware, device),
            jobs=jobs,
            helper=not no_helper,
            as_json=as_json,
        )
    )
