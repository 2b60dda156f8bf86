"""``fib compare``: is one solution faster than another, in an answer that scripts can act on."""

# ruff: noqa: TC001 - typer reads the annotations at run time

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from fib_compare.commands.compare_view import Watch, emit_answer, exit_code_of
from fib_compare.commands.replay import Workloads, parse_share, without_torch
from flashinfer_bench.cli import run_options as own
from flashinfer_bench.cli.datasets import dataset_roots
from flashinfer_bench.cli.options import (
    AsJson,
    Definitions,
    GreedyCommand,
    LogLevel,
    OneLocal,
    Solutions,
    complete_solution,
)
from flashinfer_bench.cli.output import set_up_logging
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fib_compare.paired import CompareSettings, ContestResult

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def _name(flag: str, text: str) -> Any:
    return typer.Option(
        flag, metavar="NAME", show_default=False, autocompletion=complete_solution, help=text
    )


def _folder(flag: str, text: str) -> Any:
    return typer.Option(flag, metavar="PATH", show_default=False, help=text)


Baseline = Annotated[Optional[str], _name("--baseline", "Solution to compare with.")]
Candidate = Annotated[Optional[str], _name("--candidate", "Solution that may have got slower.")]
MinEffect = Annotated[
    float,
    typer.Option(
        "--min-effect",
        parser=parse_share,
        metavar="X",
        help="Smallest difference that counts: 1% or 0.01.",
    ),
]
Alpha = Annotated[
    float,
    typer.Option(
        "--alpha", parser=parse_share, metavar="X", help="Chance of a false alarm: 5% or 0.05."
    ),
]
MaxSeconds = Annotated[
    float,
    typer.Option("--max-seconds", metavar="S", help="Wall time for each workload's launches."),
]
BaselineTraces = Annotated[
    Optional[Path],
    _folder("--baseline-traces", "Run nothing: take samples of this dataset or file of traces."),
]
CandidateTraces = Annotated[
    Optional[Path], _folder("--candidate-traces", "… and compare them with those of this one.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Compare traces of other hardware, timers or definitions.")
]


First = Annotated[
    Optional[str],
    typer.Argument(
        metavar="BASELINE",
        show_default=False,
        autocompletion=complete_solution,
        help="Two solutions: short for --baseline and --candidate.",
    ),
]
Second = Annotated[
    Optional[str],
    typer.Argument(metavar="CANDIDATE", show_default=False, autocompletion=complete_solution),
]


