"""One of the two that are compared, in one process: built, checked, called."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Optional

from fib_compare.paired.result import Obstacle
from fib_judge.timed import compare_timed
from flashinfer_bench.bench.calls import shoot, time_left
from flashinfer_bench.bench.evaluation import EvaluatorFailed, build, check_all
from flashinfer_bench.bench.executors.base import CandidateError, CandidateFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fib_compare.paired.result import ObstacleKind, Role
    from fib_judge.checks import TimedCheck
    from fib_judge.records import VerifiedAttempt
    from flashinfer_bench.bench.calls import TimedCall
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
                self._put_inputs()
                return
            found, _ = check_all(self.attempt)
        if not found.passed:
            raise CannotCompare(self.role, "wrong", f"{found.status.value}: {found.message}")

    def _put_inputs(self) -> None:
        attempt = self.attempt
        candidate, baseline = attempt.worker.candidate, attempt.baseline
        ways = [item.way for item in baseline.freedoms]
        for trial in baseline.trials:
            left = time_left(attempt.deadline, candidate, "inputs")
            candidate.put_inputs(
                trial.index, trial.inputs, baseline.axes, ways=ways, timeout_s=left
            )

    def shoot(self, variation: Variation) -> TimedCall:
        """Make one timed call, and do not keep it.

        Raises
        ------
        CannotCompare
            If the process fails.
        """
        attempt = self.attempt
        with blamed_on(self.role):
            return shoot(
                attempt.worker.candidate, variation, attempt.session.timer, attempt.deadline
            )

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
        if attempt.session.trust == "off":
            return
        candidate = attempt.worker.candidate
        with blamed_on(self.role):
            candidate.rest(timeout_s=time_left(attempt.deadline, candidate, "time"))

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
        candidate, deadline = self.attempt.worker.candidate, self.attempt.deadline
        with blamed_on(self.role):
            outputs = candidate.collect(timeout_s=time_left(deadline, candidate, "call"))
            with deadline.stopped():
                found = self._compared(check, outputs)
            left = time_left(deadline, candidate, "call")
            changed = candidate.changed_inputs(timeout_s=left)
        if found is not None and changed:
            raise CannotCompare(self.role, "wrong", f"a timed call changed {self._named(changed)}")
        if found is not None and not found.passed:
            text = f"a timed call gave other outputs than an untimed one: {found.message}"
            raise CannotCompare(self.role, "wrong", text)

    def _compared(self, check: Optional[TimedCheck], outputs: list[Any]) -> Optional[Check]:
        if check is not None:
            return compare_timed(self.attempt, check, outputs)
        with suppress(EvaluatorFailed):  # these outputs are those of other inputs
            compare_timed(self.attempt, self.attempt.baseline.checks[0], outputs)
        return None

    def _named(self, numbers: list[int]) -> str:
        names = list(self.attempt.baseline.definition.inputs)
        return ", ".join(repr(name) for number, name in enumerate(names) if number in numbers)
