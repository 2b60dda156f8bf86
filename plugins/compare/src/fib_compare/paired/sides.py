"""One side of a comparison: a solution that is built, checked and called in its own process."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Optional

from fib_compare.paired.result import Obstacle, ObstacleKind, Role
from fib_judge.integrity import Violation, find_overlap, longest, whole
from fib_judge.reference import more_checks
from fib_judge.timed import Course, TimedCheck, WrongTimedCall
from flashinfer_bench.bench.calls import find_impossible
from flashinfer_bench.bench.evaluation import build, check_all
from flashinfer_bench.bench.executors.base import CandidateError
from flashinfer_bench.bench.measurement import ReferenceFailed

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from fib_judge.records import VerifiedAttempt, VerifiedBaseline, VerifiedSession
    from flashinfer_bench.bench.executors.base import TimedCall


class CannotCompare(Exception):
    """A workload cannot be compared.

    Parameters
    ----------
    obstacle : Obstacle
        The reason.
    """

    def __init__(self, role: Role, kind: ObstacleKind, message: str) -> None:
        super().__init__(message)
        self.obstacle = Obstacle(role, kind, message)


@contextmanager
def blamed_on(role: Role) -> Iterator[None]:
    """Convert errors of the process of `role`, and its wrong outputs, to `CannotCompare`."""
    try:
        yield
    except CandidateError as error:
        kind: ObstacleKind = "unavailable" if error.is_no_fault else "failed"
        raise CannotCompare(role, kind, f"{error.stage}: {error.message}") from error
    except WrongTimedCall as wrong:
        raise CannotCompare(role, "wrong", str(wrong)) from wrong


class Side:
    """A solution in its process.

    Parameters
    ----------
    role : str
        ``baseline`` or ``candidate``.
    attempt : VerifiedAttempt
        The solution, and its process.

    Attributes
    ----------
    calls : list of TimedCall
        The timed calls so far, checked ones included.
    """

    def __init__(self, role: Role, attempt: VerifiedAttempt) -> None:
        self.role = role
        self.attempt = attempt
        self.calls: list[TimedCall] = []
        self.course: Optional[Course] = None

    def prepare(self, *, check: bool) -> None:
        """Build the solution and send it all input sets.

        Parameters
        ----------
        check : bool
            Whether to check its outputs.

        Raises
        ------
        CannotCompare
            If they are wrong, or the process fails.
        """
        with blamed_on(self.role):
            build(self.attempt)
            if not check:
                for trial in self.attempt.baseline.trials:
                    self.attempt.put(trial)
                return
            found, _, _ = check_all(self.attempt)
        if not found.passed:
            raise CannotCompare(self.role, "wrong", f"{found.status.value}: {found.message}")

    def begin(self, rng: random.Random) -> None:
        """Allocate shared memory for the calls.

        Parameters
        ----------
        rng : random.Random
            As for `Course`.

        Raises
        ------
        CannotCompare
            If the process fails.
        """
        baseline = self.attempt.baseline
        if baseline.values is None or baseline.overhead is None:
            return
        with blamed_on(self.role):
            self.course = Course(self.attempt, baseline.values, rng, baseline.overhead)

    def calls_at_once(self) -> int:
        """Return how many calls an exchange may have.

        Raises
        ------
        CannotCompare
            If the process fails.
        """
        with blamed_on(self.role):
            return 1 if self.course is None else self.course.at_once()

    def fire(self, numbers: Sequence[int], checks: Sequence[TimedCheck] = ()) -> list[TimedCall]:
        """Make the calls of one exchange without adding them to `calls`.

        Parameters
        ----------
        numbers : sequence of int
            Numbers of the calls, which select their values; trusted solutions get one call with one
            of the input sets.
        checks : sequence of TimedCheck
            The values and expected outputs of checked calls, which are among them.

        Raises
        ------
        CannotCompare
            If the process fails, the outputs are wrong, or an input has been changed.
        """
        with blamed_on(self.role):
            if self.course is None:
                return [self.attempt.fire(numbers[0] % len(self.attempt.baseline.trials))]
            made = self.course.take(numbers, secured=bool(checks))
            for check in checks:
                self.course.select(check.number)
                self.course.look(check, "a timed call")
            return list(made)

    def call_alone(self, checks: Sequence[TimedCheck]) -> None:
        """Make a few more calls whose time bounds that of the others.

        Parameters
        ----------
        checks : sequence of TimedCheck
            Their values and expected outputs.

        Raises
        ------
        CannotCompare
            As of `fire`.
        """
        if self.course is not None:
            with blamed_on(self.role):
                self.course.call_alone(checks)

    def samples_ms(self) -> tuple[float, ...]:
        """Return the mean latency of the calls of each exchange.

        On a GPU, if a solution takes far longer than the reference to return to the host, that
        time is included, as in `time_distrusting`.
        """
        single = self.course is not None and self.course.mode is None
        overhead, calls = self.attempt.baseline.overhead, self.calls
        holds = single and overhead is not None and overhead.holds_host(calls)
        made = whole(calls)
        return tuple((call.sample_ms + holds * call.enqueued_ms) / call.shared for call in made)

    def growth_ms(self) -> Optional[float]:
        """Return how much longer its exchanges take than is usual, on a GPU; None if unknown."""
        if self.course is None or self.course.mode is None or self.course.waits:
            return None
        return self.course.usual(self.calls).growth_ms((), longest(self.calls))

    def violation(self, growth_ms: float = 0.0) -> Optional[Violation]:
        """Return why its latencies are not believed, or None.

        Parameters
        ----------
        growth_ms : float
            How much longer exchanges take for both sides: a GPU with more processes is slower.
        """
        if self.course is not None:
            found = self.course.violation(self.calls, growth_ms)
            alone_ms = self.course.alone_ms(growth_ms)
            if found is not None or alone_ms is None:
                return found
            return find_overlap(median(call.sample_ms for call in self.calls), alone_ms)
        problem = find_impossible(self.calls)
        return Violation("samples", problem) if problem is not None else None

    def close(self) -> None:
        """Release the shared memory."""
        if self.course is not None:
            self.course.close()

    def rest(self) -> None:
        """Stop its processes until the next request.

        Otherwise its background work could slow the other side down. Trusted solutions are not
        stopped.

        Raises
        ------
        CannotCompare
            If the process has ended.
        """
        attempt = self.attempt
        if attempt.session.config.trust == "off":
            return
        with blamed_on(self.role):
            attempt.candidate.rest(timeout_s=attempt.left("time"))


logger = logging.getLogger(__name__)

_FEW = 3  # launches that may be discarded without consequences


class Disputes:
    """Checks the reported latencies of both sides for plausibility.

    A launch with disputed latencies, which a busy machine may have caused, is discarded and
    repeated. A side that is disputed in more than half of its launches, and in more than three,
    cannot be compared.
    """

    def __init__(self) -> None:
        self._launches = 0
        self._disputed: dict[str, int] = {}
        self.set_aside = 0

    def accepts(self, sides: tuple[Side, Side]) -> bool:
        """Return whether a launch counts.

        Raises
        ------
        CannotCompare
            If a side is disputed too often.
        """
        self._launches += 1
        grown = [one for side in sides if (one := side.growth_ms()) is not None]
        growth_ms = min(grown, default=0.0)  # nobody can slow the other down
        for side in sides:
            violation = side.violation(growth_ms)
            if violation is None:
                continue
            count = self._disputed[side.role] = self._disputed.get(side.role, 0) + 1
            if not violation.disputable or (count > _FEW and 2 * count > self._launches):
                many = f"{count} of {self._launches} launches"
                raise CannotCompare(side.role, "not believed", f"{violation} (in {many})")
            logger.info("%s: %s; the launch is discarded", side.role, violation)
            self.set_aside += 1
            return False
        return True


_BATCH = 12  # exchanges
_MOST_BYTES = 1 << 30  # of outputs, if there are more than are needed at once
_TIME_SHARE = 0.2  # share of the time of a comparison that one refill may take


class CheckSupply:
    """Supplies checks, and lets the reference compute new ones when they are used up.

    A solution might store the values of a checked call for its next process, so no process gets a
    check of an earlier one. Only if the reference is too slow are checks reused, and `reused` is
    set.

    Parameters
    ----------
    session : VerifiedSession
        The run.
    baseline : VerifiedBaseline
        Provides the first checks; none if candidates are trusted.
    budget_s : float
        Time limit of the whole comparison in seconds.
    rng : random.Random
        Draws the values of calls.
    """

    def __init__(
        self,
        session: VerifiedSession,
        baseline: VerifiedBaseline,
        budget_s: float,
        rng: random.Random,
    ) -> None:
        self._session, self._baseline, self._rng = session, baseline, rng
        self._most_s = budget_s * _TIME_SHARE
        self._last = [*baseline.checks, *baseline.checks_alone]
        self._fresh = list(self._last)
        self._cost_s = 0.0
        self._together = baseline.mode.calls if baseline.mode is not None else 1
        self.reused = False

    def take(self, exchanges: int) -> tuple[list[list[TimedCheck]], list[TimedCheck]]:
        """Return checks for the calls of exchanges, and for calls made alone, all different.

        They may be fewer, and are none if candidates are trusted.
        """
        if not self._baseline.checks:
            return [], []
        single = len(self._baseline.checks_alone)
        count = exchanges * self._together + single
        if len(self._fresh) < count and self._cost_s <= self._most_s:
            began = time.monotonic()
            try:
                self._last = self._computed(count)
            except ReferenceFailed as error:
                logger.warning("%s", error)
                self._cost_s = float("inf")
            else:
                self._fresh += self._last
                self._cost_s = time.monotonic() - began
        if len(self._fresh) < count:
            self.reused, self._fresh = True, list(self._last)
        taken, self._fresh = self._fresh[:count], self._fresh[count:]
        alone, others = taken[:single], taken[single:]
        return [group for n in range(exchanges) if (group := others[n::exchanges])], alone

    def _computed(self, least: int) -> list[TimedCheck]:
        session, baseline = self._session, self._baseline
        nbytes = sum(one.nbytes for one in baseline.checks[0].expected)
        count = max(least, min(_BATCH * self._together, _MOST_BYTES // max(1, nbytes)))
        return more_checks(session, baseline, count, self._rng)
