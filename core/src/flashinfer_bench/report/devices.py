"""What was recorded on each device, digested for rankings.

Devices are never compared with one another, and neither are timers nor cache modes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.data import EvaluationStatus, ranking
from flashinfer_bench.report.conditions import UNTOLD

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
    from flashinfer_bench.report.conditions import Setting
    from flashinfer_bench.report.results import Conditions

_PASSED = EvaluationStatus.PASSED


@dataclass
class _Digest:
    """The runs of a definition on one device, of one timer and cache mode."""

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


def split_by_device(
    trace_set: TraceSet, chosen: Mapping[str, RunColumns]
) -> dict[Setting, DevicePart]:
    """Digest runs by device, timer and cache mode.

    Failures have no timer. They count with each that was used for their definition on the device;
    where there is none, with each that was used on the device at all.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    chosen : mapping of str to RunColumns
        Its runs by definition, as `choose_runs` returns them.

    Returns
    -------
    dict of (str, (str, str)) to DevicePart
        By device, timer and cache mode, in the order of their names. Each has all definitions that
        have runs on any.
    """
    anything: dict[str, set[Conditions]] = {}
    timed = {name: _timed(columns) for name, columns in chosen.items()}
    for settings in timed.values():
        for hardware, conditions in settings:
            anything.setdefault(hardware, set()).add(conditions)
    found: dict[Setting, DeviceRuns] = {}
    for name, columns in chosen.items():
        places: dict[str, dict[Conditions, _Digest]] = {}
        for device in set(columns.hardware):
            own = {conditions for hardware, conditions in timed[name] if hardware == device}
            for conditions in own or anything.get(device, {UNTOLD}):
                runs = found.setdefault((device, conditions), DeviceRuns(chosen))
                places.setdefault(device, {})[conditions] = runs.digests[name]
        _digest(columns, places)
    return {setting: DevicePart(trace_set, found[setting]) for setting in sorted(found)}


def _timed(columns: RunColumns) -> set[Setting]:
    """Return the devices, timers and cache modes of what passed."""
    found = set(zip(columns.hardware, columns.clock, columns.status, strict=True))
    return {(device, clock[:2]) for device, clock, status in found if status is _PASSED}


def _digest(columns: RunColumns, places: Mapping[str, Mapping[Conditions, _Digest]]) -> None:
    fields = (columns.hardware, columns.status, columns.solution, columns.workload, columns.clock)
    for device, status, solution, workload, clock, latency in zip(
        *fields, columns.latency_ms, strict=True
    ):
        if status is not _PASSED:
            for digest in places[device].values():
                digest.total += 1
                digest.runs.failed.add(solution)
            continue
        digest = places[device][clock[:2]]
        digest.total += 1
        digest.passed += 1
        if latency is None or not 0.0 < latency < math.inf:
            if digest.unusable is None:
                digest.unusable = (solution, math.nan if latency is None else latency)
            continue
        times = digest.runs.best_ms.setdefault(solution, {})
        if latency < times.get(workload, math.inf):
            times[workload] = latency
