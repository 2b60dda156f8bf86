"""What goes on beside the timed calls of a solution: turns of the reference, a look at clocks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional

from fib_judge.watch.environment import EnvironmentWatch, watchers_for
from fib_judge.watch.report import keep

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fib_judge.beside import Turns
    from fib_judge.records import VerifiedAttempt
    from fib_judge.timed import TimedRun

_LOOK_EVERY = 5
"""Timed calls from one look at the machine to the next: what is dropped is dropped in such rows."""


class Aside:
    """Begins to watch when it is made.

    Parameters
    ----------
    attempt : Attempt
        Whose timed calls are to be made.
    turns : Turns, optional
        Of the reference; None if it is not called in between.
    """

    def __init__(self, attempt: VerifiedAttempt, turns: Optional[Turns]) -> None:
        self._turns = turns
        self._deadline = attempt.deadline
        device, lock = attempt.session.device, attempt.session.clock_lock
        # A clock that is held low on purpose is not throttled.
        held = lock.request.sm_mhz if lock is not None and lock.request is not None else None
        watchers = watchers_for(device, attempt.config.watch, nominal_mhz=held)
        self._watch = EnvironmentWatch(device, watchers)
        self._watch.before()

    def visit(self, place: int) -> bool:
        """Do what is due after a timed call; see `take_calls`."""
        waited_s = 0.0
        if (place + 1) % _LOOK_EVERY == 0:
            with self._deadline.stopped():  # it may wait for a device that is too hot
                waited_s = self._watch.mark(place + 1)
        turned = self._turns.visit(place) if self._turns is not None else False
        return turned or waited_s > 0.0

    def completed(self, run: TimedRun) -> TimedRun:
        """Return `run` with what has been seen, and without what does not count."""
        taken = run.measurement
        self._watch.mark(len(taken.samples_ms))
        report = self._watch.after()
        dropped = rows_of(keep(taken.samples_ms, report).dropped)
        watched: dict[str, Any] = dict(report.facts)
        if report.waited_s:
            watched["waited_s"] = report.waited_s
        measurement = replace(taken, dropped=dropped, notes=(*taken.notes, *report.notes))
        beside = self._turns.beside if self._turns is not None else None
        return replace(run, measurement=measurement, beside=beside, watched=watched)


def rows_of(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return ascending numbers as rows: the first number of each, and the one after its last."""
    rows: list[tuple[int, int]] = []
    for number in numbers:
        if rows and rows[-1][1] == number:
            rows[-1] = (rows[-1][0], number + 1)
        else:
            rows.append((number, number + 1))
    return tuple(rows)
