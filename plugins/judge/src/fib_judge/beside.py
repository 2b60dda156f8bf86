"""The reference's latency, taken in between the timed calls of a solution.

Both then meet the same clocks, temperature and neighbours, and their ratio does not depend on what
the machine did minutes before. While one is called the other one's processes stand still, where the
system allows it. A solution could still slow the reference down, on a GPU by work that it has left
there: what it gains by that is bounded by the latency that the reference has when it is alone.
"""

from __future__ import annotations

import logging
import random
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Optional

from fib_judge.normals import Normals
from fib_judge.turns import interleaved_ratio
from flashinfer_bench.bench.calls import Deadline, Variations, find_impossible, shoot, time_left
from flashinfer_bench.bench.digests import secret_seed
from flashinfer_bench.bench.evaluation import CONFIDENCE, Speeds, performance_of, speeds_of
from flashinfer_bench.bench.executors.base import CandidateError
from flashinfer_bench.bench.measurement import ReferenceProblem
from flashinfer_bench.data.samples import rounded
from flashinfer_bench.stats.intervals import ratio_interval

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fib_judge.records import VerifiedAttempt
    from flashinfer_bench.bench.calls import Measurement, TimedCall
    from flashinfer_bench.bench.pool import Worker
    from flashinfer_bench.bench.stopping import TimingPlan
    from flashinfer_bench.stats.intervals import Interval

logger = logging.getLogger(__name__)

_EVERY_IN_ROUNDS, _EVERY = 25, 10
"""Timed calls of the solution from one turn of the reference to the next."""
_SHARE = 0.25  # of the solution's calls
_SETTLING = 2  # uncounted calls at the beginning of a turn: the caches have been another's
_TURN_S = 0.1  # for a turn, or as long as the solution took since the last one
_LARGEST_BYTES = 1 << 30  # of inputs and outputs; both processes hold them
_CHANGING_MS = 0.15
_SLOWER = 1.25  # than alone, is more than what one machine does to another's latency by chance


@dataclass(frozen=True)
class Beside:
    """Latencies of the reference in between those of a solution.

    Attributes
    ----------
    blocks : tuple of (tuple of float, int)
        For each turn of the reference its samples in milliseconds, and how many timed calls of the
        solution there had been before.
    normals : Normals, optional
        What its calls were like there.
    """

    blocks: tuple[tuple[tuple[float, ...], int], ...]
    normals: Optional[Normals] = None

    @property
    def samples_ms(self) -> tuple[float, ...]:
        """All samples in the order taken, in milliseconds."""
        return tuple(sample for samples, _ in self.blocks for sample in samples)

    def normals_beside(self, alone: Normals) -> Normals:
        """Return what is normal for calls of two processes in turn, where it is known.

        A device that changes between two processes takes longer to tell that it is done: 0.05 to
        0.1 ms on an H200. More than that might be what a solution has left there.

        Parameters
        ----------
        alone : Normals
            What was normal when the reference was alone.
        """
        if self.normals is None:
            return alone
        slower = {
            part: getattr(alone, part).or_slower(getattr(self.normals, part))
            for part in ("overhead", "exchange", "stage", "describe")
        }
        believed = {
            part: normal
            for part, normal in slower.items()
            if normal.median_ms - getattr(alone, part).median_ms <= _CHANGING_MS
        }
        return replace(alone, **believed)

    def believed(self, alone_ms: float) -> bool:
        """Return whether it was as fast as it is alone, or nearly."""
        return median(self.samples_ms) <= _SLOWER * alone_ms


