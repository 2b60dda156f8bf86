"""One of the two that are compared, in one process: built, checked, called."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Optional

from fib_compare.paired.result import Obstacle, ObstacleKind, Role
from fib_judge.integrity import Claim, Inquiry, Normals, inquire
from fib_judge.reference import renewed_normal
from fib_judge.timed import TimedCheck, compare_timed, poisoned_bytes
from flashinfer_bench.bench.calls import (
    Attempt,
    Deadline,
    TimedCall,
    Variations,
    find_impossible,
)
from flashinfer_bench.bench.evaluation import EvaluatorFailed, build, check_all
from flashinfer_bench.bench.executors.base import CandidateError, CandidateFailed
from flashinfer_bench.bench.measurement import ReferenceFailed, checked_outputs

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from fib_judge.records import VerifiedAttempt, VerifiedBaseline, VerifiedSession
    from flashinfer_bench.bench.evaluators.base import Check
    from flashinfer_bench.tensors.vary import Variation


class CannotCompare(Exception):
    """There is no comparison on a workload.

    Parameters
    ----------
    obstacle : Obstacle
        Why.
    """

    def __init__(self, role: Role, kind: ObstacleKind, message: str) -> None:
        super().__init__(message)
        self.obstacle = Obstacle(role, kind, message)


@contextmanager
def blamed_on(role: Role) -> Iterator[None]:
    """Turn what a process of `role` fails with into `CannotCompare`."""
    try:
        yield
    except CandidateError as error:
        no_fault = isinstance(error, CandidateFailed) and error.is_no_fault
        kind: ObstacleKind = "unavailable" if no_fault else "failed"
        raise CannotCompare(role, kind, f"{error.stage}: {error.message}") from error


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
        The timed calls so far, those that were looked at among them.
    """

    def __init__(self, role: Role, attempt: VerifiedAttempt) -> None:
        self.role = role
        self.attempt = attempt
        self.calls: list[TimedCall] = []

    def prepare(self, *, check: bool) -> None:
        """Build the solution, and send it all input sets.

        Parameters
        ----------
        check : bool
            Whether its outputs are looked at.

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
            found, _ = check_all(self.attempt)
        if not found.passed:
            raise CannotCompare(self.role, "wrong", f"{found.status.value}: {found.message}")

    def shoot(self, variation: Variation) -> TimedCall:
        """Make one timed call, and do not keep it.

        Raises
        ------
        CannotCompare
            If the process fails.
        """
        with blamed_on(self.role):
            return self.attempt.shoot(variation)

    def rest(self) -> None:
        """Stop its processes until they are asked again.

        Otherwise what it does in the background could slow the other side down. Whoever is trusted
        is left alone.

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

    def look(self, check: Optional[TimedCheck]) -> None:
        """Look at what the last call has left behind.

        Parameters
        ----------
        check : TimedCheck, optional
            What it must be; None compares with anything, for as long as it takes.

        Raises
        ------
        CannotCompare
            If the outputs are wrong, an input has been changed, or the process fails.
        """
        attempt = self.attempt
        with blamed_on(self.role):
            outputs = attempt.candidate.collect(timeout_s=attempt.left("call"))
            with attempt.deadline.stopped():
                found = self._compared(check, outputs)
            changed = attempt.candidate.changed_inputs(timeout_s=attempt.left("call"))
        if found is not None and changed:
            inputs = enumerate(self.attempt.baseline.definition.inputs)
            names = ", ".join(repr(name) for number, name in inputs if number in changed)
            raise CannotCompare(self.role, "wrong", f"a timed call changed {names}")
        if found is not None and not found.passed:
            text = f"a timed call gave other outputs than an untimed one: {found.message}"
            raise CannotCompare(self.role, "wrong", text)

    def _compared(self, check: Optional[TimedCheck], outputs: list[Any]) -> Optional[Check]:
        if check is not None:
            return compare_timed(self.attempt, check, outputs)
        with suppress(EvaluatorFailed):  # these outputs are those of other inputs
            compare_timed(self.attempt, self.attempt.baseline.checks[0], outputs)
        return None


logger = logging.getLogger(__name__)

_FEW = 3  # launches that may be set aside before anything follows from it


