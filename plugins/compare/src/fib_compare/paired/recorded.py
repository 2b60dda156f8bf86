"""Comparing samples that are on disk already: unpaired, and so far less sensitive."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Literal, Optional

from fib_compare.paired.result import ContestResult, Obstacle
from fib_compare.replay.targets import Target, latest, read_targets
from fib_compare.stats.compare import compare_unpaired
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import ConflictError, DatasetNotFoundError, SelectionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from fib_compare.paired.contest import CompareSettings
    from flashinfer_bench.data import Trace

_FEWEST_SAMPLES = 5  # of which a median's interval can be told
_UNPAIRED = "unpaired: taken at different times, whatever the machine did meanwhile is in it"


def read_traces(path: Path) -> list[Trace]:
    """Return the runs of a dataset, or of one file of traces, from the oldest to the latest.

    Raises
    ------
    DatasetNotFoundError
        If there is neither.
    SelectionError
        If there is no run.
    StorageError
        If a file cannot be read.
    """
    if path.is_file():
        targets = read_targets(path)
    elif not path.is_dir():
        raise DatasetNotFoundError(
            f"{path}: there is neither a dataset nor a file of traces",
            hint="name a dataset's folder, or one of the files in its folder traces",
        )
    else:
        traces = TraceSet.from_path(path, on_error="collect").traces
        targets = [Target(trace) for group in traces.values() for trace in group]
    runs = [one.trace for one in latest(targets) if one.trace is not None]
    if not runs:
        raise SelectionError(f"{path}: no runs are recorded there", hint="'fib run' records them")
    return runs


Key = tuple[str, str, str]
"""Definition, uuid of the workload, and what is compared."""


def compare_recorded(
    baseline: Iterable[Trace],
    candidate: Iterable[Trace],
    settings: CompareSettings,
    names: Optional[tuple[str, str]] = None,
    *,
    force: bool = False,
) -> list[ContestResult]:
    """Compare the latest recorded runs of solutions on each workload.

    Parameters
    ----------
    baseline, candidate : iterable of Trace
        From the oldest to the latest.
    settings : CompareSettings
        What counts as a difference.
    names : tuple of str, optional
        The solution of either side to compare; by default each is compared with itself.
    force : bool
        Compare even what was taken on other hardware, by another timer, or of another definition;
        the results then have a note.

    Raises
    ------
    SelectionError
        If there is nothing that both sides have.
    ConflictError
        If the two cannot be compared, and `force` is False.
    """
    first = _latest(baseline, names and names[0])
    second = _latest(candidate, names and names[1])
    keys = [key for key in first if key in second]
    if not keys:
        raise SelectionError(
            f"nothing to compare: the baseline has {len(first)} runs and the candidate "
            f"{len(second)} that fit, and none on the same workload",
            hint="name the solutions with --baseline and --candidate if they differ",
        )
    pairs = [(first[key], second[key]) for key in keys]
    return [_compare(*pair, _differences(pair, force=force), settings) for pair in pairs]


def _latest(traces: Iterable[Trace], name: Optional[str]) -> dict[Key, Trace]:
    return {
        (one.definition, one.workload.uuid, one.solution or "" if name is None else ""): one
        for one in traces
        if one.evaluation is not None and name in (None, one.solution)
    }


def _differences(pair: tuple[Trace, Trace], *, force: bool) -> list[str]:
    """Return remarks on what differs.

    Raises
    ------
    ConflictError
        If something does that makes a comparison worthless, and `force` is False.
    """
    notes = [_UNPAIRED]
    facts = [_facts(trace) for trace in pair]
    for name, before in facts[0].items():
        after = facts[1][name]
        if before == after:
            continue
        if before is None or after is None:
            notes.append(f"{name}: not recorded on both sides")
            continue
        text = f"{name}: {before!r} in the baseline, {after!r} in the candidate"
        if not force:
            where = f"{pair[0].definition} / {pair[0].workload.uuid}"
            raise ConflictError(
                f"{where}: {text}: their latencies say nothing about the solutions",
                hint="--force compares them nevertheless",
            )
        notes.append(f"forced, although they differ in {text}")
    return notes


def _facts(trace: Trace) -> dict[str, Optional[str]]:
    evaluation = trace.evaluation
    assert evaluation is not None
    told = evaluation.provenance
    return {
        "hardware": evaluation.environment.hardware,
        "timer": told.timer if told is not None else None,
        "timer version": told.timer_version if told is not None else None,
        "definition": told.definition_hash if told is not None else None,
    }


def _compare(
    first: Trace, second: Trace, notes: Sequence[str], settings: CompareSettings
) -> ContestResult:
    facts = _facts(second)
    result = ContestResult(
        definition=first.definition,
        workload=first.workload.uuid,
        baseline=first.solution or "",
        candidate=second.solution or "",
        notes=tuple(notes),
        timer=facts["timer"] or "",
        hardware=facts["hardware"] or "",
    )
    problem = _obstacle("baseline", first) or _obstacle("candidate", second)
    if problem is not None:
        return replace(result, obstacle=problem)
    samples = _samples(first), _samples(second)
    if not all(median(side) for side in samples):
        text = "a median of 0 has no ratio: the timer could not tell the latency from zero"
        return replace(result, obstacle=Obstacle("both", "not recorded", text))
    comparison = compare_unpaired(*samples, min_effect=settings.min_effect, alpha=settings.alpha)
    return replace(result, comparison=comparison, recorded=samples)


def _samples(trace: Trace) -> tuple[float, ...]:
    performance = trace.evaluation.performance if trace.evaluation is not None else None
    return tuple(performance.samples_ms or ()) if performance is not None else ()


def _obstacle(role: Literal["baseline", "candidate"], trace: Trace) -> Optional[Obstacle]:
    assert trace.evaluation is not None
    if not trace.is_successful():
        status = trace.evaluation.status.value
        return Obstacle(role, "wrong", f"the latest run of {trace.solution!r} ended in {status}")
    count = len(_samples(trace))
    if count < _FEWEST_SAMPLES:
        text = f"{count} samples are recorded, and {_FEWEST_SAMPLES} are needed"
        return Obstacle(role, "not recorded", text)
    return None