class Turns:
    """Lets the reference take its turns.

    Parameters
    ----------
    attempt : Attempt
        Whose timed calls are interrupted.
    problem : ReferenceProblem
        The reference, loaded, with all input sets.
    """

    def __init__(self, attempt: VerifiedAttempt, problem: ReferenceProblem) -> None:
        session = attempt.session
        rng = random.Random(secret_seed(session.rotation_seed, "beside"))
        self._attempt, self._problem = attempt, problem
        self._variations = Variations(problem.freedoms, problem.inputs, rng, session.warm)
        self._every = _every(attempt.plan)
        self._until = time.monotonic()
        self._failed = False
        self._blocks: list[tuple[tuple[float, ...], int]] = []
        self._calls: list[TimedCall] = []

    def visit(self, place: int) -> bool:
        """Let the reference be called if its turn has come; see `take_calls`."""
        if self._failed or (place + 1) % self._every:
            return False
        took_s = time.monotonic() - self._until
        attempt = self._attempt
        candidate, deadline = attempt.worker.candidate, attempt.deadline
        candidate.rest(timeout_s=time_left(deadline, candidate, "time"))
        with deadline.stopped():
            try:
                self._take(place + 1, took_s)
            except CandidateError as error:
                logger.info("the reference failed beside a solution: %s", error.message)
                self._failed = True
        self._until = time.monotonic()
        return True

    def _take(self, place: int, took_s: float) -> None:
        began = time.monotonic()
        wanted = max(1, round(self._every * _SHARE))
        budget_s = max(took_s, _TURN_S)
        calls: list[TimedCall] = []
        for number in range(_SETTLING + wanted):
            spent_s = time.monotonic() - began
            if len(calls) and spent_s + spent_s / number > budget_s:
                break
            call = self._shoot()
            if number >= _SETTLING:
                calls.append(call)
        candidate, deadline = self._problem.worker.candidate, self._problem.deadline
        candidate.rest(timeout_s=time_left(deadline, candidate, "time"))
        if find_impossible(calls) is None:
            self._blocks.append((rounded(call.sample_ms for call in calls), place))
            self._calls += calls

    def _shoot(self) -> TimedCall:
        problem = self._problem
        variation = self._variations.draw()
        return shoot(problem.worker.candidate, variation, problem.session.timer, problem.deadline)

    @property
    def beside(self) -> Optional[Beside]:
        """What has been taken; None if that is nothing, or the reference failed."""
        if not self._blocks or self._failed:
            return None
        return Beside(tuple(self._blocks), Normals.of(self._calls))


@contextmanager
def reference_beside(attempt: VerifiedAttempt) -> Iterator[Optional[Turns]]:
    """Keep the reference ready for its turns during the body of a ``with`` statement.

    Yields
    ------
    Turns or None
        None if it is not to be called, or would take too much time or memory, or fails.
    """
    session, baseline = attempt.session, attempt.baseline
    if not attempt.config.interleave_reference or not _is_worth_it(attempt):
        yield None
        return
    with session.pool.worker(("reference", baseline.definition.name)) as worker:
        turns = _ready(attempt, worker)
        if turns is None:
            worker.reusable = False
        yield turns


def _every(plan: TimingPlan) -> int:
    return _EVERY_IN_ROUNDS if plan.rounds else _EVERY


def _is_worth_it(attempt: VerifiedAttempt) -> bool:
    baseline, plan = attempt.baseline, attempt.plan
    if baseline.measurement is None or baseline.reference is None:
        return False
    if plan.max_samples < _every(plan):  # it would never have a turn
        return False
    return baseline.latency_ms <= _TURN_S * 1e3 and baseline.nbytes < _LARGEST_BYTES


def _ready(attempt: VerifiedAttempt, worker: Worker) -> Optional[Turns]:
    session, baseline = attempt.session, attempt.baseline
    assert baseline.reference is not None
    inputs = [list(trial.inputs) for trial in baseline.trials]
    problem = ReferenceProblem(
        session,
        worker,
        baseline.definition,
        baseline.workload,
        inputs,
        baseline.freedoms,
        Deadline(session.timeout_s),
    )
    try:
        worker.load(baseline.definition, baseline.reference, timeout_s=problem.left("load"))
        problem.put()
    except CandidateError as error:
        logger.info("the reference is not called beside solutions: %s", error.message)
        return None
    return Turns(attempt, problem)


def speeds_beside(
    taken: Measurement, alone: Optional[Measurement], beside: Optional[Beside]
) -> Speeds:
    """Return what the samples of a solution say, and those of the reference beside it.

    Parameters
    ----------
    taken, alone : Measurement
        Of the solution, and of the reference on its own if that was timed.
    beside : Beside, optional
        Of the reference in between the solution's calls.
    """
    if alone is None or beside is None:
        return speeds_of(taken, alone)
    if beside.believed(alone.latency_ms):
        ratio = _paired(taken, beside)
        return Speeds(performance_of(taken, beside.samples_ms, ratio), "beside")
    times = f"{median(beside.samples_ms):.4g} ms beside this solution", alone.latency_ms
    note = "the reference took {} and {:.4g} ms alone: the latter counts".format(*times)
    return replace(speeds_of(taken, alone), notes=(note,))


def _paired(taken: Measurement, beside: Beside) -> Interval:
    """Return the speed-up, from the turns and the calls around them."""
    out = {number for first, end in taken.dropped for number in range(first, end)}
    blocks = []
    start = 0
    for samples, end in beside.blocks:
        own = [taken.samples_ms[n] for n in range(start, end) if n not in out]
        if own:
            blocks.append((samples, tuple(own)))
        start = end
    if not blocks:
        return ratio_interval(beside.samples_ms, taken.counted_ms, confidence=CONFIDENCE)
    return interleaved_ratio(blocks, confidence=CONFIDENCE)
