"""``fib build``: build the solutions of a dataset without evaluating them."""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from flashinfer_bench.cli import options, output, run_options
from flashinfer_bench.cli.datasets import open_datasets
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import GreedyCommand, option

if TYPE_CHECKING:
    from flashinfer_bench.bench import BuildOutcome

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Jobs = Annotated[
    Optional[int], option("--jobs", "-j", metavar="N", help="Parallel builds. Default: cores.")
]
Device = Annotated[
    Optional[str],
    option(
        "--device",
        metavar="DEVICE",
        callback=run_options.known_device,
        help="Build for cpu or cuda, even without a GPU. Default: cuda if there is a GPU.",
    ),
]
Timeout = Annotated[
    Optional[float],
    option(
        "--timeout",
        metavar="S",
        help="Time limit in seconds, for compiling and for loading. Default: 300.",
    ),
]
CompileOnly = Annotated[
    bool,
    typer.Option("--compile-only", help="Fill the cache; do not load or call the solutions."),
]
ShowLog = Annotated[
    bool, typer.Option("--log", help="Show the complete compiler output of failed builds.")
]


@app.command("build", cls=GreedyCommand)
def build(
    local: options.Local = None,
    hub: options.Hub = None,
    definitions: options.Definitions = None,
    solutions: options.Solutions = None,
    jobs: Jobs = None,
    device: Device = None,
    timeout_seconds: Timeout = None,
    executor: run_options.Executor = None,
    compile_only: CompileOnly = False,
    show_log: ShowLog = False,
    as_json: options.AsJson = False,
    log_level: options.LogLevel = None,
) -> None:
    """Build the solutions of a dataset in separate processes, several at a time.

    Compiled solutions stay in the cache, so that later runs start sooner. Exits with 1 if a build
    fails, and with 4 if this machine lacks something that a solution needs. Ctrl-C ends the
    compilers and shows the finished builds.
    """
    from fib_datasets.build import BuildRun
    from flashinfer_bench.bench import BenchmarkConfig
    from flashinfer_bench.cli.progress import make_progress
    from flashinfer_bench.plugins import default_catalog

    level = output.set_up_logging(log_level)
    config = BenchmarkConfig.default(
        definitions=definitions or None,
        solutions=solutions or None,
        device=device,
        timeout_seconds=timeout_seconds,
        build_jobs=jobs,
        executor=executor,
    )
    opened = open_datasets(local, hub)
    with redirect_stdout(sys.stderr):  # plugins may print
        run = BuildRun(
            opened.trace_set,
            config,
            default_catalog(),
            compile_only=compile_only,
            observers=make_progress(quiet=level in ("ERROR", "CRITICAL")),
        )
    begin, interrupted = time.monotonic(), False
    try:
        run.run()
    except KeyboardInterrupt:
        interrupted = True
    finally:
        outcomes = sorted(run.outcomes, key=lambda one: (one.definition, one.solution))
        if as_json:
            output.emit_document(
                interrupted=interrupted,
                builds=[output.document_of(_COLUMNS, outcome) for outcome in outcomes],
                left_out=[solution.name for solution in run.left_out],
            )
        elif outcomes:
            output.table("Builds", _COLUMNS, outcomes)
        states = Counter(outcome.state for outcome in outcomes)
        output.tell_counts("builds", states, begin, interrupted=interrupted)
        if run.left_out:
            output.talk(f"left out {len(run.left_out):,} solutions in languages without a compiler")
        if not as_json:
            _tell_reasons(outcomes)
        for outcome in outcomes if show_log else ():
            if outcome.error is not None:
                output.talk(f"--- {outcome.solution}: {outcome.reason}\n{outcome.log}")
    if interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if "failed" in states or opened.errors:
        raise typer.Exit(ExitCode.FINDINGS)
    lacking = "unavailable" in states or set(states) == {"other device"}
    raise typer.Exit(ExitCode.CAPABILITY if lacking else ExitCode.OK)


_ONLY_JSON = {"people": False, "programs": False, "json": True}
_COLUMNS = (
    output.Column("definition", "definition", **_ONLY_JSON),
    output.Column("solution", "solution"),
    output.Column("language", "language"),
    output.Column("binding", "binding", **_ONLY_JSON),
    output.Column("builder", "builder"),
    output.Column("result", "state"),
    output.Column("seconds", "seconds", **_ONLY_JSON),
    output.Column(
        "seconds", lambda one: round(one.seconds, 3) if one.seconds else None, json=False
    ),
    # On a terminal, messages are too long for a column and come below the table.
    output.Column(
        "detail",
        lambda one: _without_name(one.reason.partition("\n")[0], one.solution),
        people=False,
        json=False,
    ),
    output.Column("reason", "reason", **_ONLY_JSON),
    output.Column("log", lambda one: one.log if one.error is not None else "", **_ONLY_JSON),
)


def _tell_reasons(outcomes: list[BuildOutcome]) -> None:
    """Report why builds failed, with hints; equal reasons share a line."""
    groups: dict[tuple[str, str], list[str]] = {}
    for outcome in outcomes:
        if outcome.reason:
            reason = _without_name(outcome.reason, outcome.solution)
            groups.setdefault((outcome.state, reason), []).append(outcome.solution)
    for (state, reason), names in groups.items():
        who = names[0] if len(names) == 1 else f"{len(names)} solutions"
        first, *others = reason.splitlines()
        output.talk(output.printable(f"{state}: {who}: {first}"))
        for line in others:
            if line.lstrip().startswith("hint:"):
                output.talk("  " + output.printable(line.strip()))


def _without_name(reason: str, solution: str) -> str:
    return reason.removeprefix(f"solution {solution!r}: ").replace(f" (solution {solution!r})", "")
