"""The suite for timing backends."""

from __future__ import annotations

import gc
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Optional

import pytest

from fib_testing.records import (
    RecordCase,
    RecordConformance,
    check_name_and_version,
    must_work,
    needed,
    raised_by,
    record_of,
    require,
)

if TYPE_CHECKING:
    from collections.abc import Callable


LONG_MS = 40.0
SHORT_MS = 2.0

_CLOCKS = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns")
_SEE_CALL = "test_one_call_gives_a_latency_and_its_result"


@dataclass(frozen=True, kw_only=True)
class TimerCase(RecordCase):
    """A timing backend, and work of a known length for it.

    Parameters
    ----------
    record : TimerSpec or str
        What the plugin registers, or the path of the factory.
    device : str
        Where it measures.
    work : callable, optional
        Keeps the device busy for at least the given milliseconds when it is called, and not for
        many times as long. Default: sleeps, which a timer of device activity does not see.
    plugin : str, optional
        The plugin's module, as in its entry point. Default: the top-level package of the factory.
    """

    device: str = "cpu"
    work: Optional[Callable[[float], object]] = None

    def run(self, milliseconds: float) -> None:
        """Keep the device busy."""
        if self.work is not None:
            self.work(milliseconds)
        else:
            time.sleep(milliseconds / 1e3)


class TimerKit:
    """A case and a new timer; each measurement skips the test that is none of its business."""

    def __init__(self, case: TimerCase, timer: Any) -> None:
        self.case = case
        self.timer = timer
        self.repeats = bool(getattr(timer, "repeats", False))

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...] = ()) -> float:
        """Return the latency of one call; skip the test if that goes wrong."""
        with needed("time_call", _SEE_CALL):
            found: Any = self.timer.time_call(function, arguments, device=self.case.device)
        if not _is_timed_call(found):
            pytest.skip(f"time_call returned {found!r}: see {_SEE_CALL}")
        latency: float = found[0]
        return latency

    def call_work(self, milliseconds: float) -> float:
        """Return the latency of work of a known length."""
        return self.call(lambda: self.case.run(milliseconds))

    def raise_in_call(self, error: Exception) -> None:
        """Time a call that raises."""

        def fail() -> None:
            raise error

        self.timer.time_call(fail, (), device=self.case.device)


