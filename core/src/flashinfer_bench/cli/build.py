"""``fib build``: build the solutions of a dataset, several at a time, and evaluate none."""

# ruff: noqa: TC001 - typer reads the annotations at run time

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from flashinfer_bench.cli import run_options as of_run
from flashinfer_bench.cli.datasets import open_datasets
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.greedy import GreedyCommand
from flashinfer_bench.cli.logs import set_up_logging
from flashinfer_bench.cli.options import AsJson, Definitions, Hub, Local, LogLevel, Solutions
from flashinfer_bench.cli.output import emit_json, printable, table, talk

if TYPE_CHECKING:
    from flashinfer_bench.bench import BuildOutcome, BuildRun
    from flashinfer_bench.cli.datasets import OpenedDataset

SCHEMA_VERSION = 1
COLUMNS = ("solution", "language", "builder", "result", "seconds", "detail")

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Jobs = Annotated[
    Optional[int],
    typer.Option(
        "--jobs", "-j", metavar="N", show_default=False, help="Builds at once. Default: cores."
    ),
]
Device = Annotated[
    Optional[str],
    typer.Option(
        "--device",
        metavar="DEVICE",
        show_default=False,
        help="Build for cpu, or for cuda, which need not be there. Default: cuda if it is.",
    ),
]
Timeout = Annotated[
    Optional[float],
    typer.Option(
        "--timeout",
        metavar="S",
        show_default=False,
        help="Seconds that compiling, and then loading, may take. Default: 300.",
    ),
]
CompileOnly = Annotated[
    bool,
    typer.Option("--compile-only", help="Fill the cache; do not load or call the solutions."),
]
ShowLog = Annotated[
    bool, typer.Option("--log", help="Show all that the compilers of failed builds said.")
]


@app.command("build", cls=GreedyCommand)
def build(
    local: Local = None,
    hub: Hub = None,
    definitions: Definitions = None,
    solutions: Solutions = None,
    jobs: Jobs = None,
    device: Device = None,
    timeout_seconds: Timeout = None,
    executor: of_run.Executor = None,
    compile_only: CompileOnly = False,
    show_log: ShowLog = False,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Build the solutions of a dataset in processes of their own, several at a time.

    What is compiled stays in the cache, so that a run begins sooner. Exits with 1 if a build fails,
    and with 4 if this machine lacks something for one; Ctrl-C ends the compilers and shows what is
    done.
    """
    from flashinfer_bench.bench import BenchmarkConfig, BuildRun
    from flashinfer_bench.cli.progress import make_progress
    from flashinfer_bench.plugins import default_catalog

    level = set_up_logging(log_level)
    config = BenchmarkConfig.default(
        definitions=definitions or None,
        solutions=solutions or None,
        device=device,
        timeout_seconds=timeout_seconds,
        build_jobs=jobs,
        executor=executor,
    )
    opened = open_datasets(local, hub)
    with redirect_stdout(sys.stderr):  # for what a plugin prints
        run = BuildRun(
            opened.trace_set,
            config,
            default_catalog(),
            compile_only=compile_only,
            observers=make_progress(quiet=level in ("ERROR", "CRITICAL")),
        )
    _Session(run, opened).carry_out(as_json=as_json, show_log=show_log)


class _Session:
    """One command: the builds, what is shown of them, and the exit code."""

    def __init__(self, run: BuildRun, opened: OpenedDataset) -> None:
        self._run = run
        self._opened = opened
        self._begin = time.monotonic()
        self._interrupted = False

    def carry_out(self, *, as_json: bool, show_log: bool) -> None:
        try:
            self._run.run()
        except KeyboardInterrupt:
            self._interrupted = True
        finally:
            self._show(as_json=as_json, show_log=show_log)
        raise typer.Exit(self._exit_code())

    def _show(self, *, as_json: bool, show_log: bool) -> None:
        outcomes = sorted(self._run.outcomes, key=lambda one: (one.definition, one.solution))
        if as_json:
            emit_json(self._document(outcomes))
        elif outcomes:
            # On a terminal a message in a column would be a tower of words; it comes below.
            shown = len(COLUMNS) - sys.stdout.isatty()
            table("Builds", COLUMNS[:shown], (_row(outcome)[:shown] for outcome in outcomes))
        self._tell_summary(outcomes)
        if not as_json:
            _tell_reasons(outcomes)
        for outcome in outcomes if show_log else ():
            if outcome.error is not None:
                talk(f"--- {outcome.solution}: {outcome.reason}\n{outcome.log}")

    def _tell_summary(self, outcomes: list[BuildOutcome]) -> None:
        states = Counter(outcome.state for outcome in outcomes)
        counts = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
        begun = "interrupted after " if self._interrupted else ""
        seconds = time.monotonic() - self._begin
        talk(f"{begun}{len(outcomes):,} builds in {seconds:.1f} s: {counts or 'none'}")
        if self._run.left_out:
            talk(f"left out {len(self._run.left_out):,} solutions that are not compiled")

    def _document(self, outcomes: list[BuildOutcome]) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "interrupted": self._interrupted,
            "builds": [
                {
                    "definition": outcome.definition,
                    "solution": outcome.solution,
                    "language": outcome.language,
                    "binding": outcome.binding,
                    "builder": outcome.builder,
                    "result": outcome.state,
                    "seconds": outcome.seconds,
                    "reason": outcome.reason,
                    "log": outcome.log if outcome.error is not None else "",
                }
                for outcome in outcomes
            ],
            "left_out": [solution.name for solution in self._run.left_out],
        }

    def _exit_code(self) -> ExitCode:
        if self._interrupted:
            return ExitCode.INTERRUPTED
        states = {outcome.state for outcome in self._run.outcomes}
        if "failed" in states or self._opened.errors:
            return ExitCode.FINDINGS
        lacking = "unavailable" in states or states == {"other device"}
        return ExitCode.CAPABILITY if lacking else ExitCode.OK


def _tell_reasons(outcomes: list[BuildOutcome]) -> None:
    """Say why builds failed, hints included; those that share a reason share a line."""
    groups: dict[tuple[str, str], list[str]] = {}
    for outcome in outcomes:
        if outcome.reason:
            reason = _without_name(outcome.reason, outcome.solution)
            groups.setdefault((outcome.state, reason), []).append(outcome.solution)
    for (state, reason), names in groups.items():
        who = names[0] if len(names) == 1 else f"{len(names)} solutions"
        first, *others = reason.splitlines()
        talk(printable(f"{state}: {who}: {first}"))
        hints = [line.strip() for line in others if line.lstrip().startswith("hint:")]
        for line in hints:
            talk("  " + printable(line))


def _without_name(reason: str, solution: str) -> str:
    return reason.removeprefix(f"solution {solution!r}: ").replace(f" (solution {solution!r})", "")


def _row(outcome: BuildOutcome) -> tuple[Any, ...]:
    detail = (outcome.reason.splitlines() or [""])[0]
    return (
        outcome.solution,
        outcome.language,
        outcome.builder,
        outcome.state,
        round(outcome.seconds, 3) if outcome.seconds else None,
        _without_name(detail, outcome.solution),
    )
