"""Comparing two solutions of a dataset, workload by workload."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Optional

from fib_compare.paired.contest import CompareSettings, ContestRun
from fib_compare.paired.result import Contest
from fib_judge.calibration import load_ceilings
from fib_judge.records import VerifiedSession
from flashinfer_bench.bench.backends import choose_devices
from flashinfer_bench.bench.evaluators import resolve_evaluator
from flashinfer_bench.bench.plan import (
    meant_for_other_device,
    selected_definitions,
    selected_solutions,
)
from flashinfer_bench.bench.session import IsolatedRunner
from flashinfer_bench.errors import CapabilityError, SelectionError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fib_compare.paired.result import ContestResult
    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.data import Definition, Solution, TraceSet, Workload
    from flashinfer_bench.plugins import Catalog


def find_contests(
    trace_set: TraceSet,
    baseline: str,
    candidate: str,
    definitions: Optional[Sequence[str]] = None,
    workloads: Sequence[str] = (),
) -> list[Contest]:
    """Return the workloads that two solutions have in common.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    baseline, candidate : str
        Names of solutions; they may be the same.
    definitions : sequence of str, optional
        Only these.
    workloads : sequence of str
        Beginnings of uuids; empty for all.

    Raises
    ------
    UnknownNameError
        If there is no solution, or definition, or workload of such a name.
    SelectionError
        If there is no workload that both are for.
    """
    chosen = selected_definitions(trace_set, definitions)
    found = selected_solutions(trace_set, trace_set.definitions.values(), [baseline, candidate])
    by_name = {item.name: item for group in found.values() for item in group}
    first, second = by_name[baseline], by_name[candidate]
    if first.definition != second.definition:
        raise SelectionError(
            f"{baseline!r} is a solution of {first.definition!r}, and {candidate!r} of "
            f"{second.definition!r}: they have no workload in common",
            hint="compare two solutions of one definition",
        )
    for definition in chosen:
        if definition.name == first.definition:
            fitting = _workloads(trace_set, definition, workloads)
            return [Contest(definition, one, first, second) for one in fitting]
    raise SelectionError(
        f"{baseline!r} is a solution of {first.definition!r}, which is left out",
        hint=f"leave --definition out, or give it {first.definition}",
    )


def _workloads(
    trace_set: TraceSet, definition: Definition, prefixes: Sequence[str]
) -> list[Workload]:
    traces = trace_set.workloads.get(definition.name, [])
    known = {trace.workload.uuid: trace.workload for trace in traces}
    unknown = tuple(one for one in prefixes if not any(uuid.startswith(one) for uuid in known))
    if unknown:
        raise UnknownNameError(
            f"{definition.name!r} has no workload {', '.join(map(repr, unknown))}",
            hint=f"there are: {', '.join(list(known)[:8])}" if known else None,
            unknown=unknown,
        )
    wanted = tuple(prefixes) or ("",)
    found = [workload for uuid, workload in known.items() if uuid.startswith(wanted)]
    if not found:
        raise SelectionError(f"definition {definition.name!r} has no workload")
    return found


class Comparer(AbstractContextManager["Comparer"]):
    """Compares solutions on one device.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset. Nothing is written to it.
    config : BenchmarkConfig
        Device, tolerances, time limit, seed, trust, sandbox, timer, executor and evaluator.
    settings : CompareSettings
        When a comparison is decided.
    catalog : Catalog, optional
        The plugins; by default all that are installed.

    Notes
    -----
    Ends all processes when it is closed.
    """

    def __init__(
        self,
        trace_set: TraceSet,
        config: BenchmarkConfig,
        settings: CompareSettings,
        *,
        catalog: Optional[Catalog] = None,
    ) -> None:
        if catalog is None:
            from flashinfer_bench.plugins import default_catalog

            catalog = default_catalog()
        self._trace_set, self._config, self._settings = trace_set, config, settings
        self._catalog = catalog
        self.device = choose_devices(config.device)[0]
        self._runner = IsolatedRunner(self.device, catalog=catalog)

    def run(
        self,
        contests: Sequence[Contest],
        *,
        on_start: Callable[[Contest], None] = lambda contest: None,
        on_launch: Callable[[int, float], None] = lambda launches, seconds: None,
    ) -> Iterator[ContestResult]:
        """Yield what comes of each contest as soon as it ends.

        Parameters
        ----------
        contests : sequence of Contest
            Of `find_contests`.
        on_start : callable
            Told of each before it begins.
        on_launch : callable
            As of `ContestRun`.

        Raises
        ------
        CapabilityError
            If a solution is not for this device, or there is no builder, timer, evaluator or
            executor.
        RunnerFatalError
            If no process can be started, or the device is gone.
        """
        for contest in contests[:1]:
            for solution in (contest.baseline, contest.candidate):
                self._require_builder(solution)
        tests = len(contests) + 1 if len(contests) > 1 else 1  # with that of their mean
        for contest in contests:
            on_start(contest)
            yield self._run(contest, tests, on_launch)

    def _run(
        self, contest: Contest, tests: int, on_launch: Callable[[int, float], None]
    ) -> ContestResult:
        config = self._config
        resolved = config.resolve_eval_config(contest.definition, contest.workload)
        evaluator = resolve_evaluator(contest.definition, config.evaluator, catalog=self._catalog)
        evaluator.check_settings(resolved)
        run = ContestRun(
            replace(self.session, warm=resolved.cache == "warm"),
            contest,
            evaluator,
            resolved,
            self._settings,
            tests=tests,
            on_launch=on_launch,
        )
        result = run.run(self._trace_set.root)
        if result.obstacle is not None and result.obstacle.kind == "failed":
            self._runner.require_working_device()
        return result

    def _require_builder(self, solution: Solution) -> None:
        spec = solution.spec
        elsewhere = meant_for_other_device(solution, self._catalog, self.device)
        if elsewhere:
            raise CapabilityError(f"solution {solution.name!r}: {elsewhere}")
        self._catalog.select_builder(
            spec.language, spec.binding, solution=solution.name, device=self.device
        )

    @cached_property
    def session(self) -> VerifiedSession:
        """What all contests share; made when it is first asked for."""
        config = self._config.model_copy(update={"profile_baseline": False})
        shared = self._runner.session(config, config.cache)
        ceilings = load_ceilings(self.device, shared.environment.hardware)
        return VerifiedSession(**vars(shared), ceilings=ceilings)

    def close(self) -> None:
        """End all processes; idempotent."""
        self._runner.close()
        vars(self).pop("session", None)

    def __exit__(self, *error: object) -> None:
        self.close()
