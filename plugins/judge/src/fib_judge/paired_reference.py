"""The reference's latency, taken in between the timed calls of a solution.

Both then meet the same clocks, temperature and neighbours, and their ratio does not depend on what
the machine did minutes before. While one is called the other one's processes stand still, where the
system allows it. A solution could still slow the reference down, on a GPU by work that it has left
there: what it gains by that is bounded by the latency that the reference has when it is alone.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Optional

from fib_judge.integrity import longest
from fib_judge.records import KeyedRandom
from fib_judge.ring import SLOTS_ON_DEVICE
from fib_judge.timed import Course
from flashinfer_bench.bench.calls import Attempt, Measurement, find_impossible
from flashinfer_bench.bench.evaluation import CONFIDENCE, Speeds, performance_of, speeds_of
from flashinfer_bench.bench.executors.base import CandidateError
from flashinfer_bench.bench.executors.frozen import why_not
from flashinfer_bench.bench.transport.deadline import Deadline
from flashinfer_bench.data.trace import rounded
from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.stats.distributions import t_quantile
from flashinfer_bench.stats.intervals import Interval, ratio_interval
from flashinfer_bench.stats.samples import quantile

if TYPE_CHECKING:
    from fib_judge.calibration import Ceilings
    from fib_judge.records import VerifiedAttempt
    from flashinfer_bench.bench.executors.base import TimedCall
    from flashinfer_bench.bench.pool import Worker
    from flashinfer_bench.bench.stopping import TimingPlan


_MANY_BLOCKS = 6
"""From so many blocks on, their ratios themselves tell how much a ratio varies."""

_MOST_GROUPS = 16
"""More blocks are merged: a median of several is not moved by one call that was disturbed."""

Block = tuple[Sequence[float], Sequence[float]]
"""Samples of the numerator, and samples of the denominator that were taken beside them."""


def interleaved_ratio(blocks: Sequence[Block]) -> Interval:
    """Return the ratio of the medians of two runs that took turns, with its interval.

    What slows both down for a while does not change the ratio of a block. From six blocks on the
    interval is Student's of the logarithms of their ratios. With fewer it is that of
    `ratio_interval`, which is longer where blocks differ. The estimate is the ratio of the medians
    of all samples in either case, and the interval reaches to it.

    Parameters
    ----------
    blocks : sequence of (sequence of float, sequence of float)
        Numerator and denominator, for a speed-up reference and solution, one block after the other.

    Raises
    ------
    DataError
        As `ratio_interval`; also if there is no block.
    """
    top = [value for block in blocks for value in block[0]]
    bottom = [value for block in blocks for value in block[1]]
    whole = ratio_interval(top, bottom, confidence=CONFIDENCE)
    logs = [_log_ratio(group) for group in _groups(blocks)]
    known = [log for log in logs if log is not None]
    if len(known) < _MANY_BLOCKS:
        return whole
    middle = math.fsum(known) / len(known)
    reach = t_quantile(CONFIDENCE, len(known) - 1) * standard_error(known)
    low, high = math.exp(middle - reach), math.exp(middle + reach)
    return Interval(whole.estimate, min(low, whole.estimate), max(high, whole.estimate), CONFIDENCE)


def _groups(blocks: Sequence[Block]) -> list[Block]:
    """Merge neighbours until there are at most as many as a t test gains from."""
    size = math.ceil(len(blocks) / _MOST_GROUPS)
    merged: list[Block] = []
    for begin in range(0, len(blocks), size):
        group = blocks[begin : begin + size]
        above = [value for block in group for value in block[0]]
        merged.append((above, [value for block in group for value in block[1]]))
    return merged


def _log_ratio(block: Block) -> Optional[float]:
    """Return the logarithm of the ratio of a block; None if it has none."""
    above, below = block
    if not above or not below:
        return None
    medians = quantile(sorted(above), 0.5), quantile(sorted(below), 0.5)
    return math.log(medians[0] / medians[1]) if min(medians) > 0 else None


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of at least two values."""
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return math.sqrt(squares / (len(values) - 1) / len(values))


logger = logging.getLogger(__name__)

_EVERY_IN_ROUNDS, _EVERY, _LEAST_EVERY = 25, 10, 5
"""Timed calls of the solution from one turn of the reference to the next."""
_SHARE = 0.25  # of the solution's calls
_SETTLING = 2  # uncounted calls at the beginning of a turn: the CPU's caches have been another's
_FEW = 3
_TURN_S = 0.1  # for a turn, or as long as the solution took since the last one
_LARGEST_BYTES = 1 << 30  # of inputs and outputs; both processes hold them
_Z = 1.96  # standard deviations to each side hold 95 %
_SLOWER = 1.25  # than alone, is more than what one machine does to another's latency by chance


