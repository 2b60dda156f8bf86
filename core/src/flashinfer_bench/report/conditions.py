"""Latencies of different timers or cache modes are never in one ranking."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flashinfer_bench.report.results import Conditions, Result

UNTOLD: Conditions = ("", "")
"""Of traces that name neither timer nor cache mode: those of older releases."""

Setting = tuple[str, "Conditions"]
"""A device, and the timer and cache mode used on it."""


def label_of(conditions: Conditions) -> str:
    """Return timer and cache mode as they are read."""
    timer, cache = conditions
    return f"{timer or 'unknown timer'}, {cache or 'unknown cache mode'}"


def split_by_setting(results: Iterable[Result]) -> dict[Setting, list[Result]]:
    """Return results by what may be compared: device, timer and cache mode.

    A failure has no timer. It counts wherever its definition was timed on that device; if nobody
    solved that, wherever anything was.

    Parameters
    ----------
    results : iterable of Result
        As `latest_results` gives them.

    Returns
    -------
    dict
        By device, timer and cache mode in the order of their names; results in their order.
    """
    given = list(results)
    timed: dict[tuple[str, str], set[Conditions]] = {}
    anything: dict[str, set[Conditions]] = {}
    for one in given:
        if one.passed:
            timed.setdefault((one.definition, one.hardware), set()).add(one.conditions)
            anything.setdefault(one.hardware, set()).add(one.conditions)
    found: dict[Setting, list[Result]] = {}
    for one in given:
        here = {one.conditions}
        if not one.passed:
            here = timed.get((one.definition, one.hardware)) or anything.get(one.hardware, {UNTOLD})
        for conditions in here:
            found.setdefault((one.hardware, conditions), []).append(one)
    return dict(sorted(found.items()))


def mixtures(settings: Iterable[Setting]) -> dict[str, list[Conditions]]:
    """Return the devices on which several timers or cache modes were used, and these."""
    found: dict[str, list[Conditions]] = {}
    for hardware, conditions in sorted(set(settings)):
        found.setdefault(hardware, []).append(conditions)
    return {hardware: several for hardware, several in found.items() if len(several) > 1}
