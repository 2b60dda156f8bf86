"""All watchers around one timing."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Optional

from fib_judge.watch.base import Reading, Summary, Watcher
from flashinfer_bench.errors import CapabilityError, FibError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


logger = logging.getLogger(__name__)

MOST_DROPPED = 0.75
"""If more than this share was throttled, that is how the device is: all samples count."""


@dataclass(frozen=True)
class WatchReport:
    """What watchers have seen during one timing.

    Attributes
    ----------
    facts : dict
        For each watcher what it has read: JSON, and small enough for every trace.
    throttled : tuple of int
        Numbers of the samples that were taken while the device was throttled, counted from 0.
    notes : tuple of str
        What a reader of the numbers should know.
    waited_s : float
        Seconds waited for the device to be fast again.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    throttled: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    waited_s: float = 0.0


def keep(
    samples: Sequence[float], report: WatchReport
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Leave out the samples that were taken while the device was throttled.

    All samples belong into the trace, these included. If more than `MOST_DROPPED` of them would go,
    none do: a benchmark never ends empty, nor with a handful of lucky samples.

    Parameters
    ----------
    samples : sequence of float
        All samples, in the order taken.
    report : WatchReport
        Of the watch that was told of them.

    Returns
    -------
    kept : tuple of float
        What statistics are made of.
    dropped : tuple of int
        Numbers of the samples that were left out.
    """
    dropped = tuple(number for number in report.throttled if number < len(samples))
    if len(dropped) > MOST_DROPPED * len(samples):
        dropped = ()
    out = frozenset(dropped)
    return tuple(sample for index, sample in enumerate(samples) if index not in out), dropped


_COST_SHARE = 0.02
"""Share of the time that a watcher may take; one that is slow is asked less often."""
_DIGITS = 4
_LONGEST_NOTE = 256


def watchers_for(
    device: str, mode: str = "auto", *, nominal_mhz: Optional[int] = None
) -> list[Watcher]:
    """Return the watchers that are of use for a device, not yet started.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:N``.
    mode : str
        ``auto``, or ``off`` for none.
    nominal_mhz : int, optional
        The SM clock that a GPU was set to, if it was.
    """
    from flashinfer_bench.plugins import default_catalog

    if mode == "off":
        return []
    kind = device.partition(":")[0]
    found: list[Watcher] = []
    for entry in default_catalog().monitors:
        if kind not in entry.spec.devices or not entry.availability():
            continue
        try:
            watcher = entry.load()()
            watcher.nominal_mhz = nominal_mhz
        except Exception as error:  # noqa: BLE001 - the plugin's code; it never ends a run
            logger.warning("The %s of %s is not used: %s", entry.label, entry.origin, error)
        else:
            found.append(watcher)
    return found


@dataclass(frozen=True)
class Recovery:
    """How long to wait after throttling was seen.

    The first pause is that of nvbench (``--throttle-recovery-delay``). The limits see to it that a
    device which never recovers is timed all the same.

    Attributes
    ----------
    pause_s : float
        Seconds of the first pause; each further one is twice as long.
    longest_s : float
        Seconds to wait at one time.
    total_s : float
        Seconds to wait during one timing.
    """

    pause_s: float = 0.05
    longest_s: float = 2.0
    total_s: float = 10.0


class EnvironmentWatch:
    """Watches the machine during one timing. None of its methods raises.

    ::

        watch = EnvironmentWatch(device)
        watch.before()
        for batch in batches:
            samples += take(batch)
            watch.mark(len(samples))
        report = watch.after()
        kept, dropped = keep(samples, report)

    Samples between two looks count as throttled if the device was at either of them.

    Parameters
    ----------
    device : str
        What is timed: ``cpu``, ``cuda`` or ``cuda:N``.
    watchers : sequence of Watcher, optional
        Who looks; `watchers_for` the device if not given.
    recovery : Recovery
        How long to wait for a throttled device.
    clock, sleep : callable
        Tell the time and wait, in seconds.
    """

    def __init__(
        self,
        device: str,
        watchers: Optional[Sequence[Watcher]] = None,
        *,
        recovery: Optional[Recovery] = None,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        chosen = watchers_for(device) if watchers is None else watchers
        self._device = device
        self._posts = [_Post(watcher, clock) for watcher in chosen]
        self._recovery, self._sleep = recovery or Recovery(), sleep
        self._waited_s, self._in_vain = 0.0, False
        self._samples = 0
        self._report: Optional[WatchReport] = None

    def before(self) -> float:
        """Begin, just before the first call.

        Returns
        -------
        float
            Seconds waited, because the device was throttled; 0 nearly always.
        """
        for post in self._posts:
            post.start(self._device)
        return self._recover()

    def mark(self, samples_so_far: int) -> float:
        """Look at the machine between two batches of calls.

        Takes less than 200 µs unless the device is throttled; then it waits for it to recover.

        Parameters
        ----------
        samples_so_far : int
            How many samples have been taken since `before`.

        Returns
        -------
        float
            Seconds waited. If it is not 0, caches and clocks may need a few calls that do not
            count.
        """
        self._samples = max(self._samples, samples_so_far)
        for post in self._posts:
            post.look(self._samples)
        return self._recover()

    def after(self) -> WatchReport:
        """End, after the last call; asked again, return the same.

        Returns
        -------
        WatchReport
            What has been seen.
        """
        if self._report is None:
            for post in self._posts:
                post.look(self._samples, now=True)
            self._report = self._sum_up()
        return self._report

    def _recover(self) -> float:
        """Wait until the device is fast again, as `Recovery` allows; once in vain, never again."""
        if self._in_vain or not any(post.throttled for post in self._posts):
            return 0.0
        limit = min(self._recovery.longest_s, self._recovery.total_s - self._waited_s)
        pause, waited, slow = self._recovery.pause_s, 0.0, True
        while slow and limit - waited > 0:
            now = min(pause, limit - waited)
            self._sleep(now)
            waited, pause = waited + now, pause * 2
            for post in self._posts:
                if post.throttled:
                    post.look(self._samples, now=True)
            slow = any(post.throttled for post in self._posts)
        self._waited_s += waited
        self._in_vain = slow
        return waited

    def _sum_up(self) -> WatchReport:
        summaries = {post.name: post.stop() for post in self._posts}
        throttled = sorted({number for post in self._posts for number in post.throttled_samples})
        notes = []
        if throttled:
            why = ", ".join(sorted({reason for post in self._posts for reason in post.reasons}))
            many = len(throttled) > MOST_DROPPED * self._samples
            then = "too many to drop, so all of them count" if many else "they were dropped"
            notes.append(
                f"{len(throttled)} of {self._samples} samples were taken while the device was "
                f"throttled ({why}): {then}"
            )
        notes += [note for summary in summaries.values() for note in summary.notes]
        if self._in_vain and self._waited_s:
            notes.append(f"the device did not recover in {self._waited_s:.3g} s of waiting")
        return WatchReport(
            facts={name: dict(found.facts) for name, found in summaries.items() if found.facts},
            throttled=tuple(throttled),
            notes=tuple(notes),
            waited_s=round(self._waited_s, _DIGITS),
        )


class _Post:
    """A watcher, what it has seen, and a shield around it."""

    def __init__(self, watcher: Watcher, clock: Callable[[], float]) -> None:
        self.name = watcher.name
        self.throttled_samples: set[int] = set()
        self.reasons: set[str] = set()
        self._watcher = watcher
        self._clock = clock
        self._started = self._alive = False
        self._notes: list[str] = []
        self._readings: list[Reading] = []
        self._seen, self._due = 0, -math.inf

    @property
    def throttled(self) -> tuple[str, ...]:
        """Why the device was throttled at the last look."""
        return self._readings[-1].throttled if self._alive and self._readings else ()

    def start(self, device: str) -> None:
        try:
            self._watcher.start(device)
            self._started = self._alive = True
        except CapabilityError as error:
            self._notes.append(f"{self.name}: not watched: {error.message}")
            logger.debug("%s: %s", self.name, error)
        except Exception as error:  # noqa: BLE001 - a watcher never ends a run
            self._gave_up(error)
        self.look(0, now=True)

    def look(self, samples: int, *, now: bool = False) -> None:
        """Take a reading, unless the last one was so costly that it is too early for another."""
        begun = self._clock()
        if not self._alive or (begun < self._due and not now):
            return
        try:
            reading = self._watcher.sample()
        except Exception as error:  # noqa: BLE001 - a watcher never ends a run
            self._gave_up(error)
            return
        ended = self._clock()
        self._due = ended + (ended - begun) / _COST_SHARE
        if reading is not None:
            self._take(reading, samples)

    def _take(self, reading: Reading, samples: int) -> None:
        why = {*self.throttled, *reading.throttled}
        if why and samples > self._seen:
            self.throttled_samples.update(range(self._seen, samples))
            self.reasons |= why
        self._seen = samples
        self._readings.append(reading)

    def stop(self) -> Summary:
        found = Summary()
        facts: dict[str, Any] = {}
        try:
            if self._started:  # one that gave up has things to let go of, too
                found = self._watcher.stop()
            facts = {**_spreads(self._readings), **found.facts}
        except Exception as error:  # noqa: BLE001 - a watcher never ends a run
            self._gave_up(error)
        return Summary(facts, (*self._notes, *found.notes))

    def _gave_up(self, error: Exception) -> None:
        logger.debug("%s stopped watching", self.name, exc_info=error)
        what = error.message if isinstance(error, FibError) else f"{type(error).__name__}: {error}"
        if self._alive or not self._started:  # told once
            self._notes.append(f"{self.name}: stopped watching: {what}"[:_LONGEST_NOTE])
        self._alive = False


def _spreads(readings: Sequence[Reading]) -> dict[str, Any]:
    """Return ``[smallest, median, greatest]`` of each value, and the share of each state."""
    if not readings:
        return {}
    columns: dict[str, list[float]] = {}
    shares: dict[str, int] = {}
    for reading in readings:
        for name, value in reading.values.items():
            if math.isfinite(value):  # JSON has no others
                columns.setdefault(name, []).append(value)
        for state in dict.fromkeys((*reading.throttled, *reading.states)):
            shares[state] = shares.get(state, 0) + 1
    facts: dict[str, Any] = {"readings": len(readings)}
    for name, values in columns.items():
        facts[name] = [_short(value) for value in (min(values), median(values), max(values))]
    if shares:
        facts["states"] = {name: _short(n / len(readings)) for name, n in sorted(shares.items())}
    return facts


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
