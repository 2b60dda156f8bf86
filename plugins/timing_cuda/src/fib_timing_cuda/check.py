"""Measure what timers can do on this machine: resolution, overhead, agreement, and noise.

Known lengths are compared with the lower quartile of the samples, because interruptions only ever
make work of a known length longer. Noise is measured by an A/A test: the same work is measured as
two interleaved series, so any difference between their medians is noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median, quantiles
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.bench.timing.base import Timer, collector_paused
from flashinfer_bench.errors import FibError, TimingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fib_timing_cuda.known_work import KnownWork

LENGTHS_US = (10.0, 100.0, 1000.0)
"""Lengths of the measured work, in microseconds."""

TOLERANCE = 0.05
"""Timers disagree if they differ by more than this share of a known length."""

_SETTLING = 5
_CALLS, _FEW_CALLS = 30, 5  # the latter for timers that make many calls per sample
_A_A_TESTS, _A_A_CALLS = 8, 15
_MAD_TO_SIGMA = 1.4826  # for a normal distribution


@dataclass(frozen=True)
class KnownLength:
    """A timer's result for work of a known length.

    Attributes
    ----------
    length_us : float
        The known length.
    found_us : float
        The lower quartile of the samples.
    """

    length_us: float
    found_us: float


@dataclass(frozen=True)
class Noise:
    """Result of an A/A test.

    Attributes
    ----------
    spread : float
        Median absolute deviation from the median, times 1.4826, as a share of the median.
    typical, worst : float
        Relative difference between two medians over the same work: the median of all tests, and the
        maximum.
    """

    spread: float
    typical: float
    worst: float


@dataclass(frozen=True)
class TimerReport:
    """Capabilities of one timer on this machine.

    Attributes
    ----------
    name, version : str
        Name and version of the timer.
    overhead_us : float
        Median over empty calls: the amount included in each latency.
    removed_us : float
        The amount that the timer subtracts from each sample.
    resolution_us : float, optional
        Smallest observed difference between two samples; None if all were equal.
    lengths : tuple of KnownLength
        Results for work of known lengths.
    noise : Noise, optional
        Result for repeated identical work.
    notes : tuple of str
        Remarks of the timer.
    error : str, optional
        Why it could not be checked; all numbers are 0 in this case.
    """

    name: str
    version: str
    overhead_us: float = 0.0
    removed_us: float = 0.0
    resolution_us: Optional[float] = None
    lengths: tuple[KnownLength, ...] = ()
    noise: Optional[Noise] = None
    notes: tuple[str, ...] = ()
    error: Optional[str] = None


@dataclass(frozen=True)
class Disagreement:
    """Two clocks that report different lengths for the same work.

    Attributes
    ----------
    first, second : str
        Two timers, or a timer and the known length (``device clock``).
    length_us : float
        Length of the work.
    share : float
        The difference as a share of the length.
    """

    first: str
    second: str
    length_us: float
    share: float


DEVICE_CLOCK = "device clock"
"""Name of the known length among the names of timers."""


@dataclass(frozen=True)
class CheckReport:
    """Capabilities of the timers for one device.

    Attributes
    ----------
    device : str
        The device.
    timers : tuple of TimerReport
        One report per timer.
    disagreements : tuple of Disagreement
        Differences larger than `TOLERANCE`.
    """

    device: str
    timers: tuple[TimerReport, ...] = ()
    disagreements: tuple[Disagreement, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether all timers could be checked and agree."""
        return not self.disagreements and all(timer.error is None for timer in self.timers)


def check_timers(
    timers: Iterable[Timer],
    device: str,
    work: KnownWork,
    *,
    on_progress: Callable[[str], object] = lambda name: None,
) -> CheckReport:
    """Check timers one after the other, and compare their results.

    Parameters
    ----------
    timers : iterable of Timer
        The timers to check.
    device : str
        The device.
    work : KnownWork
        The work to measure.
    on_progress : callable
        Called with the name of each timer before it is checked.

    Raises
    ------
    TimingError
        If the device no longer responds.
    """
    reports = []
    for timer in timers:
        on_progress(timer.name)
        try:
            reports.append(check_timer(timer, device, work))
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
            _require_alive(device, work, timer, error)
            reports.append(TimerReport(timer.name, timer.version, error=_in_a_line(error)))
    return CheckReport(device, tuple(reports), tuple(disagreements(reports, work.grain_us)))