class Beliefs:
    """Holds the claims of both sides against what is known of the reference and the device.

    A launch whose claims are disputed is set aside, so that nobody gains by it, and another one
    takes its place. Whoever is disputed in more than half of its launches, and in more than three,
    is not believed any more; where noise, or a device's host, may be the reason, the launch then
    counts with the time added that its timer has not seen.

    Parameters
    ----------
    session : VerifiedSession
        The run.
    baseline : VerifiedBaseline
        What the workload was prepared with. Without a ``normal`` all is believed that is possible.
    """

    def __init__(self, session: VerifiedSession, baseline: VerifiedBaseline) -> None:
        self._session, self._baseline = session, baseline
        self._normal = baseline.normal
        self._launches = 0
        self._disputed: dict[str, int] = {}
        self.set_aside = 0
        self.added_ms: dict[str, float] = {}

    def weigh(self, sides: tuple[Side, Side]) -> Optional[tuple[float, float]]:
        """Return the milliseconds to add to each side's samples; None sets the launch aside.

        Raises
        ------
        CannotCompare
            If a claim is not believed.
        """
        if self._normal is None:
            for side in sides:
                problem = find_impossible(side.calls)
                if problem is not None:
                    raise CannotCompare(side.role, "not believed", problem)
            return 0.0, 0.0
        self._launches += 1
        found = [(side, self._inquire(side, other)) for side, other in (sides, sides[::-1])]
        disputed = [one for one in found if one[1].violation is not None]
        for side, inquiry in disputed:
            assert inquiry.violation is not None
            if not inquiry.violation.disputable:
                raise CannotCompare(side.role, "not believed", str(inquiry.violation))
            self._disputed[side.role] = self._disputed.get(side.role, 0) + 1
        if not disputed:
            return 0.0, 0.0
        counts = [self._disputed[side.role] for side, _ in disputed]
        if all(count > _FEW and 2 * count > self._launches for count in counts):
            return self._added(found)
        side, inquiry = disputed[0]
        logger.info("%s: %s; the launch is set aside", side.role, inquiry.violation)
        self.set_aside += 1
        if self.set_aside == 1:
            self._normal = renewed_normal(self._session, self._baseline, self._normal)
        return None

    def _added(self, found: list[tuple[Side, Inquiry]]) -> tuple[float, float]:
        for side, inquiry in found:
            violation = inquiry.violation
            if violation is None:
                continue
            if self._session.device == "cpu" and not violation.undecided:
                many = f"{self._disputed[side.role]} of {self._launches} launches"
                raise CannotCompare(side.role, "not believed", f"{violation} (in {many})")
            self.added_ms[side.role] = max(inquiry.unseen_ms, self.added_ms.get(side.role, 0.0))
        first, second = (inquiry.unseen_ms if inquiry.violation else 0.0 for _, inquiry in found)
        return first, second

    def _inquire(self, side: Side, other: Side) -> Inquiry:
        """Hold the claims of a side against what is known.

        Both sides may be on one core, where the reference was not: inputs are then changed, and
        calls made ready, by one thread instead of several. What that takes the other side shows.
        """
        session = self._session
        claim = Claim(
            calls=tuple(side.calls),
            timer=session.timer,
            timer_version=session.timer_version,
            floor=self._baseline.floor,
            poisoned_bytes=poisoned_bytes(side.attempt),
            device=session.device,
        )
        assert self._normal is not None
        return inquire(claim, _beside(self._normal, other))


def _beside(normal: Normals, other: Side) -> Normals:
    """Return `normal` with the time of changes and of getting ready that the other side took."""
    if find_impossible(other.calls) is not None:
        return normal
    there = Normals.of(other.calls)
    # As they are, and not the best of either: where the reference was, it may have been quicker.
    slower = {
        part: max(getattr(normal, part), getattr(there, part), key=attrgetter("median_ms"))
        for part in ("exchange", "stage")
    }
    return replace(normal, **slower)


_BATCH = 12
_TIME_SHARE = 0.2  # of the time for a comparison, that one refill may take


class CheckSupply:
    """Hands out checks, and has the reference compute new ones when they are used up.

    A solution may write down what a call that was looked at has seen, and its next process may
    read it. So no process gets a check that an earlier one has had. Only where the reference is too
    slow for that, `reused` tells that they come again.

    Parameters
    ----------
    session : VerifiedSession
        The run.
    baseline : VerifiedBaseline
        Has the first checks; none if candidates are trusted.
    budget_s : float
        Seconds that the whole comparison may take.
    rng : random.Random
        Draws variations.
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
        self._fresh = list(baseline.checks)
        self._last = list(baseline.checks)
        self._cost_s = 0.0
        self.reused = False

    def take(self, count: int) -> list[TimedCheck]:
        """Return `count` checks, or fewer; none if candidates are trusted."""
        if not self._baseline.checks:
            return []
        if len(self._fresh) < count and self._cost_s <= self._most_s:
            began = time.monotonic()
            try:
                self._last = self._computed()
            except (CandidateError, ReferenceFailed) as error:
                logger.warning("the reference gave no further outputs to check: %s", error)
                self._cost_s = float("inf")
            else:
                self._fresh += self._last
                self._cost_s = time.monotonic() - began
        if len(self._fresh) < count:
            self.reused, self._fresh = True, list(self._last)
        taken, self._fresh = self._fresh[:count], self._fresh[count:]
        return taken

    def _computed(self) -> list[TimedCheck]:
        session, baseline = self._session, self._baseline
        definition, limit_s = baseline.definition, session.config.timeout_seconds
        with session.pool.worker(("compare", "reference", definition.name)) as worker:
            worker.load(definition, baseline.reference, timeout_s=limit_s)
            deadline = Deadline(limit_s)
            attempt = Attempt(session, baseline.reference, baseline, worker, deadline)
            for trial in baseline.trials:
                attempt.put(trial)
            variations = Variations(baseline, self._rng)
            checks = []
            for _ in range(_BATCH):
                variation = variations.draw()
                attempt.shoot(variation)
                outputs = attempt.candidate.collect(timeout_s=attempt.left("call"))
                expected = checked_outputs(baseline, outputs)
                base = baseline.trials[variation.slot]
                checks.append(TimedCheck(variation, baseline.freedoms, base, expected))
            return checks
