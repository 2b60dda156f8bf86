"""What an earlier run has already decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Optional

from flashinfer_bench.data import EvaluationStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from flashinfer_bench.data import Solution, Trace


class Done(NamedTuple):
    """An evaluation that need not be repeated."""

    definition: str
    solution: str
    workload: str


def is_final(trace: Trace) -> bool:
    """Return whether another try would end the same: not after a time-out or a crash."""
    evaluation = trace.evaluation
    if evaluation is None or evaluation.status == EvaluationStatus.TIMEOUT:
        return False
    return evaluation.provenance is None or not evaluation.provenance.transient


def finished(
    traces: Iterable[Trace], solutions: Iterable[Solution], hardware: Collection[str]
) -> set[Done]:
    """Return the evaluations that `traces` decide for good.

    Parameters
    ----------
    traces : iterable of Trace
        Earlier results.
    solutions : iterable of Solution
        The solutions as they are now. A trace that was taken of other content under the same name
        does not count; older traces do not tell the content and count.
    hardware : collection of str
        Names of the devices that the run would use; a trace from elsewhere does not count.
    """
    hashes = {solution.name: solution.hash() for solution in solutions}
    return {
        Done(trace.definition, trace.solution, trace.workload.uuid)
        for trace in traces
        if trace.solution is not None
        and trace.evaluation is not None
        and trace.evaluation.environment.hardware in hardware
        and is_final(trace)
        and _hash_of(trace) in (None, hashes.get(trace.solution))
    }


def _hash_of(trace: Trace) -> Optional[str]:
    if trace.evaluation is None or trace.evaluation.provenance is None:
        return None
    value = trace.evaluation.provenance.extra.get("solution_hash")
    return value if isinstance(value, str) else None
