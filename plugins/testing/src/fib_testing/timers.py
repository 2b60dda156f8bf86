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
    """A timing backend, and work of a known duration.

    Parameters
    ----------
    record : TimerSpec or str
        The record that the plugin registers, or the path of the factory.
    device : str
        The device on which it measures.
    work : callable, optional
        Keeps the device busy for at least the given milliseconds, and not many times longer.
        Default: sleeps, which timers of device activity do not measure.
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
    """A case and a new timer; failed measurements skip tests that are about something else."""

    def __init__(self, case: TimerCase, timer: Any) -> None:
        self.case = case
        self.timer = timer
        self.repeats = bool(getattr(timer, "repeats", False))

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...] = ()) -> float:
        """Return the latency of one call; skip the test if that fails."""
        with must_work("time_call", see=_SEE_CALL):
            found: Any = self.timer.time_call(function, arguments, device=self.case.device)
        if not _is_timed_call(found):
            pytest.skip(f"time_call returned {found!r}: see {_SEE_CALL}")
        latency: float = found[0]
        return latency

    def call_work(self, milliseconds: float) -> float:
        """Return the latency of work of a known duration."""
        return self.call(lambda: self.case.run(milliseconds))

    def raise_in_call(self, error: Exception) -> None:
        """Time a call that raises."""

        def fail() -> None:
            raise error

        self.timer.time_call(fail, (), device=self.case.device)


class TimerConformance(RecordConformance):
    """The contract of timing backends.

    Subclass it in a test module, and give it a fixture ``case`` that returns a `TimerCase`.
    """

    kind: ClassVar[str] = "timer"
    case_type: ClassVar[type] = TimerCase

    @pytest.fixture
    def kit(self, given: TimerCase, made: Any) -> TimerKit:
        """Return the kit of the case; skip the test if the timer is unavailable here."""
        return TimerKit(given, made)

    test_it_has_name_and_version = check_name_and_version

    def test_the_record_names_the_device(self, given: TimerCase) -> None:
        """The record has the device of the case.

        Why it matters: timers are chosen by their records.

        To do: add the device to the record's devices.
        """
        device, devices = given.device.partition(":")[0], record_of(given).devices
        require(
            device in devices,
            f"the record is for {', '.join(devices)}, but the case measures on {device!r}",
        )

    def test_the_record_says_what_the_timer_is_like(self, kit: TimerKit) -> None:
        """Record and class agree about repeated calls, caches and the resolution.

        Why it matters: timers are chosen and rejected by their records, before they are imported.

        To do: set the same values on the class and in the TimerSpec.
        """
        record = record_of(kit.case)
        for name in ("repeats", "caches", "resolution_ms"):
            told = getattr(record, name)
            true = getattr(kit.timer, name, told)
            require(
                told == true or (name == "resolution_ms" and None in (told, true)),
                f"{name} is {told!r} in the record, but {true!r} in the timer",
            )

    def test_one_call_gives_a_latency_and_its_result(self, kit: TimerKit) -> None:
        """``time_call`` returns milliseconds and the object that the function returned.

        Why it matters: the judge checks the outputs of timed calls; a correct solution would fail.

        To do: return (milliseconds, result): a finite float that is not negative, and the object
        that the function returned. Raise TimingError only if a measurement is invalid.
        """
        result = object()
        with must_work("timing one call of a function that works"):
            found: Any = kit.timer.time_call(lambda: result, (), device=kit.case.device)
        require(_is_timed_call(found), f"time_call returned {found!r}")
        require(
            found[1] is result,
            f"a function returned {result!r}, but time_call returned {found[1]!r} as its result",
        )

    def test_one_call_is_in_milliseconds(self, kit: TimerKit) -> None:
        """Work of a known duration has about that latency.

        Why it matters: all latencies are in milliseconds.

        To do: multiply seconds by 1e3; divide microseconds by 1e3 and nanoseconds by 1e6.
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
        """The function is called once with the given arguments, unless the timer has `repeats`.

        Why it matters: a second call with the same values can be answered from memory.

        To do: call function(*arguments) once, without warm-up; or set repeats=True on the class
        and in the record, so that it times only trusted solutions.
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
        """``time_call`` waits for the device, so it takes at least the measured time.

        Why it matters: outputs are checked next, while they may still be written to.

        To do: wait for the function and for all work on the device before returning.
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
            f"time_call returned after {passed:g} ms and measured {found:g} for {LONG_MS:g} ms of "
            f"work that {'had' if ended else 'had not'} ended",
        )

    def test_what_one_call_raises_goes_on(self, kit: TimerKit) -> None:
        """Exceptions of the function reach the caller.

        Why it matters: the judge distinguishes errors of solutions from those of timers.

        To do: do not catch exceptions of the function.
        """
        kit.call_work(SHORT_MS)
        error = RuntimeError("raised by the solution")
        found = raised_by(lambda: kit.raise_in_call(error))
        require(found is error, f"a function raised {error!r}, but time_call raised {found!r}")

    def test_one_call_leaves_the_garbage_collector_as_it_was(self, kit: TimerKit) -> None:
        """The garbage collector is enabled or disabled as before, even if the function raises.

        Why it matters: the process controls garbage collection between calls.

        To do: do not change it, or restore it in a finally block.
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
            f"garbage collection was on, on, off, off before calls, and {after} afterwards",
        )

    def test_the_clock_of_one_call_was_looked_up_before(
        self, kit: TimerKit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A solution that replaces the functions of `time` does not affect latencies.

        Why it matters: otherwise a solution could choose its latency.

        To do: look up clock functions in __init__, which runs before the solution is imported, and
        store them on the object.
        """
        if kit.case.work is not None:
            pytest.skip("the case has its own work, which may need the functions of `time`")
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
        """``take_notes`` returns a list of short texts once.

        Why it matters: longer texts cannot be stored with the latencies, and a note about one
        workload would be repeated for later ones.

        To do: return at most 16 texts of at most 256 characters, and discard them.
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
            f"called again without a measurement in between, take_notes returned {again!r}",
        )


def _is_timed_call(value: Any) -> bool:
    if not (isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], float)):
        return False
    return math.isfinite(value[0]) and value[0] >= 0
