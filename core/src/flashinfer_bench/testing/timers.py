"""The suite for timing backends."""

from __future__ import annotations

import gc
import time
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar, Optional

import pytest

from flashinfer_bench.testing.record_checks import require_constructible
from flashinfer_bench.testing.records import (
    RecordConformance,
    construct,
    factory_path,
    load_factory,
    require_available,
    spec_of,
)
from flashinfer_bench.testing.timer_calls import TimerCallChecks
from flashinfer_bench.testing.timer_kit import (
    CLOCKS,
    ITERATIONS,
    LONG_MS,
    SHORT_MS,
    Oops,
    TimerCase,
    TimerKit,
    fail_on_purpose,
    is_latency,
)
from flashinfer_bench.testing.verdict import fail, in_short, require, skip

if TYPE_CHECKING:
    from collections.abc import Callable


class TimerConformance(TimerCallChecks, RecordConformance):
    """All that a timing backend must keep to.

    Subclass it in a test module, and give it a fixture ``case`` that returns a `TimerCase`.
    """

    kind: ClassVar[str] = "timer"
    case_type: ClassVar[type] = TimerCase

    @pytest.fixture
    def kit(self, given: TimerCase, request: pytest.FixtureRequest) -> TimerKit:
        """Give the case and a new timer; skip the test if there is none here."""
        require_available(given, request)
        return TimerKit(given, construct(given))

    def test_the_factory_takes_what_it_is_given(
        self, given: TimerCase, request: pytest.FixtureRequest
    ) -> None:
        """The host constructs timers itself, without arguments."""
        load_factory(given)
        require_available(given, request)
        require_constructible(factory_path(given))

    def test_it_has_name_and_version(self, kit: TimerKit) -> None:
        """Both are set, and the name is the record's."""
        timer = kit.timer
        require(
            timer.name and timer.version,
            f"its name is {timer.name!r} and its version {timer.version!r}",
            why="both go into every trace: latencies of different timers are not comparable",
            fix="set name and version on the class; raise the version when numbers may change",
        )
        if isinstance(kit.case.record, str):
            return
        require(
            timer.name == kit.case.record.name,
            f"its name is {timer.name!r}, and the record's {kit.case.record.name!r}",
            why="a trace names a timer that nobody can find",
            fix="use one name",
        )

    def test_the_record_names_the_device(self, given: TimerCase) -> None:
        """The record is for the device that the case measures on."""
        record: Any = spec_of(given)
        device = given.device.partition(":")[0]
        require(
            device in record.devices,
            f"the record is for {', '.join(record.devices)}, and the case measures on {device!r}",
            why="timers are chosen by the record",
            fix="name the device in the record's devices",
        )

    def test_the_record_says_what_the_timer_is_like(self, kit: TimerKit) -> None:
        """Repeated calls, caches and the resolution are the same in both."""
        record: Any = spec_of(kit.case)
        for name in ("repeats", "caches", "resolution_ms"):
            told = getattr(record, name)
            true = getattr(kit.timer, name, told)
            require(
                told == true or (name == "resolution_ms" and None in (told, true)),
                f"{name} is {told!r} in the record, and {true!r} of the timer",
                why="timers are chosen, and refused, by the record, before they are imported",
                fix=f"set {name} to the same on the class and in the TimerSpec",
            )

    def test_there_is_one_sample_for_each_call(self, kit: TimerKit) -> None:
        """The result is a list of as many floats as there were timed calls."""
        for warmup, iterations in ((1, ITERATIONS), (0, 1), (2, 3)):
            found = _measured(TimerKit(kit.case, construct(kit.case)), warmup, iterations)
            samples = found if isinstance(found, list) else []
            require(
                len(samples) == iterations,
                f"warmup={warmup}, iterations={iterations} gave {found!r}",
                why="statistics are made from all samples, in the order taken",
                fix="return a list with one entry for each timed call, none for warm-up calls",
            )
            wrong = [each for each in samples if not is_latency(each)]
            require(
                not wrong,
                f"among the samples is {wrong[:1]}",
                why="a latency is a finite number of milliseconds, not below zero",
                fix="return floats; raise TimingError where a clock says something else",
            )

    def test_samples_are_milliseconds(self, kit: TimerKit) -> None:
        """Work of a known length has about that latency."""
        middle = median(kit.measure_work(LONG_MS))
        require(
            0.5 * LONG_MS <= middle <= 50 * LONG_MS,
            f"{LONG_MS:g} ms of work were measured as {middle:g}",
            why="latencies are milliseconds everywhere",
            fix="convert: seconds times 1e3, microseconds by 1e3, nanoseconds by 1e6",
        )

    def test_more_work_takes_longer(self, kit: TimerKit) -> None:
        """Twenty times the work has a larger latency."""
        short = median(kit.measure_work(SHORT_MS))
        long = median(kit.measure_work(LONG_MS))
        require(
            long > short,
            f"{SHORT_MS:g} ms of work were measured as {short:g}, {LONG_MS:g} ms as {long:g}",
            why="solutions are ranked by latency",
            fix="read the clock right before and right after each call",
        )

    def test_warm_up_calls_are_not_counted(self, kit: TimerKit) -> None:
        """Slow warm-up calls leave no trace in the samples."""
        calls: list[int] = []

        def slow_at_first() -> None:
            calls.append(1)
            kit.case.run(LONG_MS if len(calls) <= 3 else SHORT_MS)

        long = median(kit.measure_work(LONG_MS, warmup=0, iterations=1))
        samples = kit.measure(slow_at_first, warmup=3)
        slow = [sample for sample in samples if sample >= 0.8 * long]
        require(
            len(slow) < 2,  # one may be the machine's fault
            f"with three warm-up calls of {LONG_MS:g} ms and shorter ones after them: {samples}",
            why="the first calls compile, allocate and fill caches",
            fix="call `warmup` times before the first reading of the clock",
        )

    def test_each_call_gets_its_own_arguments(self, kit: TimerKit) -> None:
        """``arguments(i)`` is asked for each call in turn, and the function gets its result."""
        asked: list[int] = []
        got: list[Any] = []

        def arguments(index: int) -> tuple[Any, ...]:
            asked.append(index)
            return index, str(index)

        kit.measure(lambda *given: got.append(given), arguments, warmup=2, iterations=3)
        require(
            asked == list(range(5)),
            f"for 2 warm-up and 3 timed calls, arguments(i) was asked with i = {asked}",
            why="each call is to get values and pointers that it has not seen, as the judge chose",
            fix="call arguments(0), arguments(1), … once for each call, warm-up calls included",
        )
        if kit.repeats:
            got = [given for given, _ in groupby(got)]
        require(
            got == [(index, str(index)) for index in asked],
            f"the function was called with {got}",
            why="it would compute something else, or nothing",
            fix="call function(*arguments(i))",
        )

    def test_making_the_arguments_is_not_timed(self, kit: TimerKit) -> None:
        """A slow ``arguments(i)`` does not count."""

        def arguments(index: int) -> tuple[Any, ...]:
            kit.case.run(LONG_MS)
            return ()

        long = median(kit.measure_work(LONG_MS, warmup=0, iterations=1))
        samples = kit.measure(lambda: kit.case.run(SHORT_MS), arguments)
        require(
            min(samples) < 0.8 * long,
            f"{SHORT_MS:g} ms of work, with {LONG_MS:g} ms for the arguments: {samples}",
            why="copying inputs would be counted as the solution's time",
            fix="ask for the arguments before reading the clock",
        )

    def test_what_the_function_raises_goes_on(self, kit: TimerKit) -> None:
        """In a warm-up call and in a timed call, and nothing is called after that."""
        kit.measure_work(SHORT_MS, iterations=1)
        for warmup, iterations in ((1, 1), (0, 2)):
            calls: list[int] = []
            raised = Oops("the solution's own")

            def failing(calls: list[int] = calls, raised: BaseException = raised) -> None:
                calls.append(1)
                raise raised

            found = _raised_by(kit, failing, warmup, iterations)
            require(
                found is raised,
                f"with warmup={warmup} a function raised {raised!r}, and measure {found!r}",
                why="the judge tells a solution's error from one of the timer by it",
                fix="catch nothing that comes from the function",
            )
            require(
                len(calls) == 1,
                f"the function was called {len(calls)} times, although the first call raised",
                why="a broken solution must not be called again",
                fix="let the exception end the measurement",
            )

    def test_it_leaves_the_garbage_collector_as_it_was(self, kit: TimerKit) -> None:
        """Also where the function raises."""
        before = gc.isenabled()
        after = []
        try:
            for enabled in (True, False):
                gc.enable() if enabled else gc.disable()
                kit.measure_work(SHORT_MS, iterations=1)
                after.append(gc.isenabled())
                _raised_by(kit, fail_on_purpose, 0, 1)
                after.append(gc.isenabled())
        finally:
            gc.enable() if before else gc.disable()
        require(
            after == [True, True, False, False],
            f"collecting was on, on, off, off before measurements; afterwards it was {after}",
            why="the process goes on to build and call other things",
            fix="restore it in a finally block",
        )

    def test_it_can_measure_again(self, kit: TimerKit) -> None:
        """One timer serves a whole process."""
        kit.measure_work(SHORT_MS, iterations=2)
        again = _measured(kit, 1, 3)
        require(
            isinstance(again, (list, tuple)) and len(again) == 3,
            f"2 and then 3 iterations gave {again} the second time",
            why="a process measures once for each workload",
            fix="keep nothing from one measurement to the next",
        )

    def test_its_clock_was_looked_up_before(
        self, kit: TimerKit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A solution that replaces the functions of `time` does not change a latency."""
        if kit.case.work is not None:
            skip("the case brings its own work, which may need the functions of `time`")
        sleep, usual = time.sleep, median(kit.measure_work(LONG_MS, warmup=0, iterations=1))
        with monkeypatch.context() as patch:
            for name in CLOCKS:
                patch.setattr(time, name, lambda: 0)
            samples = kit.measure(lambda: sleep(LONG_MS / 1e3), iterations=2)
        require(
            min(samples) >= 0.5 * usual,
            f"with the functions of `time` replaced, what is usually measured as {usual:g} was "
            f"measured as {samples}",
            why="any solution could choose its own latency",
            fix="look up every clock function in __init__, which runs before the solution is "
            "imported, and keep it on the object",
        )


def _measured(kit: TimerKit, warmup: int, iterations: int) -> object:
    def work() -> None:
        kit.case.run(SHORT_MS)

    try:
        return kit.timer.measure(
            work, lambda index: (), warmup=warmup, iterations=iterations, device=kit.case.device
        )
    except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
        fail(
            f"measuring a function that works raised {in_short(error)}",
            why="the evaluation ends without a latency",
            fix="raise TimingError only where a measurement cannot be taken or makes no sense",
        )


def _raised_by(
    kit: TimerKit, function: Callable[[], None], warmup: int, iterations: int
) -> Optional[BaseException]:
    try:
        kit.timer.measure(
            function,
            lambda index: (),
            warmup=warmup,
            iterations=iterations,
            device=kit.case.device,
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at
        return error
    return None