@dataclass(frozen=True)
class PairedSamples:
    """Latencies of the reference in between those of a solution.

    Attributes
    ----------
    blocks : tuple of (tuple of float, int)
        For each turn of the reference its samples in milliseconds, and how many timed calls of the
        solution there had been before.
    apart : bool
        Whether nothing of the solution could run meanwhile.
    """

    blocks: tuple[tuple[tuple[float, ...], int], ...]
    apart: bool = False

    @property
    def samples_ms(self) -> tuple[float, ...]:
        """All samples in the order taken, in milliseconds."""
        return tuple(sample for samples, _ in self.blocks for sample in samples)


class PairedReference:
    """Lets the reference take its turns.

    Parameters
    ----------
    attempt : VerifiedAttempt
        The solution that is timed.
    reference : Attempt
        The reference, loaded, with all input sets.
    """

    def __init__(self, attempt: VerifiedAttempt, reference: Attempt) -> None:
        self._rng = KeyedRandom(attempt.session.secret_seed("beside"))
        self._reference, self._baseline = reference, attempt.baseline
        self._apart = attempt.session.device == "cpu" and why_not() is None
        values, self._overhead = attempt.baseline.values, attempt.baseline.overhead
        self._course: Optional[Course] = None
        if values is not None:
            self._course = Course(reference, values, self._rng, self._overhead)
            self._course.follow_mode(attempt.baseline.mode)
            self._known = list(values.kept)
        self._settling = _SETTLING if attempt.session.device == "cpu" else 0
        self._every = _every(attempt.plan, attempt.session.device)
        self._until = time.monotonic()
        self._failed = False
        self._blocks: list[tuple[tuple[float, ...], int]] = []
        self._calls: list[TimedCall] = []
        self._empty: list[TimedCall] = []

    def visit(self, attempt: VerifiedAttempt, place: int) -> bool:
        """Let the reference be called if its turn has come.

        Parameters
        ----------
        attempt : VerifiedAttempt
            Whose timed calls are interrupted.
        place : int
            Number of its last one, those of earlier processes included.
        """
        if self._failed or (place + 1) % self._every:
            return False
        took_s = time.monotonic() - self._until
        attempt.candidate.rest(timeout_s=attempt.left("time"))
        with attempt.deadline.stopped():
            try:
                self._take(place + 1, took_s)
            except CandidateError as error:
                logger.info("the reference failed beside a solution: %s", error.message)
                self._failed = True
        self._until = time.monotonic()
        return bool(self._settling)

    def _take(self, place: int, took_s: float) -> None:
        began = time.monotonic()
        wanted = max(1, round(self._every * _SHARE))
        budget_s = max(took_s, _TURN_S)
        calls: list[TimedCall] = []
        course = self._course
        at_once = course.at_once() if course is not None else 1
        made, settling = 0, self._settling or int(not self._calls)
        while len(calls) < wanted:
            spent_s = time.monotonic() - began
            if len(calls) and spent_s + spent_s / made > budget_s:
                break
            taken = course.take(self._numbers(at_once)) if course else [self._reference.fire(0)]
            made += 1
            if made > settling:
                calls += taken
        if course is not None and not self._settling and len(self._empty) < _FEW:
            self._empty.append(course.empty(into=False, mode=course.mode))
        self._reference.candidate.rest(timeout_s=self._reference.left("time"))
        self._calls += calls
        if self._overhead is not None:
            out = self._overhead.disturbed(calls)
            calls = [call for place, call in enumerate(calls) if place not in out]
        if find_impossible(calls) is None:
            self._blocks.append((rounded(call.sample_ms for call in calls), place))

    def _numbers(self, count: int) -> Sequence[Optional[int]]:
        """Return draws for calls; the reference may see again what need not be drawn again."""
        known = self._known
        return self._rng.sample(known, count) if len(known) >= count else [None] * count

    def growth_ms(self) -> float:
        """Return how much longer an exchange takes than when nothing else ran."""
        if not self._calls or self._course is None or self._overhead is None:
            return 0.0
        usual = self._baseline.usual(self._course.mode, into=self._course.ring.writes_there)
        return usual.growth_ms(self._empty, () if self._course.waits else longest(self._calls))

    def close(self) -> None:
        """Let go of the memory."""
        if self._course is not None:
            self._course.close()

    @property
    def beside(self) -> Optional[PairedSamples]:
        """What has been taken; None if that is nothing, or the reference failed."""
        if not self._blocks or self._failed:
            return None
        return PairedSamples(tuple(self._blocks), self._apart)