@app.command("compare", cls=GreedyCommand)
def compare(
    ctx: typer.Context,
    first: First = None,
    second: Second = None,
    local: OneLocal = None,
    baseline: Baseline = None,
    candidate: Candidate = None,
    definitions: Definitions = None,
    workloads: Workloads = None,
    min_effect: MinEffect = "1%",  # type: ignore[assignment] # typer parses it
    alpha: Alpha = "5%",  # type: ignore[assignment]
    max_seconds: MaxSeconds = 30.0,
    device: own.Device = None,
    seed: own.Seed = None,
    timer: own.Timer = None,
    cache: own.Cache = None,
    executor: own.Executor = None,
    sandbox: own.Sandbox = None,
    trust: own.Trust = None,
    timeout_seconds: own.Timeout = None,
    config: own.ConfigFile = None,
    baseline_traces: BaselineTraces = None,
    candidate_traces: CandidateTraces = None,
    solutions: Solutions = None,
    force: Force = False,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Say whether one solution is faster or slower than another, the same, or ambiguous.

    Both run side by side on one device, in fresh processes again and again, on the same values, in
    turn, until the answer is clear or the time is over. With --baseline-traces and
    --candidate-traces nothing is run: recorded samples are compared, unpaired.

    Exits with 0 if nothing is slower, 1 if something is, or cannot be compared because a solution
    fails, 6 if it is ambiguous. Nothing is written to the dataset.
    """
    set_up_logging(log_level)
    from fib_compare.paired.contest import CompareSettings

    options = _named(ctx.params)
    settings = CompareSettings(min_effect=min_effect, alpha=alpha, max_seconds=max_seconds)
    results: list[ContestResult] = []
    paired = baseline_traces is None and candidate_traces is None
    try:
        if paired:
            _run_contests(options, settings, results)
        else:
            results += _recorded(options, settings)
    finally:
        shown = emit_answer(results, settings, paired=paired, as_json=as_json) if results else None
    assert shown is not None, "there is a result for each contest"
    raise typer.Exit(exit_code_of(shown))


def _named(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, with the two names where they stand if they were given without a flag.

    Raises
    ------
    ConfigError
        If they are given both ways, or one without the other.
    """
    names = options["first"], options["second"]
    if names == (None, None):
        return dict(options)
    if None in names:
        raise ConfigError(
            f"two solutions are needed, and {names[0]!r} is one",
            hint="fib compare BASELINE CANDIDATE; names come before --workload and the like, "
            "which take all values that follow",
        )
    for flag in ("baseline", "candidate"):
        if options[flag] is not None:
            raise ConfigError(
                f"--{flag} {options[flag]!r} is given beside the names {names[0]!r}, {names[1]!r}",
                hint="give the two names, or the two options",
            )
    return {**options, "baseline": names[0], "candidate": names[1]}


_CONFIG = ("device", "seed", "timer", "cache", "executor", "sandbox", "trust", "timeout_seconds")


def _run_contests(
    options: Mapping[str, Any], settings: CompareSettings, results: list[ContestResult]
) -> None:
    """Add the result of each contest as soon as it ends, so that what is done is shown."""
    baseline, candidate = options["baseline"], options["candidate"]
    if baseline is None or candidate is None:
        raise ConfigError(
            "two solutions are needed: BASELINE CANDIDATE, or --baseline NAME and --candidate NAME",
            hint="or name recorded traces with --baseline-traces and --candidate-traces",
        )
    for unused in ("solutions", "force"):
        if options[unused]:
            raise ConfigError(f"--{unused.removesuffix('s')} goes with --baseline-traces")
    try:
        from fib_compare.paired.comparer import Comparer, find_contests
        from flashinfer_bench.bench.config import BenchmarkConfig
        from flashinfer_bench.data import TraceSet

        given = {name: options[name] for name in _CONFIG}
        file = options["config"]
        make = partial(BenchmarkConfig.from_yaml, file) if file else BenchmarkConfig.default
        config = make(**given)
        (root,) = dataset_roots([options["local"]] if options["local"] else None)
        trace_set = TraceSet.from_path(root, on_error="collect")
        filters = options["definitions"] or None, options["workloads"] or ()
        contests = find_contests(trace_set, baseline, candidate, *filters)
        with Comparer(trace_set, config, settings) as comparer, Watch(contests, settings) as watch:
            for result in comparer.run(contests, on_start=watch.started, on_launch=watch.launched):
                results.append(result)
                watch.finished(result)
    except ModuleNotFoundError as error:
        message = "running solutions needs torch; recorded traces do without"
        raise without_torch(error, message) from error


def _recorded(options: Mapping[str, Any], settings: CompareSettings) -> list[ContestResult]:
    from fib_compare.paired.recorded import compare_recorded, read_traces
    from fib_compare.replay.targets import fits

    paths = options["baseline_traces"], options["candidate_traces"]
    if None in paths:
        raise ConfigError("--baseline-traces and --candidate-traces go together")
    if options["local"] is not None:
        raise ConfigError("--local runs solutions; with recorded traces nothing is run")
    if (options["baseline"] is None) != (options["candidate"] is None):
        raise ConfigError("--baseline and --candidate go together")
    if options["solutions"] and options["baseline"] is not None:
        raise ConfigError("--solution compares each with itself; leave out --baseline")
    filters = [options[name] or () for name in ("definitions", "solutions", "workloads")]
    before, after = ([one for one in read_traces(path) if fits(one, *filters)] for path in paths)
    names = (options["baseline"], options["candidate"]) if options["baseline"] else None
    return compare_recorded(before, after, settings, names, force=options["force"])
