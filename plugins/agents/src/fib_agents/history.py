"""What changed since an author's last try, and how it turned out."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import unified_diff
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Optional

from fib_report.results import result_of
from fib_report.scores import latency_of, ratio_of
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.selection import UNKNOWN_AUTHOR

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fib_report.results import Result
    from fib_report.scores import Measured
    from flashinfer_bench.data import Solution, Trace

MOST_DIFF_CHARACTERS = 4_000


@dataclass(frozen=True)
class SinceLastTry:
    """How an evaluation compares with the last solution of the same author and definition.

    Attributes
    ----------
    solution : str
        The solution that was first evaluated last before this one.
    same_workload : bool
        Whether what follows is from the same workload and device; else from its latest evaluation.
    status_before, status_now : str
        How both ended.
    diff : str, optional
        Unified diff of the sources, at most 4,000 characters; None if the earlier sources are not
        in the dataset.
    lines_left_out : int
        Lines of the diff that are left out at its end.
    latency_ratio : float, optional
        The latency now over the one before, if both were timed on the same workload, device, timer
        and cache mode.
    intervals_overlap : bool, optional
        Whether the 95 % intervals of both latencies overlap, so that the difference may be noise;
        None if one has no interval.
    """

    solution: str
    same_workload: bool
    status_before: str
    status_now: str
    diff: Optional[str] = None
    lines_left_out: int = 0
    latency_ratio: Optional[float] = None
    intervals_overlap: Optional[bool] = None


def results_of(trace_set: TraceSet, definition: str, more: Sequence[Trace] = ()) -> list[Result]:
    """Return the runs of a definition.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    definition : str
        Name of the definition.
    more : sequence of Trace
        Traces that it may lack; the results of those that it has are not doubled.

    Returns
    -------
    list of Result
        Those of `more` last.
    """
    known = trace_set.definitions.get(definition)
    solutions = {one.name: one for one in trace_set.solutions.get(definition, ())}
    rows = list(trace_set.run_rows(definition))
    extra = TraceSet(traces={definition: [*more]}).run_rows(definition)
    given = {(row.solution, row.workload, row.timestamp) for row in extra}
    rows = [row for row in rows if (row.solution, row.workload, row.timestamp) not in given]
    op_type = known.op_type if known else ""
    return [result_of(row, op_type, solutions.get(row.solution)) for row in (*rows, *extra)]


def since_last_try(
    own: Result, results: Iterable[Result], solutions: Iterable[Solution]
) -> Optional[SinceLastTry]:
    """Return what changed since the last try; None if there is none, or no author is known.

    Tries are ordered by the first evaluation of each solution, on any workload. A solution whose
    file was rewritten counts as another one.

    Parameters
    ----------
    own : Result
        The evaluation.
    results : iterable of Result
        All runs of the definition.
    solutions : iterable of Solution
        The solutions of the definition.
    """
    if own.author == UNKNOWN_AUTHOR:
        return None
    mine = [one for one in results if one.author == own.author]
    first: dict[Any, str] = {}
    for one in (*mine, own):
        first[_content(one)] = min(first.get(_content(one), one.timestamp), one.timestamp)
    this = _content(own)
    earlier = [key for key, when in first.items() if key != this and when < first[this]]
    if not earlier:
        return None
    last = max(earlier, key=lambda key: first[key])
    runs = [one for one in mine if _content(one) == last and one.timestamp <= own.timestamp]
    place = own.workload, own.hardware
    here = [one for one in runs if (one.workload, one.hardware) == place]
    before = max(here or runs, key=lambda one: one.timestamp)
    diff, left_out = _diff(last, this, {one.name: one for one in solutions})
    ratio, overlap = _compared(before, own) if here else (None, None)
    statuses = before.status.value, own.status.value
    return SinceLastTry(last[0], bool(here), *statuses, diff, left_out, ratio, overlap)


def _content(one: Result) -> tuple[str, Optional[str]]:
    return one.solution, one.origin.solution_hash


def _compared(before: Result, own: Result) -> tuple[Optional[float], Optional[bool]]:
    old, new = latency_of(before), latency_of(own)
    if old is None or new is None or before.conditions != own.conditions:
        return None, None
    return ratio_of(new, old).value, intervals_overlap(old, new)


def intervals_overlap(one: Measured, other: Measured) -> Optional[bool]:
    """Return whether the intervals of two latencies overlap; None if one has none."""
    if one.ends is None or other.ends is None:
        return None
    return one.low <= other.high and other.low <= one.high


def _diff(
    last: tuple[str, Optional[str]], this: tuple[str, Optional[str]], known: dict[str, Solution]
) -> tuple[Optional[str], int]:
    sides = []
    for name, content in (last, this):
        found = known.get(name)
        if found is None or content not in (None, found.hash()):
            return None, 0
        sides.append({one.path: one.content for one in found.sources})
    lines: list[str] = []
    for path in sorted({*sides[0], *sides[1]}):
        old, new = (side.get(path, "").splitlines() for side in sides)
        names = f"{last[0]}/{path}", f"{this[0]}/{path}"
        lines += unified_diff(old, new, *names, lineterm="")
    lengths = accumulate(len(line) + 1 for line in lines)
    kept = sum(length <= MOST_DIFF_CHARACTERS for length in lengths)
    return "\n".join(lines[:kept]), len(lines) - kept
