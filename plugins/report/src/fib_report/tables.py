"""Tables of recorded traces, shared by the commands of ``fib report``."""

from __future__ import annotations

import csv
import re
import sys
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from flashinfer_bench.cli import output
from flashinfer_bench.cli.datasets import OpenedDataset, open_datasets
from flashinfer_bench.cli.options import option
from flashinfer_bench.cli.output import Columns, emit, talk
from flashinfer_bench.errors import SelectionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from fib_report.results import Result
    from flashinfer_bench.data.selection import Selection


class Format(str, Enum):
    """How tables are written."""

    table = "table"
    csv = "csv"
    markdown = "markdown"
    json = "json"


FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        case_sensitive=False,
        help="table: drawn on a terminal, tab-separated elsewhere; csv and json have all digits.",
    ),
]
NamedBaselineOption = Annotated[
    Optional[str],
    option(
        "--baseline",
        metavar="NAME",
        help="Compare with this solution, or this author's fastest; unpaired.",
    ),
]

# One table: its title, columns and rows.
Table = tuple[str, Columns, "Iterable[Any]"]

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters of formulas, full-width ones included, and the apostrophe that marks text."""


def make_selection(**names: list[str] | None) -> Selection:
    """Return the selection of a command line; omitted options select everything."""
    from flashinfer_bench.data.selection import Selection

    return Selection(**{field: tuple(values or ()) for field, values in names.items()})


def open_results(
    local: list[Path] | None, hub: Any, **names: list[str] | None
) -> tuple[OpenedDataset, list[Result]]:
    """Read datasets and return the latest results that fit the filters.

    Raises
    ------
    SelectionError
        If there are none.
    """
    from fib_report.results import collect_results, latest_results, with_intervals

    opened = open_datasets(local, hub)
    found = latest_results(collect_results(opened.trace_set, make_selection(**names)))
    results = with_intervals(found)
    require_results(opened, results)
    return opened, results


def require_results(opened: OpenedDataset, results: Sequence[Result]) -> None:
    """Raise `SelectionError` if there are no results."""
    if not results:
        raise SelectionError(
            f"{opened.name} has no traces of runs that match the filters",
            hint="record some with 'fib run', or use fewer filters",
        )


def chosen_format(chosen: Format, as_json: bool) -> Format:
    """Return the format; ``--json`` is short for ``--format json``."""
    return Format.json if as_json else chosen


def write_tables(
    chosen: Format, tables: Sequence[Table], document: Callable[[], dict[str, Any]]
) -> None:
    """Write tables to stdout.

    Parameters
    ----------
    chosen : Format
        The format.
    tables : sequence of (title, columns, rows)
        The tables; an empty line separates them.
    document : callable
        Returns the JSON document that replaces the tables; its version is added.
    """
    if chosen is Format.json:
        output.emit_document(**document())
        return
    for index, (title, columns, rows) in enumerate(tables):
        if index:
            emit("")
        if chosen is Format.table:
            output.table(title, columns, rows)
            continue
        names, lines = output.laid_out(columns, rows, drawn=chosen is Format.markdown)
        if chosen is Format.csv:
            # Columns may be named after devices, so names are escaped as well.
            cells = [map(_csv_cell, line) for line in (names, *lines)]
            csv.writer(sys.stdout, lineterminator="\n").writerows(cells)
        else:
            _write_markdown(title, names, lines)


def _csv_cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = "" if value is None else output.printable(str(output.to_plain(value)))
    # Names come from untrusted files, and a spreadsheet would evaluate such a cell (OWASP, "CSV
    # injection"). A leading apostrophe marks a cell as text.
    is_formula = not isinstance(value, (int, float)) and text.startswith(_FORMULA)
    return f"'{text}" if is_formula else text


def _write_markdown(title: str, names: Sequence[str], lines: Sequence[Sequence[Any]]) -> None:
    if title:
        emit(f"### {_markdown(title)}\n")
    emit(_markdown_row(names))
    rules = ("---:" if right else "---" for right in output.numeric_columns(names, lines))
    emit(f"|{'|'.join(rules)}|")
    for line in lines:
        emit(_markdown_row([output.rounded(value) for value in line]))


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_markdown, cells))} |"


def _markdown(text: str) -> str:
    """Return `text` escaped for Markdown: no markup, no HTML, no new column."""
    text = output.printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"[\\`*\[\]|~#]", r"\\\g<0>", text)
    # Underscores within words are not markup, and names are full of them.
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", text)


def rank_number(rank: str | None) -> int | None:
    """Return a rank as a number, without the mark of shared ranks."""
    return int(rank.lstrip("=")) if rank else None


def is_tied(rank: str | None) -> bool:
    """Return whether a rank is shared."""
    return bool(rank) and str(rank).startswith("=")


def clock_label(one: Any) -> str:
    """Return timer, cache mode and stopping rules of a score as text."""
    words = [one.timer or "unknown timer", one.cache, *getattr(one, "stop_rules", ())]
    return " ".join(word for word in words if word)


def tell_mixtures(mixtures: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Report devices on which several timers or cache modes were used."""
    from fib_report.results import label_of

    for hardware, several in mixtures.items():
        labels = "; ".join(map(label_of, several))
        talk(f"note: several timers or cache modes on {hardware}, ranked separately: {labels}")
