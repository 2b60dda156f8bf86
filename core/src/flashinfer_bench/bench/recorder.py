"""What happens while a plan is carried out: traces stored, skips noted, observers told."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.bench.judge.evaluate import NotEvaluated
from flashinfer_bench.bench.plan import Skipped
from flashinfer_bench.bench.pool import RunInterrupted
from flashinfer_bench.bench.scheduler import Scheduler, WorkQueue
from flashinfer_bench.data import Trace, TraceSet
from flashinfer_bench.errors import (
    CapabilityError,
    DataError,
    RunnerError,
    RunnerFatalError,
    StorageError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.bench.ahead import BuildAhead
    from flashinfer_bench.bench.builds import BuildOutcome
    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.bench.observers import RunObserver
    from flashinfer_bench.bench.plan import Plan, SkipKind, WorkItem
    from flashinfer_bench.bench.runner import Runner
    from flashinfer_bench.data import Evaluation, Solution

logger = logging.getLogger(__name__)


class RunRecord:
    """One pass over a plan: what it is told by the runners, and what it tells and stores.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    config : BenchmarkConfig
        The settings.
    observers : sequence of RunObserver
        Whom to tell.
    store : bool
        Whether traces are added to the dataset.
    """

    def __init__(
        self,
        trace_set: TraceSet,
        config: BenchmarkConfig,
        observers: Sequence[RunObserver],
        *,
        store: bool,
    ) -> None:
        self._trace_set = trace_set
        self._config = config
        self._observers = observers
        self._store = store
        self._lock = threading.Lock()  # threads of several devices report here
        self._traces: dict[str, list[Trace]] = {}
        self.unsaved: list[Trace] = []
        self.skipped: list[Skipped] = []

    def carry_out(
        self, plan: Plan, runners: Sequence[Runner], ahead: Optional[BuildAhead] = None
    ) -> None:
        """Do everything in `plan`.

        Parameters
        ----------
        plan : Plan
            What to do.
        runners : sequence of Runner
            One for each device.
        ahead : BuildAhead, optional
            Compiles what `plan` says can be compiled ahead.
        """
        self._queue = WorkQueue(plan.items)
        for entry in plan.skipped:
            self._skip(entry)
        for observer in self._observers:
            observer.started(plan.total)
        if plan.resumed:
            logger.info("%d evaluations are decided already", plan.resumed)
        try:
            with ExitStack() as at_the_end:
                if ahead is not None:
                    at_the_end.callback(ahead.close)
                    self._compile_ahead(plan, runners, ahead)
                Scheduler(self._queue, runners, self._work).run()
                if ahead is not None:
                    ahead.check()
        finally:
            for observer in self._observers:
                observer.finished()

    def _compile_ahead(self, plan: Plan, runners: Sequence[Runner], ahead: BuildAhead) -> None:
        for observer in self._observers:
            observer.builds_started(len(plan.builds))
        for runner in runners:
            runner.ahead = ahead
        ahead.start()

    def build_finished(self, outcome: BuildOutcome) -> None:
        """Tell that a solution has been compiled, or could not be; from any thread."""
        logger.info("%s: %s in %.1f s", outcome.solution, outcome.state, outcome.seconds)
        with self._lock:
            for observer in self._observers:
                observer.build_finished(outcome)

    def results(self) -> TraceSet:
        """Return the dataset with the traces of this run only."""
        return TraceSet(
            root=self._trace_set.root,
            definitions=dict(self._trace_set.definitions),
            solutions={name: list(group) for name, group in self._trace_set.solutions.items()},
            workloads={name: list(group) for name, group in self._trace_set.workloads.items()},
            traces={name: list(group) for name, group in self._traces.items()},
        )

    def _work(self, runner: Runner, item: WorkItem) -> None:
        """Evaluate the solutions of one workload."""
        done: set[str] = set()

        def skip(solution: Solution, why: NotEvaluated) -> None:
            self._skip_item(replace(item, solutions=(solution,)), why)
            done.add(solution.name)

        try:
            for solution, evaluation in runner.evaluate_each(
                item.definition,
                item.workload,
                item.solutions,
                self._config,
                self._trace_set.root,
                on_start=lambda solution: self._tell_start(item, solution),
                on_skip=skip,
            ):
                self._record(item, solution, evaluation)
                done.add(solution.name)
        except (RunInterrupted, StorageError):
            raise
        except RunnerFatalError:
            if (left := item.without(done)) is not None:
                self._queue.put_back(left)
            raise
        except (RunnerError, DataError, CapabilityError) as error:
            if (left := item.without(done)) is not None:
                self._skip_item(left, error)

    def _tell_start(self, item: WorkItem, solution: Solution) -> None:
        with self._lock:
            for observer in self._observers:
                observer.evaluation_started(item.definition.name, item.workload, solution.name)

    def _record(self, item: WorkItem, solution: Solution, evaluation: Evaluation) -> None:
        trace = Trace(
            definition=item.definition.name,
            workload=item.workload,
            solution=solution.name,
            evaluation=evaluation,
        )
        with self._lock:
            self._traces.setdefault(trace.definition, []).append(trace)
            self.unsaved.append(trace)
            if self._store:
                self._trace_set.add_traces([trace])
                self.unsaved.pop()
            _log(trace)
            for observer in self._observers:
                observer.evaluation_finished(trace)

    def _skip_item(self, item: WorkItem, error: Exception) -> None:
        kind = _skip_kind(error)
        for solution in item.solutions:
            self._skip(
                Skipped(
                    kind, item.definition.name, solution.name, item.workload.uuid, 1, str(error)
                )
            )

    def _skip(self, entry: Skipped) -> None:
        with self._lock:
            self.skipped.append(entry)
            where = f" on {entry.workload}" if entry.workload else ""
            logger.warning("skipped %s%s: %s", entry.solution, where, entry.reason)
            for observer in self._observers:
                observer.skipped(entry)


def _skip_kind(error: Exception) -> SkipKind:
    if isinstance(error, (CapabilityError, NotEvaluated)):
        return "capability"
    return "workload" if isinstance(error, DataError) else "reference"


def _log(trace: Trace) -> None:
    evaluation = trace.evaluation
    assert evaluation is not None
    latency = f", {evaluation.performance.latency_ms:.6g} ms" if evaluation.performance else ""
    logger.info(
        "%s / %s / %s: %s%s",
        trace.definition,
        trace.workload.uuid,
        trace.solution,
        evaluation.status.value,
        latency,
    )
