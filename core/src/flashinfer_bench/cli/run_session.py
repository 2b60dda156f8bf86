"""One ``fib run``: benchmark each dataset in turn, then show what came of all of them."""

from __future__ import annotations

import logging
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.output import emit_json, printable, table, talk
from flashinfer_bench.cli.progress import RunCollector, make_progress
from flashinfer_bench.errors import CapabilityError, StorageError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flashinfer_bench.bench import Benchmark, BenchmarkConfig, Skipped
    from flashinfer_bench.cli.datasets import OpenedDataset
    from flashinfer_bench.data import TraceSet
    from flashinfer_bench.report import SolutionScore

SCHEMA_VERSION = 1
_SKIPS_SHOWN = 5


@dataclass
class DatasetRun:
    """What came of one dataset."""

    opened: OpenedDataset
    collector: RunCollector = field(default_factory=RunCollector)

    @property
    def traces_folder(self) -> str:
        """Where the traces are."""
        return str(self.opened.trace_set.traces_path)

    def scores(self) -> list[SolutionScore]:
        """Sum up the evaluations of this run."""
        from flashinfer_bench.data import TraceSet
        from flashinfer_bench.report import collect_results, latest_results, score_solutions

        source = self.opened.trace_set
        traces: dict[str, list[Any]] = {}
        for trace in self.collector.traces:
            traces.setdefault(trace.definition, []).append(trace)
        results = TraceSet(
            definitions=source.definitions, solutions=source.solutions, traces=traces
        )
        return score_solutions(latest_results(collect_results(results)))


class RunSession:
    """Runs datasets one after the other with the same settings.

    Parameters
    ----------
    config : BenchmarkConfig
        The settings.
    save : bool
        Whether traces are written.
    resume : bool
        Whether what earlier traces decide is left out.
    level : str
        Level of logging.
    """

    def __init__(self, config: BenchmarkConfig, *, save: bool, resume: bool, level: str) -> None:
        self._config = config
        self._save = save
        self._resume = resume
        self._level = level
        self._begin = time.monotonic()
        self.runs: list[DatasetRun] = []
        self.interrupted = False

    def run_all(
        self, opened: Iterable[OpenedDataset], op_types: tuple[str, ...] = (), *, as_json: bool
    ) -> None:
        """Benchmark one dataset after the other, and print what has come of it; as of `run`."""
        try:
            for dataset in opened:
                self.run(dataset, op_types)
        finally:
            self.show(as_json=as_json)

    def run(self, opened: OpenedDataset, op_types: tuple[str, ...] = ()) -> None:
        """Benchmark one dataset, unless the user has asked to stop.

        Parameters
        ----------
        opened : OpenedDataset
            The dataset.
        op_types : tuple of str
            Restricts the run to definitions of these types.

        Raises
        ------
        SelectionError
            If a filter names something unknown, or leaves nothing to do.
        StorageError
            If a trace cannot be written.
        CapabilityError
            If there is no torch.
        """
        if self.interrupted:
            return
        from flashinfer_bench.bench import Benchmark

        config = _with_op_types(self._config, opened.trace_set, op_types)
        current = DatasetRun(opened)
        observers = [current.collector, *make_progress(quiet=self._level not in ("DEBUG", "INFO"))]
        with Benchmark(opened.trace_set, config, self._level, observers=observers) as benchmark:
            if self._level != "DEBUG":  # progress and summary tell of each evaluation and skip
                logging.getLogger("flashinfer_bench.bench.recorder").setLevel(logging.ERROR)
            self.runs.append(current)
            self._carry_out(benchmark)

    def _carry_out(self, benchmark: Benchmark) -> None:
        try:
            benchmark.run_all(dump_traces=self._save, resume=self._resume)
        except KeyboardInterrupt:
            self.interrupted = True
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise _no_torch() from error
        except CapabilityError as error:
            if find_spec("torch") is not None:
                raise
            raise _no_torch() from error  # which is behind whatever else was found to be missing
        except StorageError as error:
            with suppress(StorageError):  # it may have been a matter of the moment
                benchmark.flush()
            raise StorageError(
                f"the run stopped: {error.message}",
                hint="nothing is lost; once it can be written again, 'fib run --resume' goes on",
            ) from error

    def show(self, *, as_json: bool) -> None:
        """Print the results so far: the table or document to stdout, a summary to stderr."""
        self.runs = [one for one in self.runs if one.collector.total is not None]
        if not self.runs:
            return
        if as_json:
            emit_json(self._document())
        else:
            rows = [_row(score) for one in self.runs for score in one.scores()]
            if rows:
                table("Results", _COLUMNS, rows)
        self._tell_summary()

    def exit_code(self, *, strict: bool) -> ExitCode:
        """Return the exit code of the session.

        Parameters
        ----------
        strict : bool
            Whether a solution that does not pass counts.
        """
        kinds = {skip.kind for one in self.runs for skip in one.collector.skips}
        if self._resume or any(one.collector.total for one in self.runs):
            kinds.discard("device")  # what is for another device is no part of this run
        failed = any(not t.is_successful() for one in self.runs for t in one.collector.traces)
        invalid = any(one.opened.errors for one in self.runs)
        if kinds - {"capability", "device"} or (strict and failed) or invalid:
            return ExitCode.FINDINGS
        return ExitCode.CAPABILITY if kinds else ExitCode.OK

    def _tell_summary(self) -> None:
        statuses: Counter[str] = Counter()
        for one in self.runs:
            statuses += one.collector.statuses()
        counts = ", ".join(f"{count:,} {status}" for status, count in statuses.most_common())
        begun = "interrupted after " if self.interrupted else ""
        seconds = time.monotonic() - self._begin
        talk(
            f"{begun}{sum(statuses.values()):,} evaluations in {seconds:.1f} s: {counts or 'none'}"
        )
        _tell_skips([skip for one in self.runs for skip in one.collector.skips])
        for one in self.runs:
            self._tell_place(one)

    def _tell_place(self, one: DatasetRun) -> None:
        if not one.collector.traces:
            if self._resume and not one.collector.total:
                talk(f"{one.opened.name}: earlier traces decide everything; nothing was left to do")
        elif self._save:
            talk(f"traces written to {one.traces_folder}")
        else:
            talk("traces not written (--no-save-results)")

    def _document(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "interrupted": self.interrupted,
            "datasets": [
                {
                    "root": one.opened.trace_set.root,
                    "saved": self._save,
                    "planned": one.collector.total,
                    "evaluations": len(one.collector.traces),
                    "statuses": dict(one.collector.statuses()),
                    "results": one.scores(),
                    "skipped": one.collector.skips,
                }
                for one in self.runs
            ],
        }


