"""Figures with intervals in tables: for people ``0.1428 ±2.1%``, for programs three columns."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from flashinfer_bench.cli.output import rounded, talk
from flashinfer_bench.cli.report_common import Format, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from flashinfer_bench.report import Measured, SolutionScore


class Column(NamedTuple):
    """A column of a table.

    Attributes
    ----------
    name : str
        Its heading.
    value : callable
        What it says of a row; a `Measured` or None where ``measured`` is set.
    measured : bool
        Whether the value has an interval.
    people, programs : bool
        Whether it is in drawn tables and Markdown; in tab-separated values, CSV and JSON.
    """

    name: str
    value: Callable[[Any], Any]
    measured: bool = False
    people: bool = True
    programs: bool = True


def measured_table(
    title: str, columns: Sequence[Column], rows: Iterable[Any], chosen: Format
) -> Table:
    """Return a table in the form that fits the format."""
    drawn = chosen is Format.markdown or (chosen is Format.table and sys.stdout.isatty())
    if not drawn:
        found = [document_of(columns, row) for row in rows]
        return title, _names(columns), [tuple(one.values()) for one in found]
    kept = [column for column in columns if column.people]
    cells = [[_cell(column, row) for column in kept] for row in rows]
    return title, [column.name for column in kept], cells


def _names(columns: Sequence[Column]) -> list[str]:
    names: list[str] = []
    for column in columns:
        if column.programs:
            ends = (f"{column.name}_low", f"{column.name}_high") if column.measured else ()
            names += [column.name, *ends]
    return names


def document_of(columns: Sequence[Column], row: Any) -> dict[str, Any]:
    """Return a row for programs: a figure with an interval is three values, NAME_low and so on."""
    values: list[Any] = []
    for column in columns:
        if column.programs:
            value = column.value(row)
            values += _three(value) if column.measured else [value]
    return dict(zip(_names(columns), values, strict=True))


def _three(found: Measured | None) -> list[float | None]:
    if found is None:
        return [None, None, None]
    return [found.value, *(found.ends or (None, None))]


def _cell(column: Column, row: Any) -> Any:
    value = column.value(row)
    return with_interval(value) if column.measured else value


def with_interval(found: Measured | None) -> Any:
    """Return a figure as people read it; the figure alone where no interval is known."""
    if found is None or found.half_width is None:
        return None if found is None else found.value
    return f"{rounded(found.value)} ±{share(found.half_width)}"


def share(value: float) -> str:
    """Return a share in per cent, with two digits that count: ``0.12%``, ``2.1%``, ``34%``."""
    percent = 100 * value
    return f"{percent:.0f}%" if percent >= 10 else f"{float(f'{percent:.2g}'):g}%"


def rank_number(rank: str | None) -> int | None:
    """Return a rank for programs: without the mark of those that share it."""
    return int(rank.lstrip("=")) if rank else None


def is_tied(rank: str | None) -> bool:
    """Return whether others share a rank."""
    return bool(rank) and str(rank).startswith("=")


def clock_label(one: Any) -> str:
    """Return timer, cache mode and stopping rules of a score as people read it."""
    words = [one.timer or "unknown timer", one.cache, *getattr(one, "stop_rules", ())]
    return " ".join(word for word in words if word)


def sampling(score: SolutionScore) -> str:
    """Return timer, cache mode, stopping rules and number of samples as people read them."""
    return ", ".join([clock_label(score), f"{score.samples:,} samples"][: 1 + bool(score.samples)])


def marks(score: SolutionScore) -> str:
    """Return what a reader of a score should know about its figures; empty if there is nothing."""
    found = []
    if score.without_interval:
        found.append(f"no interval on {score.without_interval} of {score.passed} workloads")
    if score.dropped:
        found.append(f"{score.dropped} of {score.samples} samples dropped")
    before = score.references.get("before", 0)
    if before:
        found.append(f"reference timed before, not beside, on {before} of {score.passed} workloads")
    return "; ".join(found)


def tell_mixtures(mixtures: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Say on which devices several timers or cache modes were used."""
    from flashinfer_bench.report.conditions import label_of

    for hardware, several in mixtures.items():
        labels = "; ".join(map(label_of, several))
        talk(f"note: latencies on {hardware} were taken in several ways, ranked apart: {labels}")
