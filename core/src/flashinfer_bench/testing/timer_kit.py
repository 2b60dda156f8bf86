"""What an author gives to the suite for timing backends, and what its tests work with."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench.testing.verdict import in_short, skip

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashinfer_bench.bench.timing import Timer
    from flashinfer_bench.plugins import TimerSpec

LONG_MS = 40.0
SHORT_MS = 2.0
ITERATIONS = 3
CLOCKS = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns")

_SEE_SAMPLES = "see test_there_is_one_sample_for_each_call"
_SEE_CALL = "see test_one_call_gives_a_latency_and_its_result"


@dataclass(frozen=True, kw_only=True)
class TimerCase:
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

    record: Union[TimerSpec, str]
    device: str = "cpu"
    work: Optional[Callable[[float], object]] = None
    plugin: Optional[str] = None

    def run(self, milliseconds: float) -> None:
        """Keep the device busy."""
        if self.work is not None:
            self.work(milliseconds)
        else:
            time.sleep(milliseconds / 1e3)


class TimerKit:
    """A case and a timer that is made for one test.

    Parameters
    ----------
    case : TimerCase
        What the author gives.
    timer : Timer
        A new one.
    """

    def __init__(self, case: TimerCase, timer: Timer) -> None:
        self.case = case
        self.timer = timer

    @property
    def repeats(self) -> bool:
        """Whether the timer may call a function more than once for a sample."""
        return bool(getattr(self.timer, "repeats", False))

    def measure(
        self,
        function: Callable[..., Any],
        arguments: Callable[[int], tuple[Any, ...]] = lambda index: (),
        *,
        warmup: int = 1,
        iterations: int = ITERATIONS,
    ) -> list[float]:
        """Measure; skip the test if that goes wrong, which one test reports."""
        try:
            samples = self.timer.measure(
                function, arguments, warmup=warmup, iterations=iterations, device=self.case.device
            )
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
            skip(f"measuring raised {in_short(error)}: {_SEE_SAMPLES}")
        if len(samples) != iterations:
            skip(f"{len(samples)} samples for {iterations} calls: {_SEE_SAMPLES}")
        if not all(map(is_latency, samples)):
            skip(f"samples are {samples}: {_SEE_SAMPLES}")
        return samples

    def measure_work(
        self, milliseconds: float, *, warmup: int = 1, iterations: int = ITERATIONS
    ) -> list[float]:
        """Measure work of a known length."""
        return self.measure(
            lambda: self.case.run(milliseconds), warmup=warmup, iterations=iterations
        )

    def call(
        self, function: Callable[..., Any], arguments: tuple[Any, ...] = ()
    ) -> tuple[float, Any]:
        """Time one call; skip the test if that goes wrong, which one test reports."""
        try:
            found: Any = self.timer.time_call(function, arguments, device=self.case.device)
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
            skip(f"time_call raised {in_short(error)}: {_SEE_CALL}")
        if not is_timed_call(found):
            skip(f"time_call returned {found!r}: {_SEE_CALL}")
        latency, result = found
        return latency, result

    def call_work(self, milliseconds: float) -> float:
        """Return the latency of work of a known length."""
        return self.call(lambda: self.case.run(milliseconds))[0]


def is_latency(value: Any) -> bool:
    """Return whether a value is a number of milliseconds as a timer has to return it."""
    return isinstance(value, float) and math.isfinite(value) and value >= 0


def is_timed_call(value: Any) -> bool:
    """Return whether a value is a latency and something else."""
    return isinstance(value, tuple) and len(value) == 2 and is_latency(value[0])


class Oops(Exception):
    """Raised by a function that is being measured."""


def fail_on_purpose() -> None:
    """Raise `Oops`."""
    raise Oops("the solution's own")
