"""What became worse, or better, between two dates."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, Optional

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
"""Ratio of two latencies from which on they count as different."""

_ORDER = (BROKEN, SLOWER, FIXED, FASTER)
_LEAST_SAMPLES = 3


@dataclass(frozen=True)
class Change:
    """A task of a solution whose result changed.

    Attributes
    ----------
    kind : str
        ``broken``: passed before and fails now; ``fixed``: the other way round; ``slower`` and
        ``faster``: passes as before, with another latency.
    ratio : Measured or None
        Latency now over latency before, where it passed both times.
    """

    kind: str
    before: Result
    after: Result
    ratio: Optional[Measured] = None

    @property
    def is_regression(self) -> bool:
        """Whether it became worse."""
        return self.kind in (BROKEN, SLOWER)


@dataclass(frozen=True)
class Comparison:
    """All changes, and how much there was to compare.

    Attributes
    ----------
    changes : tuple of Change
        The worst first: broken, slower, fixed, faster.
    compared : int
        Solutions on workloads and devices that have a result on both sides of the date.
    added : int
        Those that have one after it only.
    unreadable : int
        Results whose time stamp is no date; they count for neither side.
    other_clock : int
        Results that passed on both sides, but with another timer or cache mode: latencies that
        cannot be compared.
    """

    changes: tuple[Change, ...]
    compared: int
    added: int
    unreadable: int
    other_clock: int = 0

    @property
    def regressions(self) -> tuple[Change, ...]:
        """What became worse."""
        return tuple(change for change in self.changes if change.is_regression)


def parse_date(text: str, *, end: bool = False) -> datetime:
    """Read a date or a time.

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
        If it is neither.
    """
    text = text.strip()
    if text[-1:] in ("d", "w") and text[:-1].isascii() and text[:-1].isdigit():
        days = int(text[:-1]) * (7 if text.endswith("w") else 1)
        if days < 100_000:
            return datetime.now(timezone.utc) - timedelta(days=days)
    found = _moment(text)
    if found is None:
        raise ConfigError(
            f"{text!r} is no date", hint="write 2026-03-01, 2026-03-01T12:00 or 30d (30 days ago)"
        )
    return found + timedelta(days=1, microseconds=-1) if end and len(text) == 10 else found


def _moment(text: str) -> Optional[datetime]:
    # Python 3.10 knows neither the Z nor fractions of other than 3 or 6 digits.
    text = text.strip().replace("Z", "+00:00")
    head, point, rest = text.partition(".")
    if point:
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        text = f"{head}.{digits[:6]:0<6}{rest[len(digits) :]}"
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            return found.replace(tzinfo=timezone.utc)
        return found.astimezone(timezone.utc)
    except (ValueError, OverflowError):  # no date, or one at the very edge of the calendar
        return None


def compare_dates(
    results: Iterable[Result],
    since: datetime,
    until: Optional[datetime] = None,
    threshold: float = THRESHOLD,
) -> Comparison:
    """Compare the latest results up to a date with the latest of the time after it.

    Only the same solution on the same workload and device is compared, and latencies only if they
    were taken with the same timer and cache mode. Where both have samples, a latency counts as
    different only if the middle halves of the samples do not overlap, too.

    Parameters
    ----------
    results : iterable of Result
        All results, not only the latest, as `collect_results` gives them.
    since, until : datetime
        The time looked at: from `since` on, up to and with `until`.
    threshold : float
        Ratio of two latencies from which on they count as different; more than 1.

    Raises
    ------
    ConfigError
        If the dates or the threshold make no sense.
    """
    if until is not None and until < since:
        raise ConfigError(f"the end {until:%Y-%m-%d} lies before the beginning {since:%Y-%m-%d}")
    if not threshold > 1.0:
        raise ConfigError(f"the threshold {threshold:g} is not above 1", hint="1.05 means 5 %")
    before, after, unreadable = _sides(results, since, until)
    shared = [key for key in after if key in before]
    pairs = [(_partner(before[key], after[key]), after[key]) for key in shared]
    found = _changes(pairs, threshold)
    return Comparison(
        changes=tuple(sorted(found, key=_rank)),
        compared=len(shared),
        added=len(after) - len(shared),
        unreadable=unreadable,
        other_clock=sum(_is_other_clock(one, other) for one, other in pairs),
    )


Side = dict[tuple[str, str, str, str], "Result"]
Past = dict[tuple[str, str, str, str], "list[Result]"]


def _partner(past: Sequence[Result], now: Result) -> Result:
    """Return what a result is compared with: the latest, of the same timer if it passed since."""
    since_failure = takewhile(lambda one: one.passed, reversed(past))
    same = (one for one in since_failure if one.conditions == now.conditions)
    return next(same, past[-1]) if now.passed else past[-1]


def _is_other_clock(before: Result, after: Result) -> bool:
    return before.passed and after.passed and before.conditions != after.conditions


def _sides(
    results: Iterable[Result], since: datetime, until: Optional[datetime]
) -> tuple[Past, Side, int]:
    before: Past = {}
    after: Side = {}
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
    timed = [
        one for one in changes if one.ratio and one.before.sample_total and one.after.sample_total
    ]
    # Samples are read of those few only whose latency changed.
    before = read_details(one.before for one in timed)
    after = read_details(one.after for one in timed)
    samples = zip(before, after, strict=True)
    alike = {
        id(change)
        for change, (was, now) in zip(timed, samples, strict=True)
        if _overlap(was.counted_ms, now.counted_ms)
    }
    return [one for one in changes if one.ratio is None or id(one) not in alike]


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
    """Return whether the middle halves overlap; without samples that is not known, so not."""
    if min(len(one), len(other)) < _LEAST_SAMPLES:
        return False
    first, second = quartiles(one), quartiles(other)
    return first[0] <= second[1] and second[0] <= first[1]


def quartiles(samples: Sequence[float]) -> tuple[float, float]:
    """Return between which values the middle half of at least one sample lies."""
    ordered = sorted(samples)
    return quantile(ordered, 0.25), quantile(ordered, 0.75)


def _rank(change: Change) -> tuple[object, ...]:
    place = attrgetter("definition", "solution", "hardware", "workload")(change.after)
    ratio = change.ratio.value if change.ratio is not None else 0.0
    size = -ratio if change.kind == SLOWER else ratio
    return _ORDER.index(change.kind), size, natural_order(place[0]), *place[1:]