@contextmanager
def reference_in_turns(attempt: VerifiedAttempt) -> Iterator[Optional[PairedReference]]:
    """Keep the reference ready for its turns during the body of a ``with`` statement.

    Yields
    ------
    PairedReference or None
        None if it is not to be called, or would take too much time or memory, or fails.
    """
    session, baseline = attempt.session, attempt.baseline
    if not baseline.config.interleave_reference or not _is_worth_it(attempt):
        yield None
        return
    with session.pool.worker(("reference", baseline.definition.name)) as worker:
        turns = _ready(attempt, worker)
        if turns is None:
            worker.reusable = False
        session.pool.settle()
        try:
            yield turns
        finally:
            if turns is not None:
                turns.close()


def _every(plan: TimingPlan, device: str) -> int:
    if not plan.rounds:
        return _EVERY
    every = max(_LEAST_EVERY, min(_EVERY_IN_ROUNDS, plan.total // _MANY_BLOCKS))
    # Between exchanges, not in the middle of one.
    return every if device == "cpu" else max(every // SLOTS_ON_DEVICE, 1) * SLOTS_ON_DEVICE


def _is_worth_it(attempt: VerifiedAttempt) -> bool:
    baseline, plan = attempt.baseline, attempt.plan
    if baseline.measurement is None or baseline.reference is None:
        return False
    if plan.max_samples < (_EVERY_IN_ROUNDS if plan.rounds else _EVERY):  # too few to take turns
        return False
    return baseline.latency_ms <= _TURN_S * 1e3 and baseline.nbytes < _LARGEST_BYTES


def _ready(attempt: VerifiedAttempt, worker: Worker) -> Optional[PairedReference]:
    session, baseline = attempt.session, attempt.baseline
    deadline = Deadline(session.config.timeout_seconds)
    reference = Attempt(session, baseline.reference, baseline, worker, deadline)
    try:
        worker.load(baseline.definition, baseline.reference, timeout_s=reference.left("load"))
        for trial in baseline.trials if attempt.baseline.values is None else ():
            reference.put(trial)
        return PairedReference(attempt, reference)
    except (CandidateError, CapabilityError) as error:
        logger.info("the reference is not called beside solutions: %s", error.message)
        return None


def paired_speeds(
    taken: Measurement, alone: Optional[Measurement], beside: Optional[PairedSamples]
) -> Speeds:
    """Return what the samples of a solution say, and those of the reference beside it.

    What the machine did to the reference since it was alone, it may have done to the solution.

    Parameters
    ----------
    taken, alone : Measurement
        Of the solution, and of the reference on its own if that was timed.
    beside : PairedSamples, optional
        Of the reference in between the solution's calls.
    """
    if alone is None or beside is None:
        return speeds_of(taken, alone)
    drift = median(beside.samples_ms) / alone.latency_ms
    if drift <= _SLOWER:
        ratio = _paired(taken, beside)
        found = performance_of(taken, beside.samples_ms, ratio, drift=drift)
        return Speeds(found, "beside")
    times = f"{median(beside.samples_ms):.4g} ms beside this solution", alone.latency_ms
    note = "the reference took {} and {:.4g} ms alone: the latter counts".format(*times)
    # Who slows the reference down would have an interval that reaches far below its latency.
    drift = drift if beside.apart else 1.0
    return replace(speeds_of(taken, alone, drift=drift), notes=(note,))


def as_of_any_process(speeds: Speeds, ceilings: Ceilings) -> Speeds:
    """Return what samples of one process say, with what another process might have had."""
    found = speeds.performance
    latency, reference = found.latency_ms, found.reference_latency_ms
    own = _Z * ceilings.spread_ms(latency)
    of_reference = _Z * ceilings.spread_ms(reference) / reference if reference else 0.0
    interval, ratio = found.interval_ms, found.speedup_interval
    if interval is not None:
        interval = _widened(latency, interval, own)
    if ratio is not None:
        factor = found.speedup_factor
        ratio = _widened(factor, ratio, factor * math.hypot(own / latency, of_reference))
    changed = {"interval_ms": interval, "speedup_interval": ratio}
    return replace(speeds, performance=found.model_copy(update=changed))


def _widened(value: float, ends: tuple[float, float], reach: float) -> tuple[float, float]:
    low, high = (math.hypot(end - value, reach) for end in ends)
    low, high = rounded((max(value - low, 0.0), value + high))
    return min(low, value), max(high, value)


def _paired(taken: Measurement, beside: PairedSamples) -> Interval:
    """Return the speed-up, from the turns and the calls around them."""
    out, blocks = taken.dropped_numbers, []
    start = 0
    for samples, end in beside.blocks:
        own = [taken.samples_ms[n] for n in range(start, end) if n not in out]
        if own:
            blocks.append((samples, tuple(own)))
        start = end
    if not blocks:
        return ratio_interval(beside.samples_ms, taken.counted_ms, confidence=CONFIDENCE)
    return interleaved_ratio(blocks)
