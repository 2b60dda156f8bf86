"""Regressions and improvements between two dates."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, Optional

from pydantic import TypeAdapter

from fib_report.scores import latency_of, natural_order, ratio_of
from flashinfer_bench.data.run_source import read_details
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.stats.samples import quantile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fib_report.results import Result
    from fib_report.scores import Measured

BROKEN, FIXED, SLOWER, FASTER = "broken", "fixed", "slower", "faster"
THRESHOLD = 1.05
"""Smallest ratio at which two latencies count as different."""

_ORDER = (BROKEN, SLOWER, FIXED, FASTER)
_LEAST_SAMPLES = 3
_DATES = TypeAdapter(datetime)
_YEAR = re.compile(r"[0-9]{4}-")  # without it, pydantic would read numbers as seconds


@dataclass(frozen=True)
class Change:
    """A task of a solution whose result changed.

    Attributes
    ----------
    kind : str
        ``broken``: passed before and fails now; ``fixed``: failed before and passes now;
        ``slower``, ``faster``: passes with a different latency.
    ratio : Measured or None
        Latency now over latency before; None unless both passed.
    """

    kind: str
    before: Result
    after: Result
    ratio: Optional[Measured] = None

    @property
    def is_regression(self) -> bool:
        """Whether the solution is broken or slower."""
        return self.kind in (BROKEN, SLOWER)


@dataclass(frozen=True)
class Comparison:
    """All changes, and how many results were compared.

    Attributes
    ----------
    changes : tuple of Change
        The worst first: broken, slower, fixed, faster.
    compared : int
        Number of triples of solution, workload and device with results before and after the date.
    added : int
        Number of those with results only after it.
    unreadable : int
        Results with an invalid timestamp, which are left out.
    other_clock : int
        Results that passed before and after, but with different timers or cache modes, so that
        the latencies cannot be compared.
    """

    changes: tuple[Change, ...]
    compared: int
    added: int
    unreadable: int
    other_clock: int = 0

    @property
    def regressions(self) -> tuple[Change, ...]:
        """The changes that are regressions."""
        return tuple(change for change in self.changes if change.is_regression)


def parse_date(text: str, *, end: bool = False) -> datetime:
    """Parse a date or a time.

    Parameters
    ----------
    text : str
        ISO 8601: ``2026-03-01``, ``2026-03-01T12:00``, ``2026-03-01T12:00:00+01:00``; UTC unless it
        says otherwise. Or a number of days or weeks before now: ``30d``, ``2w``.
    end : bool
        Whether a date without a time means the end of that day.

    Raises
    ------
    ConfigError
        If it is none of these.
    """
    text = text.strip()
    if text[-1:] in ("d", "w") and text[:-1].isascii() and text[:-1].isdigit():
        days = int(text[:-1]) * (7 if text.endswith("w") else 1)
        if days < 100_000:
            return datetime.now(timezone.utc) - timedelta(days=days)
    found = _moment(text)
    if found is None:
        raise ConfigError(
            f"invalid date {text!r}", hint="write 2026-03-01, 2026-03-01T12:00 or 30d (30 days ago)"
        )
    return found + timedelta(days=1, microseconds=-1) if end and len(text) == 10 else found


def _moment(text: str) -> Optional[datetime]:
    """Return a date or time of ISO 8601; None if the text is none."""
    text = text.strip()
    try:
        # Python 3.10 reads neither Z nor fractions with other than 3 or 6 digits.
        found = _DATES.validate_python(text) if _YEAR.match(text) else None
        if found is None or found.tzinfo is None:
            return found and found.replace(tzinfo=timezone.utc)
        return found.astimezone(timezone.utc)
    except (ValueError, OverflowError):  # not a date, or outside the calendar
        return None


def compare_dates(
    results: Iterable[Result],
    since: datetime,
    until: Optional[datetime] = None,
    threshold: float = THRESHOLD,
) -> Comparison:
    """Compare the latest results before a date with the latest after it.

    Results are compared for the same solution, workload and device, and latencies only with the
    same timer and cache mode. Where both have samples, latencies count as different only if the
    middle halves of the samples do not overlap.

    Parameters
    ----------
    results : iterable of Result
        All results, not only the latest, as `collect_results` returns them.
    since, until : datetime
        Results from `since` to `until`, both included, are new.
    threshold : float
        Smallest ratio at which two latencies count as different; more than 1.

    Raises
    ------
    ConfigError
        If `until` is before `since`, or the threshold is not above 1.
    """
    if until is not None and until < since:
        raise ConfigError(f"--until {until:%Y-%m-%d} is before --since {since:%Y-%m-%d}")
    if not threshold > 1.0:
        raise ConfigError(f"--threshold {threshold:g} is not above 1", hint="1.05 means 5 %")
    before, after, unreadable = _sides(results, since, until)
    shared = [key for key in after if key in before]
    pairs = [(_partner(before[key], after[key]), after[key]) for key in shared]
    return Comparison(
        changes=tuple(sorted(_changes(pairs, threshold), key=_rank)),
        compared=len(shared),
        added=len(after) - len(shared),
        unreadable=unreadable,
        other_clock=sum(_is_other_clock(one, other) for one, other in pairs),
    )


Key = tuple[str, str, str, str]
"""Definition, solution, workload and device."""


def _partner(past: Sequence[Result], now: Result) -> Result:
    """Return the past result to compare with: the latest, if possible with the same timer."""
    since_failure = takewhile(lambda one: one.passed, reversed(past))
    same = (one for one in since_failure if one.conditions == now.conditions)
    return next(same, past[-1]) if now.passed else past[-1]


def _is_other_clock(before: Result, after: Result) -> bool:
    return before.passed and after.passed and before.conditions != after.conditions


def _sides(
    results: Iterable[Result], since: datetime, until: Optional[datetime]
) -> tuple[dict[Key, list[Result]], dict[Key, Result], int]:
    """Return the results before a date, the latest after it, and the number of undated ones."""
    before: dict[Key, list[Result]] = {}
    after: dict[Key, Result] = {}
    everything = [result for result in results if not result.disputed]
    moments = {text: _moment(text) for text in {result.timestamp for result in everything}}
    dated = [(moments[result.timestamp], result) for result in everything]
    kept = [(moment, result) for moment, result in dated if moment is not None]
    for moment, result in sorted(kept, key=lambda pair: pair[0]):
        key = (result.definition, result.solution, result.workload, result.hardware)
        if moment < since:
            before.setdefault(key, []).append(result)
        elif until is None or moment <= until:
            after[key] = result
    return before, after, len(dated) - len(kept)


def _changes(pairs: Iterable[tuple[Result, Result]], threshold: float) -> list[Change]:
    found = [_change(before, after, threshold) for before, after in pairs]
    changes = [one for one in found if one is not None]
    # Read samples only of the few results whose latency changed.
    timed = [one for one in changes if one.ratio is not None]
    was, now = (read_details(getattr(one, side) for one in timed) for side in ("before", "after"))
    alike = {
        id(change)
        for change, first, second in zip(timed, was, now, strict=True)
        if _overlap(first.counted_ms, second.counted_ms)
    }
    return [one for one in changes if id(one) not in alike]


def _change(before: Result, after: Result, threshold: float) -> Optional[Change]:
    if before.passed != after.passed:
        return Change(BROKEN if before.passed else FIXED, before, after)
    was, now = latency_of(before), latency_of(after)
    if was is None or now is None or _is_other_clock(before, after):
        return None
    found = ratio_of(now, was)
    if 1.0 / threshold < found.value < threshold:
        return None
    return Change(SLOWER if found.value > 1.0 else FASTER, before, after, found)


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether the middle halves overlap; False without samples."""
    if min(len(one), len(other)) < _LEAST_SAMPLES:
        return False
    first, second = quartiles(one), quartiles(other)
    return first[0] <= second[1] and second[0] <= first[1]


def quartiles(samples: Sequence[float]) -> tuple[float, float]:
    """Return the first and third quartile of at least one sample."""
    ordered = sorted(samples)
    return quantile(ordered, 0.25), quantile(ordered, 0.75)


def _rank(change: Change) -> tuple[object, ...]:
    place = attrgetter("definition", "solution", "hardware", "workload")(change.after)
    ratio = change.ratio.value if change.ratio is not None else 0.0
    size = -ratio if change.kind == SLOWER else ratio
    return _ORDER.index(change.kind), size, natural_order(place[0]), *place[1:]
