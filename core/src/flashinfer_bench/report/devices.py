"""What was recorded on each device, digested for rankings: devices are never compared."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.data import EvaluationStatus, ranking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashinfer_bench.data import (
        Definition,
        Solution,
        SpeedupMetrics,
        TraceSet,
        TraceSetSummary,
    )
    from flashinfer_bench.data.run_source import RunColumns

_PASSED = EvaluationStatus.PASSED


@dataclass
class _Digest:
    """The runs of a definition on one device."""

    total: int = 0
    passed: int = 0
    runs: ranking.Runs = field(default_factory=lambda: ranking.Runs({}, set()))
    unusable: Optional[tuple[str, float]] = None


class DeviceRuns:
    """The runs on one device, digested; a `RunDigests`.

    Parameters
    ----------
    names : iterable of str
        Definitions that have runs on any device.
    """

    def __init__(self, names: Mapping[str, object]) -> None:
        self.digests = {name: _Digest() for name in names}

    def names(self) -> list[str]:
        """Return the definitions that have runs, here or on another device."""
        return list(self.digests)

    def counts(self, definition: str) -> tuple[int, int]:
        """Return the number of runs, and of those that passed."""
        digest = self.digests.get(definition, _Digest())
        return digest.total, digest.passed

    def runs(self, definition: str) -> ranking.Runs:
        """Return the runs, digested.

        Raises
        ------
        DataError
            If a passing run has a latency that is not positive.
        """
        digest = self.digests.get(definition, _Digest())
        if digest.unusable is not None:
            ranking.refuse_latency(*digest.unusable)
        return digest.runs


class DevicePart:
    """What a dataset has for the definitions that have runs, and their runs on one device.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    run_source : DeviceRuns
        The runs.
    """

    def __init__(self, trace_set: TraceSet, run_source: DeviceRuns) -> None:
        names = run_source.digests
        self.definitions: dict[str, Definition] = {
            name: one for name, one in trace_set.definitions.items() if name in names
        }
        self.solutions: dict[str, list[Solution]] = {
            name: group for name, group in trace_set.solutions.items() if name in names
        }
        self.run_source = run_source
        self._by_name = {one.name: one for group in self.solutions.values() for one in group}

    def get_solution(self, name: str) -> Optional[Solution]:
        """Return the solution of that name, or None."""
        return self._by_name.get(name)

    def summary(self, baseline_author: str) -> TraceSetSummary:
        """Count runs and rank authors, as `TraceSet.summary` does it."""
        return ranking.summarize(self, baseline_author)

    def get_solution_score(self, name: str, baseline_author: str) -> Optional[SpeedupMetrics]:
        """Compare one solution with the baseline, as `TraceSet.get_solution_score` does it.

        Raises
        ------
        DataError
            If there is not exactly one baseline, or a latency is not positive.
        """
        return ranking.score_solution(self, name, baseline_author)


def split_by_device(trace_set: TraceSet, chosen: Mapping[str, RunColumns]) -> dict[str, DevicePart]:
    """Digest runs device by device.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    chosen : mapping of str to RunColumns
        Its runs by definition, as `choose_runs` returns them.

    Returns
    -------
    dict of str to DevicePart
        By device, in the order of their names. Each has all definitions that have runs on any.
    """
    found: dict[str, DeviceRuns] = {}
    for name, columns in chosen.items():
        digests: dict[str, _Digest] = {}
        for device in sorted(set(columns.hardware)):
            runs = found.setdefault(device, DeviceRuns(chosen))
            digests[device] = runs.digests[name]
        _digest(columns, digests)
    return {device: DevicePart(trace_set, found[device]) for device in sorted(found)}


def _digest(columns: RunColumns, digests: Mapping[str, _Digest]) -> None:
    fields = (columns.hardware, columns.status, columns.solution, columns.workload)
    for device, status, solution, workload, latency in zip(
        *fields, columns.latency_ms, strict=True
    ):
        digest = digests[device]
        digest.total += 1
        if status is not _PASSED:
            digest.runs.failed.add(solution)
            continue
        digest.passed += 1
        if latency is None or not 0.0 < latency < math.inf:
            if digest.unusable is None:
                digest.unusable = (solution, math.nan if latency is None else latency)
            continue
        times = digest.runs.best_ms.setdefault(solution, {})
        if latency < times.get(workload, math.inf):
            times[workload] = latency