def _no_torch() -> CapabilityError:
    hint = "pip install 'flashinfer-bench-core[torch]'; reports and validation do without"
    return CapabilityError("running a benchmark needs torch", hint=hint)


_COLUMNS = (
    "definition",
    "solution",
    "author",
    "workloads",
    "outcome",
    "latency_ms",
    "speedup",
)


def _row(score: SolutionScore) -> tuple[Any, ...]:
    outcome = ", ".join(
        status if count == score.workloads else f"{count} {status}"
        for status, count in score.statuses.items()
    )
    return (
        score.definition,
        score.solution,
        score.author,
        score.workloads,
        outcome,
        score.median_latency_ms,
        score.speedup,
    )


def _tell_skips(skips: list[Skipped]) -> None:
    if not skips:
        return
    talk(f"skipped {sum(skip.count for skip in skips):,} evaluations:")
    elsewhere = Counter(skip.reason for skip in skips if skip.kind == "device")
    for reason, count in elsewhere.items():
        talk(f"  {count} solution{'s' if count > 1 else ''}: {printable(reason)}")
    others = [skip for skip in skips if skip.kind != "device"]
    for skip in others[:_SKIPS_SHOWN]:
        first_line = skip.reason.splitlines()[0] if skip.reason else skip.kind
        talk("  " + printable(f"{skip.definition} / {skip.solution}: {first_line}"))
    if len(others) > _SKIPS_SHOWN:
        talk(f"  … and {len(others) - _SKIPS_SHOWN} more")


def _with_op_types(
    config: BenchmarkConfig, trace_set: TraceSet, op_types: tuple[str, ...]
) -> BenchmarkConfig:
    """Turn a choice of op types into a choice of definitions."""
    if not op_types:
        return config
    known = {definition.op_type for definition in trace_set.definitions.values()}
    unknown = tuple(name for name in op_types if name not in known)
    if unknown:
        hint = f"there are: {', '.join(sorted(known))}"
        raise UnknownNameError(f"no op_type is called {unknown[0]!r}", hint=hint, unknown=unknown)
    names = [
        name
        for name, definition in trace_set.definitions.items()
        if definition.op_type in op_types
        and (config.definitions is None or name in config.definitions)
    ]
    return config.model_copy(update={"definitions": names})
