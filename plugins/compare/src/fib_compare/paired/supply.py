"""Calls with known outputs for the unannounced checks of a comparison: each is used once."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from fib_judge.checks import TimedCheck
from flashinfer_bench.bench.calls import Deadline, Variations
from flashinfer_bench.bench.executors.base import CandidateError
from flashinfer_bench.bench.measurement import ReferenceFailed, ReferenceProblem

if TYPE_CHECKING:
    import random

    from fib_judge.records import VerifiedBaseline, VerifiedSession

logger = logging.getLogger(__name__)

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
            self._refill()
        if len(self._fresh) < count:
            self.reused, self._fresh = True, list(self._last)
        taken, self._fresh = self._fresh[:count], self._fresh[count:]
        return taken

    def _refill(self) -> None:
        began = time.monotonic()
        try:
            self._last = self._computed()
        except (CandidateError, ReferenceFailed) as error:
            logger.warning("the reference gave no further outputs to check: %s", error)
            self._cost_s = float("inf")
            return
        self._fresh += self._last
        self._cost_s = time.monotonic() - began

    def _computed(self) -> list[TimedCheck]:
        session, baseline = self._session, self._baseline
        definition, free = baseline.definition, baseline.freedoms
        inputs = [trial.inputs for trial in baseline.trials]
        with session.pool.worker(("compare", "reference", definition.name)) as worker:
            worker.load(definition, baseline.reference, timeout_s=session.timeout_s)
            deadline = Deadline(session.timeout_s)
            problem = ReferenceProblem(
                session, worker, definition, baseline.workload, inputs, free, deadline
            )
            problem.put()
            variations = Variations(free, inputs, self._rng, session.warm)
            return [self._check(problem, variations) for _ in range(_BATCH)]

    def _check(self, problem: ReferenceProblem, variations: Variations) -> TimedCheck:
        variation, candidate = variations.draw(), problem.worker.candidate
        candidate.stage(variation, timeout_s=problem.left("time"))
        candidate.fire(variation, timer=self._session.timer, timeout_s=problem.left("time"))
        outputs = candidate.collect(timeout_s=problem.left("call"))
        base = self._baseline.trials[variation.slot]
        return TimedCheck(variation, problem.freedoms, base, problem.checked(outputs))
