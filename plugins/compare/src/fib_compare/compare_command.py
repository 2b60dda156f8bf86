"""``fib compare``: test whether one solution is faster than another, for people and scripts."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from fib_compare.replay_command import Workloads, parse_share, without_torch
from flashinfer_bench.cli import options
from flashinfer_bench.cli import run_options as own
from flashinfer_bench.cli.datasets import open_datasets
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.output import (
    console,
    emit_document,
    printable,
    rounded,
    set_up_logging,
    table,
    talk,
)
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.progress import Progress
    from typing_extensions import Self

    from fib_compare.paired import Answer, CompareSettings, ContestResult
    from fib_compare.paired.result import Contest


COLUMNS = (
    "verdict",
    "definition",
    "workload",
    "baseline_ms",
    "candidate_ms",
    "ratio",
    "low",
    "high",
    "p_value",
    "launches",
    "pairs",
    "seconds",
    "why",
)
_NO_ANSWER = ("too slow", "not recorded")  # ambiguous: more time or samples could decide


class Watch:
    """Writes one line for each result to stderr; a terminal also gets a bar.

    The bar shows the share of the workload's maximum time.
    """

    def __init__(self, contests: Sequence[Contest], settings: CompareSettings) -> None:
        self._total, self._done = len(contests), 0
        self._most = settings.max_seconds
        self._bar: Optional[Progress] = None

    def __enter__(self) -> Self:
        stderr = console(sys.stderr)
        if stderr.is_terminal and not stderr.is_dumb_terminal:
            from rich import progress

            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(bar_width=None),
                progress.TextColumn("{task.fields[launches]} launches"),
                progress.TimeElapsedColumn(),
                console=stderr,
                transient=True,
            )
            self._task = self._bar.add_task("starting", total=self._most, launches=0)
            self._bar.start()
        return self

    def started(self, contest: Contest) -> None:
        """Reset the bar."""
        if self._bar is not None:
            name = printable(f"{contest.definition.name} / {contest.workload.uuid[:8]}")
            label = f"[{self._done + 1}/{self._total}] {name}".replace("[", r"\[")
            self._bar.reset(self._task, description=label, launches=0)

    def launched(self, launches: int, seconds: float) -> None:
        """Advance the bar."""
        if self._bar is not None:
            self._bar.update(self._task, completed=seconds, launches=launches)

    def finished(self, result: ContestResult) -> None:
        """Report the result."""
        self._done += 1
        text = f"{result.definition} / {result.workload}: {_in_words(result)}"
        talk(f"[{self._done}/{self._total}] {printable(text)}")

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _in_words(result: ContestResult) -> str:
    if result.obstacle is not None:
        return f"not compared: {result.obstacle.role} {result.obstacle.kind}"
    comparison = result.comparison
    assert comparison is not None
    ratio = comparison.ratio
    percent = f"{100 * (ratio.estimate - 1):+.2f} %"
    between = f"{100 * (ratio.low - 1):+.2f} to {100 * (ratio.high - 1):+.2f} %"
    return f"{comparison.verdict.value}: {percent} ({between}) in {result.seconds:.1f} s"


def emit_answer(
    results: Sequence[ContestResult], settings: CompareSettings, *, paired: bool, as_json: bool
) -> Answer:
    """Print the answer, with the data on stdout and notes on stderr, and return it."""
    from fib_compare.paired.result import answer

    found = answer(results, min_effect=settings.min_effect, alpha=settings.alpha)
    if as_json:
        emit_document(
            paired=paired,
            min_effect=settings.min_effect,
            alpha=settings.alpha,
            verdict=found.overall.verdict if found.overall is not None else None,
            exit_code=int(exit_code_of(found)),
            overall=_numbers(found.overall),
            comparisons=[_one(result) for result in found.results],
        )
    else:
        title = "Comparison" if paired else "Comparison (unpaired)"
        table(title, COLUMNS, map(_row, found.results))
    _tell(found, paired=paired)
    return found


def exit_code_of(found: Answer) -> ExitCode:
    """Return the exit code of an answer: the worst of all workloads and the overall verdict."""
    verdicts = {verdict.value for verdict in found.verdicts}
    kinds = {obstacle.kind for obstacle in found.obstacles}
    if "slower" in verdicts or kinds - {*_NO_ANSWER, "unavailable"}:
        return ExitCode.FINDINGS
    if "unavailable" in kinds:
        return ExitCode.CAPABILITY
    return ExitCode.AMBIGUOUS if "ambiguous" in verdicts or kinds else ExitCode.OK


def _tell(found: Answer, *, paired: bool) -> None:
    if not paired:
        talk("unpaired: samples of different times; 'fib compare --local' is more reliable")
    for one in found.results:
        if one.obstacle is not None:
            talk(f"{one.definition} / {one.workload}: {one.obstacle.role}: {one.obstacle.message}")
    total = found.overall
    if total is None:
        talk("nothing could be compared")
        return
    ratio = total.ratio
    talk(
        f"overall {total.verdict.value}: ratio {rounded(ratio.estimate)} "
        f"({rounded(ratio.low)} to {rounded(ratio.high)}; above 1 the candidate is slower)"
    )
    if paired and "ambiguous" in {verdict.value for verdict in found.verdicts}:
        talk("ambiguous: try a larger --max-seconds or --min-effect, or a quieter machine")


def _numbers(found: Any) -> Optional[dict[str, Any]]:
    if found is None:
        return None
    ratio = found.ratio
    return {
        "ratio": ratio.estimate,
        "low": ratio.low,
        "high": ratio.high,
        "confidence": ratio.confidence,
        "p_value": found.p_value,
        "verdict": found.verdict,
    }


def _one(result: ContestResult) -> dict[str, Any]:
    return {
        "definition": result.definition,
        "workload": result.workload,
        "baseline": result.baseline,
        "candidate": result.candidate,
        "hardware": result.hardware,
        "timer": result.timer,
        "cache": result.cache,
        **(_numbers(result.comparison) or {}),
        "p_adjusted": result.p_adjusted,
        "p_same": result.comparison.p_same if result.comparison is not None else None,
        "verdict": result.verdict,
        "baseline_ms": result.baseline_ms,
        "candidate_ms": result.candidate_ms,
        "stopped": result.stopped,
        "seconds": result.seconds,
        "obstacle": result.obstacle,
        "notes": result.notes,
        "launches": result.launches,
        "recorded_ms": result.recorded,
    }


def _row(result: ContestResult) -> list[Any]:
    comparison, obstacle = result.comparison, result.obstacle
    why = "; ".join(result.notes)
    if obstacle is not None:
        why = f"{obstacle.role} {obstacle.kind}: {obstacle.message.splitlines()[0]}"
    shown = {
        **_one(result),
        "verdict": result.verdict.value if result.verdict is not None else "not compared",
        "p_value": result.p_adjusted,
        "launches": comparison.launches if comparison is not None else None,
        "pairs": comparison.pairs if comparison is not None else None,
        "why": why,
    }
    return [shown.get(column) for column in COLUMNS]


app = typer.Typer(add_completion=False, rich_markup_mode=None)


Baseline = Annotated[
    Optional[str], options.option("--baseline", metavar="NAME", help="Solution to compare with.")
]
Candidate = Annotated[
    Optional[str],
    options.option("--candidate", metavar="NAME", help="Solution that may be slower."),
]
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
        "--alpha", parser=parse_share, metavar="X", help="Probability of a false alarm: 5% or 0.05."
    ),
]
MaxSeconds = Annotated[
    float,
    typer.Option("--max-seconds", metavar="S", help="Time limit for the launches of a workload."),
]
BaselineTraces = Annotated[
    Optional[Path],
    options.option(
        "--baseline-traces",
        metavar="PATH",
        help="Run nothing; use samples from this dataset or trace file.",
    ),
]
CandidateTraces = Annotated[
    Optional[Path],
    options.option(
        "--candidate-traces", metavar="PATH", help="Compare them with samples from this one."
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Compare traces of other hardware, timers or definitions.")
]


First = Annotated[
    Optional[str],
    typer.Argument(
        metavar="BASELINE",
        show_default=False,
        help="Baseline and candidate, instead of --baseline and --candidate.",
    ),
]
Second = Annotated[
    Optional[str],
    typer.Argument(metavar="CANDIDATE", show_default=False),
]


@app.command("compare", cls=options.GreedyCommand)
def compare(
    ctx: typer.Context,
    first: First = None,
    second: Second = None,
    local: options.OneLocal = None,
    baseline: Baseline = None,
    candidate: Candidate = None,
    definitions: options.Definitions = None,
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
    solutions: options.Solutions = None,
    force: Force = False,
    as_json: options.AsJson = False,
    log_level: options.LogLevel = None,
) -> None:
    """Test whether one solution is faster than another, slower, the same, or ambiguous.

    Calls of both alternate on one device with the same values. Pairs of fresh processes are started
    until the verdict is clear or the time is over. With --baseline-traces and --candidate-traces
    nothing is run: recorded samples are compared, unpaired.

    Exits with 0 if nothing is slower, 1 if something is slower or a solution fails, and 6 if the
    verdict is ambiguous. Nothing is written to the dataset.
    """
    set_up_logging(log_level)
    from fib_compare.paired.comparer import CompareSettings

    given = _named(ctx.params)
    settings = CompareSettings(min_effect=min_effect, alpha=alpha, max_seconds=max_seconds)
    results: list[ContestResult] = []
    paired = baseline_traces is None and candidate_traces is None
    try:
        if paired:
            _run_contests(given, settings, results)
        else:
            results += _recorded(given, settings)
    finally:
        shown = emit_answer(results, settings, paired=paired, as_json=as_json) if results else None
    assert shown is not None, "there is a result for each contest"
    raise typer.Exit(exit_code_of(shown))


def _named(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, with baseline and candidate also where they are positional arguments.

    Raises
    ------
    ConfigError
        If they are given in both ways, or if only one is given.
    """
    names = given["first"], given["second"]
    if names == (None, None):
        return dict(given)
    if None in names:
        raise ConfigError(
            f"two solutions are needed, but only {names[0]!r} is given",
            hint="fib compare BASELINE CANDIDATE; put the names before options such as --workload, "
            "which take all values that follow",
        )
    for flag in ("baseline", "candidate"):
        if given[flag] is not None:
            raise ConfigError(
                f"--{flag} {given[flag]!r} and the names {names[0]!r}, {names[1]!r} are given",
                hint="give either the two names or the two options",
            )
    return {**given, "baseline": names[0], "candidate": names[1]}