class TimerConformance(RecordConformance):
    """All that a timing backend must keep to.

    Subclass it in a test module, and give it a fixture ``case`` that returns a `TimerCase`.
    """

    kind: ClassVar[str] = "timer"
    case_type: ClassVar[type] = TimerCase

    @pytest.fixture
    def kit(self, given: TimerCase, made: Any) -> TimerKit:
        """Give the case and a new timer; skip the test if there is none here."""
        return TimerKit(given, made)

    test_it_has_name_and_version = check_name_and_version

    def test_the_record_names_the_device(self, given: TimerCase) -> None:
        """The record is for the device that the case measures on.

        Why it matters: timers are chosen by the record.

        To do: name the device in the record's devices.
        """
        device, devices = given.device.partition(":")[0], record_of(given).devices
        require(
            device in devices,
            f"the record is for {', '.join(devices)}, and the case measures on {device!r}",
        )

    def test_the_record_says_what_the_timer_is_like(self, kit: TimerKit) -> None:
        """Repeated calls, caches and the resolution are the same in both.

        Why it matters: timers are chosen, and refused, by the record, before they are imported.

        To do: set it to the same on the class and in the TimerSpec.
        """
        record = record_of(kit.case)
        for name in ("repeats", "caches", "resolution_ms"):
            told = getattr(record, name)
            true = getattr(kit.timer, name, told)
            require(
                told == true or (name == "resolution_ms" and None in (told, true)),
                f"{name} is {told!r} in the record, and {true!r} of the timer",
            )

    def test_one_call_gives_a_latency_and_its_result(self, kit: TimerKit) -> None:
        """``time_call`` returns milliseconds, and the very object that the function returned.

        Why it matters: the judge checks the outputs of timed calls, so it needs both; a correct
        solution would fail that check.

        To do: return (milliseconds, result): a finite float that is not below zero, and what the
        function returned as it is. Raise TimingError only where a measurement makes no sense.
        """
        result = object()
        with must_work("timing one call of a function that works"):
            found: Any = kit.timer.time_call(lambda: result, (), device=kit.case.device)
        require(_is_timed_call(found), f"time_call returned {found!r}")
        require(
            found[1] is result,
            f"a function returned {result!r}, and time_call {found[1]!r} as its result",
        )

    def test_one_call_is_in_milliseconds(self, kit: TimerKit) -> None:
        """Work of a known length has about that latency.

        Why it matters: latencies are milliseconds everywhere.

        To do: convert: seconds times 1e3, microseconds by 1e3, nanoseconds by 1e6.
        """
        found = kit.call_work(LONG_MS)
        require(
            0.5 * LONG_MS <= found <= 50 * LONG_MS,
            f"one call of {LONG_MS:g} ms was measured as {found:g}",
        )

    def test_more_work_takes_longer(self, kit: TimerKit) -> None:
        """Twenty times the work has a larger latency.

        Why it matters: solutions are ranked by latency.

        To do: read the clock right before and right after the call.
        """
        short, long = min(kit.call_work(SHORT_MS) for _ in range(3)), kit.call_work(LONG_MS)
        require(
            long > short,
            f"{SHORT_MS:g} ms of work were measured as {short:g}, {LONG_MS:g} ms as {long:g}",
        )

    def test_one_call_is_one_call(self, kit: TimerKit) -> None:
        """The function is called once, with the arguments given; more often only if it says so.

        Why it matters: a second call with the same values can be answered from memory.

        To do: call function(*arguments), once and with no warm-up; or set repeats=True on the class
        and in the record, so that only trusted solutions are timed so.
        """
        calls: list[Any] = []
        for given in ((), (1, "two"), (None,)):
            calls.clear()
            kit.call(lambda *arguments: calls.append(arguments), given)
            seen = calls[:1] if kit.repeats and calls == [given] * len(calls) else calls
            require(
                seen == [given],
                f"time_call(function, {given!r}) called the function with {calls}",
            )

    def test_one_call_is_over_when_it_returns(self, kit: TimerKit) -> None:
        """It waits for the device, and so takes as long as it says.

        Why it matters: outputs are looked at next, and more may be written into them.

        To do: wait for the function, and for everything on the device, before returning.
        """
        ended: list[int] = []

        def work() -> None:
            kit.case.run(LONG_MS)
            ended.append(1)

        kit.call_work(SHORT_MS)
        begun = time.perf_counter()
        found = kit.call(work)
        passed = (time.perf_counter() - begun) * 1e3
        require(
            bool(ended) and passed >= 0.5 * LONG_MS and found <= 2 * passed,
            f"time_call returned after {passed:g} ms, and told {found:g}, for {LONG_MS:g} ms of "
            f"work that {'had' if ended else 'had not'} come to its end",
        )

    def test_what_one_call_raises_goes_on(self, kit: TimerKit) -> None:
        """The function's own exception comes through.

        Why it matters: the judge tells a solution's error from one of the timer by it.

        To do: catch nothing that comes from the function.
        """
        kit.call_work(SHORT_MS)
        error = RuntimeError("the solution's own")
        found = raised_by(lambda: kit.raise_in_call(error))
        require(found is error, f"a function raised {error!r}, and time_call {found!r}")

    def test_one_call_leaves_the_garbage_collector_as_it_was(self, kit: TimerKit) -> None:
        """Also where the function raises.

        Why it matters: the process decides when to collect, from one call to the next.

        To do: leave it alone, or restore it in a finally block.
        """
        before, after = gc.isenabled(), []
        runs = (lambda: kit.call_work(SHORT_MS), lambda: kit.raise_in_call(RuntimeError()))
        try:
            for enabled in (True, False):
                for run in runs:
                    gc.enable() if enabled else gc.disable()
                    raised_by(run)
                    after.append(gc.isenabled())
        finally:
            gc.enable() if before else gc.disable()
        require(
            after == [True, True, False, False],
            f"collecting was on, on, off, off before calls; afterwards it was {after}",
        )

    def test_the_clock_of_one_call_was_looked_up_before(
        self, kit: TimerKit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A solution that replaces the functions of `time` does not change a latency.

        Why it matters: any solution could choose its own latency.

        To do: look up every clock function in __init__, which runs before the solution is imported,
        and keep it on the object.
        """
        if kit.case.work is not None:
            pytest.skip("the case brings its own work, which may need the functions of `time`")
        sleep, usual = time.sleep, min(kit.call_work(LONG_MS) for _ in range(3))
        with monkeypatch.context() as patch:
            for name in _CLOCKS:
                patch.setattr(time, name, lambda: 0)
            found = kit.call(lambda: sleep(LONG_MS / 1e3))
        require(
            found >= 0.5 * usual,
            f"with the functions of `time` replaced, what is usually measured as {usual:g} was "
            f"measured as {found:g}",
        )

    def test_notes_are_short_and_told_once(self, kit: TimerKit) -> None:
        """``take_notes`` returns a list of short texts, and forgets them.

        Why it matters: what is longer cannot be stored with the latencies, and a remark on one
        workload would stand with all that follow.

        To do: return at most 16 texts of at most 256 characters, and forget what has been noted.
        """
        kit.call_work(SHORT_MS)
        taken: Any = kit.timer.take_notes()
        again: Any = kit.timer.take_notes()
        require(
            isinstance(taken, list)
            and len(taken) <= 16
            and all(isinstance(note, str) and len(note) <= 256 for note in taken),
            f"take_notes returned {taken!r}",
        )
        require(
            again == [],
            f"asked again with nothing measured in between, take_notes returned {again!r}",
        )


def _is_timed_call(value: Any) -> bool:
    if not (isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], float)):
        return False
    return math.isfinite(value[0]) and value[0] >= 0
