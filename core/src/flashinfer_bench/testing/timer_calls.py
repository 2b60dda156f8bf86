"""What must hold of a single timed call; a part of the suite for timing backends."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.testing.timer_kit import (
    CLOCKS,
    LONG_MS,
    SHORT_MS,
    Oops,
    fail_on_purpose,
    is_timed_call,
)
from flashinfer_bench.testing.verdict import fail, in_short, require, skip

if TYPE_CHECKING:
    import pytest

    from flashinfer_bench.testing.timer_kit import TimerKit


class TimerCallChecks:
    """Tests of ``time_call``, with which the judge times each call on its own."""

    def test_one_call_gives_a_latency_and_its_result(self, kit: TimerKit) -> None:
        """``time_call`` returns milliseconds, and the very object that the function returned."""
        result = object()
        try:
            found: Any = kit.timer.time_call(lambda: result, (), device=kit.case.device)
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
            fail(
                f"timing one call of a function that works raised {in_short(error)}",
                why="the evaluation ends without a latency",
                fix="raise TimingError only where a measurement cannot be taken or makes no sense",
            )
        require(
            is_timed_call(found),
            f"time_call returned {found!r}",
            why="the judge checks outputs of timed calls, so it needs both",
            fix="return (milliseconds, result), the former a finite float that is not below zero",
        )
        require(
            found[1] is result,
            f"a function returned {result!r}, and time_call {found[1]!r} as its result",
            why="a correct solution would fail the check of its timed outputs",
            fix="return what the function returned as it is",
        )

    def test_one_call_is_in_milliseconds(self, kit: TimerKit) -> None:
        """Work of a known length has about that latency."""
        found = kit.call_work(LONG_MS)
        require(
            0.5 * LONG_MS <= found <= 50 * LONG_MS,
            f"one call of {LONG_MS:g} ms was measured as {found:g}",
            why="latencies are milliseconds everywhere",
            fix="convert: seconds times 1e3, microseconds by 1e3, nanoseconds by 1e6",
        )

    def test_one_call_is_one_call(self, kit: TimerKit) -> None:
        """The function is called once, with the arguments given; more often only if it says so."""
        calls: list[Any] = []
        for given in ((), (1, "two"), (None,)):
            calls.clear()
            kit.call(lambda *arguments: calls.append(arguments), given)
            seen = calls[:1] if kit.repeats and calls == [given] * len(calls) else calls
            require(
                seen == [given],
                f"time_call(function, {given!r}) called the function with {calls}",
                why="a second call with the same values can be answered from memory",
                fix="call function(*arguments), once and with no warm-up; or set repeats=True on "
                "the class and in the record, so that only trusted solutions are timed so",
            )

    def test_one_call_is_over_when_it_returns(self, kit: TimerKit) -> None:
        """It waits for the device, and so takes as long as it says."""
        ended: list[int] = []

        def work() -> None:
            kit.case.run(LONG_MS)
            ended.append(1)

        kit.call_work(SHORT_MS)
        begun = time.perf_counter()
        found, _ = kit.call(work)
        passed = (time.perf_counter() - begun) * 1e3
        require(
            bool(ended) and passed >= 0.5 * LONG_MS and found <= 2 * passed,
            f"time_call returned after {passed:g} ms, and told {found:g}, for {LONG_MS:g} ms of "
            f"work that {'had' if ended else 'had not'} come to its end",
            why="outputs are looked at next, and more may be written into them",
            fix="wait for the function, and for everything on the device, before returning",
        )

    def test_what_one_call_raises_goes_on(self, kit: TimerKit) -> None:
        """The function's own exception comes through."""
        kit.call_work(SHORT_MS)
        raised = Oops("the solution's own")

        def failing() -> None:
            raise raised

        found = _raised_by_call(kit, failing)
        require(
            found is raised,
            f"a function raised {raised!r}, and time_call {found!r}",
            why="the judge tells a solution's error from one of the timer by it",
            fix="catch nothing that comes from the function",
        )

    def test_one_call_leaves_the_garbage_collector_as_it_was(self, kit: TimerKit) -> None:
        """Also where the function raises."""
        before = gc.isenabled()
        after = []
        try:
            for enabled in (True, False):
                gc.enable() if enabled else gc.disable()
                kit.call_work(SHORT_MS)
                after.append(gc.isenabled())
                _raised_by_call(kit, fail_on_purpose)
                after.append(gc.isenabled())
        finally:
            gc.enable() if before else gc.disable()
        require(
            after == [True, True, False, False],
            f"collecting was on, on, off, off before time_call; afterwards it was {after}",
            why="the process decides when to collect, from one call to the next",
            fix="leave it alone, or restore it in a finally block",
        )

    def test_the_clock_of_one_call_was_looked_up_before(
        self, kit: TimerKit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A solution that replaces the functions of `time` does not change a latency."""
        if kit.case.work is not None:
            skip("the case brings its own work, which may need the functions of `time`")
        sleep, usual = time.sleep, kit.call_work(LONG_MS)
        with monkeypatch.context() as patch:
            for name in CLOCKS:
                patch.setattr(time, name, lambda: 0)
            found, _ = kit.call(lambda: sleep(LONG_MS / 1e3))
        require(
            found >= 0.5 * usual,
            f"with the functions of `time` replaced, what is usually measured as {usual:g} was "
            f"measured as {found:g}",
            why="any solution could choose its own latency",
            fix="look up every clock function in __init__, which runs before the solution is "
            "imported, and keep it on the object",
        )

    def test_notes_are_short_and_told_once(self, kit: TimerKit) -> None:
        """``take_notes`` returns a list of short texts, and forgets them."""
        kit.call_work(SHORT_MS)
        taken: Any = kit.timer.take_notes()
        again: Any = kit.timer.take_notes()
        require(
            isinstance(taken, list)
            and len(taken) <= 16
            and all(isinstance(note, str) and len(note) <= 256 for note in taken),
            f"take_notes returned {taken!r}",
            why="what is longer cannot be stored with the latencies",
            fix="return a list of at most 16 texts of at most 256 characters",
        )
        require(
            again == [],
            f"asked again with nothing measured in between, take_notes returned {again!r}",
            why="a remark on one workload would stand with all that follow",
            fix="return and forget what has been noted",
        )


def _raised_by_call(kit: TimerKit, function: Any) -> Optional[BaseException]:
    try:
        kit.timer.time_call(function, (), device=kit.case.device)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at
        return error
    return None