def check_timer(timer: Timer, device: str, work: KnownWork) -> TimerReport:
    """Measure the capabilities of one timer; see `TimerReport`.

    Raises
    ------
    TimingError
        Raised by the timer.
    """
    count = _FEW_CALLS if timer.repeats else _CALLS

    def samples_us(function: Callable[[], object], calls: int = count) -> list[float]:
        found = timer.measure(
            function, lambda index: (), warmup=_SETTLING, iterations=calls, device=device
        )
        return [sample * 1e3 for sample in found]

    nothing = samples_us(_nothing)
    known = {length: samples_us(work.spin(length)) for length in LENGTHS_US}
    resolution = smallest_difference([*nothing, *known[LENGTHS_US[0]]])
    return TimerReport(
        timer.name,
        timer.version,
        overhead_us=median(nothing),
        removed_us=timer.removed_ms * 1e3,
        resolution_us=resolution,
        lengths=tuple(KnownLength(length, quantiles(found)[0]) for length, found in known.items()),
        noise=_noise(timer, device, work.steady()),
        notes=tuple(timer.take_notes()),
    )


def smallest_difference(samples: Sequence[float]) -> Optional[float]:
    """Return the smallest difference between two distinct values; None if there is none.

    Differences below a billionth of the largest value are rounding errors, and are ignored.
    """
    values = sorted(samples)
    least = values[-1] * 1e-9
    gaps = (high - low for low, high in pairwise(values))
    return min((gap for gap in gaps if gap > least), default=None)


def disagreements(reports: Sequence[TimerReport], grain_us: float = 0.0) -> list[Disagreement]:
    """Compare timers with known lengths and with one another.

    A length is skipped if its grain exceeds `TOLERANCE` of it, and for timers whose overhead does:
    the overhead explains why short work seems longer, so that is not a disagreement.

    Parameters
    ----------
    reports : sequence of TimerReport
        Results of each timer.
    grain_us : float
        Uncertainty of the lengths, in microseconds.
    """
    found = []
    for place, length in enumerate(LENGTHS_US):
        if grain_us > TOLERANCE * length:
            continue
        told = {
            report.name: report.lengths[place].found_us
            for report in reports
            if report.error is None and report.overhead_us <= TOLERANCE * length
        }
        for first, second in combinations({DEVICE_CLOCK: length, **told}.items(), 2):
            share = abs(first[1] - second[1]) / length
            if share > TOLERANCE:
                found.append(Disagreement(first[0], second[0], length, share))
    return found


def _noise(timer: Timer, device: str, function: Callable[[], object]) -> Noise:
    tests, calls = (2, 2) if timer.repeats else (_A_A_TESTS, _A_A_CALLS)
    everything: list[float] = []
    differences = []
    for _ in range(tests):
        first, second = _interleaved(timer, device, function, calls)
        everything += first + second
        differences.append(abs(math.log(median(first) / median(second))))
    middle = median(everything)
    deviation = median(abs(sample - middle) for sample in everything)
    return Noise(_MAD_TO_SIGMA * deviation / middle, median(differences), max(differences))


def _interleaved(
    timer: Timer, device: str, function: Callable[[], object], calls: int
) -> tuple[list[float], list[float]]:
    """Return two series over the same work, in the order A B B A."""
    series: tuple[list[float], list[float]] = [], []
    with collector_paused():
        timer.time_call(function, (), device=device)
        for index in range(2 * calls):
            sample, _ = timer.time_call(function, (), device=device)
            if sample <= 0:
                raise TimingError(f"about a millisecond of work was measured as {sample} ms")
            series[(index + 1) // 2 % 2].append(sample)
    return series


def _nothing() -> None:
    """Do nothing: the timed result is the timer's overhead."""


def _require_alive(device: str, work: KnownWork, timer: Timer, error: Exception) -> None:
    try:
        work.wait()
    except Exception as gone:  # noqa: BLE001 - driver errors, raised through torch
        raise TimingError(
            f"{device} stopped responding while timer {timer.name!r} was checked: "
            f"{_in_a_line(gone)}; the timer says: {_in_a_line(error)}",
            hint="check nvidia-smi and the kernel log",
        ) from error


def _in_a_line(error: Exception) -> str:
    text = error.message if isinstance(error, FibError) else f"{type(error).__name__}: {error}"
    return text.strip().partition("\n")[0]