_CONFIG = ("device", "seed", "timer", "cache", "executor", "sandbox", "trust", "timeout_seconds")


def _run_contests(
    given: Mapping[str, Any], settings: CompareSettings, results: list[ContestResult]
) -> None:
    """Add the result of each contest as soon as it ends, so that an interrupted run shows them."""
    baseline, candidate = given["baseline"], given["candidate"]
    if baseline is None or candidate is None:
        raise ConfigError(
            "two solutions are needed: BASELINE CANDIDATE, or --baseline NAME and --candidate NAME",
            hint="or give recorded traces with --baseline-traces and --candidate-traces",
        )
    for unused in ("solutions", "force"):
        if given[unused]:
            raise ConfigError(f"--{unused.removesuffix('s')} requires --baseline-traces")
    try:
        from fib_compare.paired.comparer import Comparer, find_contests
        from flashinfer_bench.bench.config import BenchmarkConfig

        changed = {name: given[name] for name in _CONFIG}
        file = given["config"]
        make = partial(BenchmarkConfig.from_yaml, file) if file else BenchmarkConfig.default
        config = make(**changed)
        trace_set = open_datasets([given["local"]] if given["local"] else None).trace_set
        filters = given["definitions"] or None, given["workloads"] or ()
        contests = find_contests(trace_set, baseline, candidate, *filters)
        with Comparer(trace_set, config, settings) as comparer, Watch(contests, settings) as watch:
            for result in comparer.run(contests, on_start=watch.started, on_launch=watch.launched):
                results.append(result)
                watch.finished(result)
    except ModuleNotFoundError as error:
        message = "running solutions requires torch; comparing recorded traces does not"
        raise without_torch(error, message) from error


def _recorded(given: Mapping[str, Any], settings: CompareSettings) -> list[ContestResult]:
    from fib_compare.paired.result import compare_recorded, read_traces
    from fib_compare.targets import fits

    paths = given["baseline_traces"], given["candidate_traces"]
    if None in paths:
        raise ConfigError("give both --baseline-traces and --candidate-traces")
    if given["local"] is not None:
        raise ConfigError("--local cannot be used with recorded traces, since nothing is run")
    if (given["baseline"] is None) != (given["candidate"] is None):
        raise ConfigError("give both --baseline and --candidate")
    if given["solutions"] and given["baseline"] is not None:
        raise ConfigError("--solution compares each solution with itself; leave out --baseline")
    filters = [given[name] or () for name in ("definitions", "solutions", "workloads")]
    before, after = ([one for one in read_traces(path) if fits(one, *filters)] for path in paths)
    names = (given["baseline"], given["candidate"]) if given["baseline"] else None
    return compare_recorded(before, after, settings, names, force=given["force"])
