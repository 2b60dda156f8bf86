"""``fib run``: benchmark the solutions of datasets, and show the results."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import geometric_mean
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from flashinfer_bench import env
from flashinfer_bench.bench.observers import RunObserver
from flashinfer_bench.cli import options, output
from flashinfer_bench.cli.datasets import (
    OpenedDataset,
    dataset_roots,
    open_datasets,
    require_writable,
)
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import option
from flashinfer_bench.cli.progress import make_progress
from flashinfer_bench.cli.run_options import STOP_RULES, ConfigFile, RunCommand, with_settings
from flashinfer_bench.errors import CapabilityError, ConfigError, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.bench import BenchmarkConfig, Skipped
    from flashinfer_bench.cli.run_options import RunAddition
    from flashinfer_bench.data import Trace
    from flashinfer_bench.data.run_source import RunRow

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_SKIPS_SHOWN = 5


@app.command("run", cls=RunCommand, epilog=STOP_RULES)
@with_settings
def run(
    ctx: typer.Context,
    local: options.Local = None,
    hub: options.Hub = None,
    definitions: options.Definitions = None,
    solutions: options.Solutions = None,
    op_types: options.OpTypes = None,
    authors: options.Authors = None,
    workloads: options.Workloads = None,
    *,
    config: ConfigFile = None,
    save_results: Annotated[
        Optional[bool],
        option(
            "--save-results/--no-save-results",
            help="Write traces into the dataset. Default: yes, unless --hub alone names it.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        option("--resume", help="Skip evaluations with a trace; retry crashes and timeouts."),
    ] = False,
    use_isolated_runner: Annotated[
        bool, option("--use-isolated-runner", help="Use a new process for every evaluation.")
    ] = False,
    no_profile_baseline: Annotated[
        bool, option("--no-profile-baseline", help="Do not time references; no speed-ups.")
    ] = False,
    strict: Annotated[
        bool, option("--strict", help="Exit with 1 if any evaluation does not pass.")
    ] = False,
    as_json: options.AsJson = False,
    log_level: Annotated[Optional[str], options.log_level("INFO")] = None,
    **settings: Any,
) -> None:
    """Benchmark the solutions of a dataset on its workloads, and record a trace of each.

    A solution that fails is a result, not an error: the exit code is 0 if everything selected was
    evaluated and, under --strict, passed. It is 1 if records are invalid or references fail, and 4
    if this machine cannot build a solution. After Ctrl-C, --resume continues the run.
    """
    from flashinfer_bench.bench import BenchmarkConfig

    if hub and save_results is None and not local:
        save_results = False
        output.talk("note: traces are not saved: --hub names a dataset in a shared cache")
        output.talk("hint: to save them, copy the dataset and name its folder with --local")
    elif hub and save_results is not False:
        raise ConfigError(
            "--hub names a dataset in a shared cache, where traces cannot be saved",
            hint="add --no-save-results, or copy the dataset and name its folder with --local",
        )
    settings.update(
        # A repeatable option that is not given is an empty list, which would select nothing.
        definitions=definitions or None,
        solutions=solutions or None,
        log_level=log_level or env.log_level(),
        use_isolated_runner=use_isolated_runner or None,
        profile_baseline=False if no_profile_baseline else None,
    )
    if config is not None:
        layered = BenchmarkConfig.from_yaml(config, **settings)
    else:
        layered = BenchmarkConfig.default(**settings)
    level = output.set_up_logging(log_level, default=layered.log_level)
    session = RunSession(layered, save=save_results is not False, resume=resume, level=level)
    session.additions = ctx.obj
    opened = [open_datasets([root]) for root in dataset_roots(local, hub)]
    try:
        for dataset in opened:
            session.run(dataset, op_types=op_types, authors=authors, workloads=workloads)
    finally:
        session.show(as_json=as_json)
    if session.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    raise typer.Exit(session.exit_code(strict=strict))


class DatasetRun(RunObserver):
    """The results of one dataset, kept so that they can be shown after an interrupted run."""

    def __init__(self, opened: OpenedDataset) -> None:
        self.opened = opened
        self.total: Optional[int] = None  # unknown before the run has started
        self.traces: list[Trace] = []
        self.skips: list[Skipped] = []

    def started(self, total: int) -> None:
        """Keep the number of evaluations."""
        self.total = total

    def evaluation_finished(self, trace: Trace) -> None:
        """Keep the trace."""
        self.traces.append(trace)

    def skipped(self, skipped: Skipped) -> None:
        """Keep the reason."""
        self.skips.append(skipped)

    def statuses(self) -> Counter[str]:
        """Count the evaluations by status."""
        return Counter(t.evaluation.status.value for t in self.traces if t.evaluation is not None)

    def results(self) -> list[SolutionResult]:
        """Summarise this run by definition and solution, the best first."""
        from flashinfer_bench.data import TraceSet

        traces: dict[str, list[Trace]] = defaultdict(list)
        for trace in self.traces:
            traces[trace.definition].append(trace)
        groups: dict[tuple[str, str], list[RunRow]] = defaultdict(list)
        for row in TraceSet(traces=traces).run_rows():
            groups[row.definition, row.solution].append(row)
        solutions = self.opened.trace_set.solutions
        authors = {one.name: one.author for group in solutions.values() for one in group}
        found = (SolutionResult.of(authors.get(name, ""), of) for (_, name), of in groups.items())
        return sorted(found, key=SolutionResult.order)


@dataclass(frozen=True)
class SolutionResult:
    """Results of a solution in one run; means are geometric, over workloads that passed."""

    definition: str
    solution: str
    author: str
    workloads: int
    passed: int
    statuses: dict[str, int]
    disputed: int
    loose: int
    mean_latency_ms: Optional[float]
    speedup: Optional[float]

    def order(self) -> tuple[Any, ...]:
        """Return the key that sorts the best of a definition first."""
        mean = self.mean_latency_ms
        failed = self.workloads - self.passed
        return (self.definition, failed, math.inf if mean is None else mean, self.solution)

    @classmethod
    def of(cls, author: str, rows: Sequence[RunRow]) -> SolutionResult:
        """Summarise the evaluations of one solution."""
        passed = [row for row in rows if row.passed]
        return cls(
            rows[0].definition,
            rows[0].solution,
            author,
            len(rows),
            len(passed),
            dict(Counter(row.status.value for row in rows)),
            sum(row.disputed for row in passed),
            sum(row.loose for row in passed),
            _mean([row.latency_ms for row in passed if row.latency_ms is not None]),
            _mean([row.speedup for row in passed if row.speedup is not None]),
        )


def _mean(values: Sequence[float]) -> Optional[float]:
    return geometric_mean(values) if values and all(0 < one < math.inf for one in values) else None


class RunSession:
    """Runs datasets one after the other with the same settings.

    Parameters
    ----------
    config : BenchmarkConfig
        The settings.
    save : bool
        Whether traces are written.
    resume : bool
        Whether to skip evaluations that earlier traces settle.
    level : str
        Log level.

    Attributes
    ----------
    additions : sequence of RunAddition
        Additions of plugins.
    """

    additions: Sequence[RunAddition] = ()

    def __init__(self, config: BenchmarkConfig, *, save: bool, resume: bool, level: str) -> None:
        self._config = config
        self._save = save
        self._resume = resume
        self._level = level
        self._begin = time.monotonic()
        self.runs: list[DatasetRun] = []
        self.interrupted = False

    def run(self, opened: OpenedDataset, **filters: Optional[Sequence[str]]) -> None:
        """Benchmark one dataset, unless the user has interrupted the session.

        Parameters
        ----------
        opened : OpenedDataset
            The dataset.
        **filters
            Further fields of `Selection`; definitions and solutions come from the configuration.

        Raises
        ------
        SelectionError
            If a filter names something unknown, or leaves nothing to do.
        StorageError
            If a trace cannot be written.
        CapabilityError
            If torch is not installed.
        """
        if self.interrupted:
            return
        from flashinfer_bench.bench import Benchmark
        from flashinfer_bench.data.selection import Selection

        config = self._config
        names = {"definitions": config.definitions, "solutions": config.solutions}
        given = {name: tuple(one) for name, one in {**names, **filters}.items() if one}
        chosen = Selection(**given).narrow(opened.trace_set)
        for addition in self.additions:
            chosen = addition.choose(chosen)
        # These filters have been applied; an empty list still selects nothing.
        config = config.model_copy(update={name: one and None for name, one in names.items()})
        if self._save:
            hint = "use --no-save-results to run without recording traces"
            require_writable(opened.trace_set.traces_path, hint)
        current = DatasetRun(opened)
        progress = make_progress(quiet=self._level not in ("DEBUG", "INFO"))
        observers = [current, *progress, *self.additions]
        with Benchmark(chosen, config, self._level, observers=observers) as benchmark:
            if self._level != "DEBUG":  # progress and summary show all evaluations and skips
                logging.getLogger("flashinfer_bench.bench.benchmark").setLevel(logging.ERROR)
            self.runs.append(current)
            try:
                resume = self._resume or any(one.resume for one in self.additions)
                benchmark.run_all(dump_traces=self._save, resume=resume)
            except KeyboardInterrupt:
                self.interrupted = True
            except (ModuleNotFoundError, CapabilityError) as error:
                if find_spec("torch") is not None:
                    raise
                # Without torch, other things are reported missing first.
                hint = "pip install torch numpy safetensors (reports do not need them)"
                raise CapabilityError("running a benchmark needs torch", hint=hint) from error
            except StorageError as error:
                with suppress(StorageError):  # the failure may have been temporary
                    benchmark.flush()
                hint = "saved traces are kept; fix this, then continue with 'fib run --resume'"
                raise StorageError(f"the run stopped: {error.message}", hint=hint) from error

    def show(self, *, as_json: bool) -> None:
        """Print the results so far: a table or JSON to stdout, a summary to stderr."""
        self.runs = [one for one in self.runs if one.total is not None]
        if not self.runs:
            return
        if as_json:
            datasets = [
                {
                    "root": one.opened.trace_set.root,
                    "saved": self._save,
                    "planned": one.total,
                    "evaluations": len(one.traces),
                    "statuses": dict(one.statuses()),
                    "results": one.results(),
                    "skipped": one.skips,
                }
                for one in self.runs
            ]
            output.emit_document(interrupted=self.interrupted, datasets=datasets)
        elif rows := [row for one in self.runs for row in one.results()]:
            output.table("Results", _COLUMNS, rows)
        self._tell_summary()
        for addition in self.additions:
            addition.sum_up()

    def exit_code(self, *, strict: bool) -> ExitCode:
        """Return the exit code of the session.

        Parameters
        ----------
        strict : bool
            Whether a solution that does not pass counts as a finding.
        """
        kinds = {skip.kind for one in self.runs for skip in one.skips}
        if self._resume or any(one.total for one in self.runs):
            kinds.discard("device")  # solutions for other devices are not part of this run
        failed = any(not t.is_successful() for one in self.runs for t in one.traces)
        invalid = any(one.opened.errors for one in self.runs)
        if kinds - {"capability", "device"} or (strict and failed) or invalid:
            return ExitCode.FINDINGS
        return ExitCode.CAPABILITY if kinds else ExitCode.OK

    def _tell_summary(self) -> None:
        statuses: Counter[str] = Counter()
        for one in self.runs:
            statuses += one.statuses()
        output.tell_counts("evaluations", statuses, self._begin, interrupted=self.interrupted)
        if self.interrupted and self._save:
            output.talk("hint: continue with 'fib run --resume'")
        _tell_skips([skip for one in self.runs for skip in one.skips])
        for one in self.runs:
            if one.traces:
                folder = f"written to {one.opened.trace_set.traces_path}"
                output.talk(f"traces {folder if self._save else 'not written'}")
            elif self._resume and not one.total and not one.skips:
                output.talk(f"{one.opened.name}: nothing to do: all results are recorded already")


def _status(score: SolutionResult) -> str:
    doubts = {"disputed": score.disputed, "loose tolerance": score.loose}
    told = {**score.statuses, **{name: count for name, count in doubts.items() if count}}
    return ", ".join(
        status if count == score.workloads else f"{count} {status}"
        for status, count in told.items()
    )


_COLUMNS = (
    *(output.Column(name, name) for name in ("definition", "solution")),
    output.Column("author", "author", people=False),
    output.Column("workloads", "workloads"),
    output.Column("status", _status),
    output.Column("geomean_ms", "mean_latency_ms"),
    output.Column("speedup", "speedup"),
)


def _tell_skips(skips: list[Skipped]) -> None:
    if not skips:
        return
    output.talk(f"skipped {sum(skip.count for skip in skips):,} evaluations:")
    elsewhere: dict[str, list[Skipped]] = defaultdict(list)
    others: dict[str, list[Skipped]] = defaultdict(list)
    for skip in skips:
        if skip.kind == "device":
            elsewhere[skip.reason].append(skip)
        else:
            reason = (skip.reason or skip.kind).partition("\n")[0]
            others[reason.replace(f" (solution {skip.solution!r})", "")].append(skip)
    for reason, alike in elsewhere.items():
        of = f"{len(alike)} solution{'s' if len(alike) > 1 else ''}"
        output.talk(f"  {sum(one.count for one in alike)} x {of}: {output.printable(reason)}")
    for reason, alike in list(others.items())[:_SKIPS_SHOWN]:
        names = {f"{one.definition} / {one.solution}": None for one in alike}
        told = f"{next(iter(names))}{' and others' if len(names) > 1 else ''}: {reason}"
        output.talk(output.printable(f"  {sum(one.count for one in alike)} x {told}"))
    if len(others) > _SKIPS_SHOWN:
        output.talk(f"  … and {len(others) - _SKIPS_SHOWN} more reasons")
