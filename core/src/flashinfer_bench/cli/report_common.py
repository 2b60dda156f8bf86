"""What the commands of ``fib report`` share: choosing results, and the formats of tables."""

from __future__ import annotations

import csv
import re
import sys
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from flashinfer_bench.cli.datasets import OpenedDataset, open_datasets
from flashinfer_bench.cli.output import emit, emit_json, printable, rounded, table, to_plain
from flashinfer_bench.errors import SelectionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from flashinfer_bench.report import Result, Selection

SCHEMA_VERSION = 1


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
        help="table: drawn on a terminal, tab-separated elsewhere; csv and json have every digit.",
    ),
]
Baseline = Annotated[
    str,
    typer.Option(
        "--baseline-author", metavar="NAME", help="Author whose solutions others are compared with."
    ),
]

NamedBaselineOption = Annotated[
    Optional[str],
    typer.Option(
        "--baseline",
        metavar="NAME",
        show_default=False,
        help="Compare with this solution, or with the fastest of this author; unpaired.",
    ),
]

# One table: its title, columns and rows.
Table = tuple[str, "Sequence[str]", "Iterable[Sequence[Any]]"]


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""How a formula begins, in full width too. And what marks text, so that it can be taken off."""


def make_selection(**names: list[str] | None) -> Selection:
    """Return the selection of a command line; options that were not given select everything."""
    from flashinfer_bench.report import Selection

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
    from flashinfer_bench.report import collect_results, latest_results, with_intervals

    opened = open_datasets(local, hub)
    found = latest_results(collect_results(opened.trace_set, make_selection(**names)))
    results = with_intervals(found)
    require_results(opened, results)
    return opened, results


def require_results(opened: OpenedDataset, results: Sequence[Result]) -> None:
    """Refuse to report about nothing."""
    if not results:
        raise SelectionError(
            f"there is no trace of a run in {opened.name} that fits the filters",
            hint="record some with 'fib run', or widen the filters",
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
        How.
    tables : sequence of (title, columns, rows)
        Separated by an empty line where they are several.
    document : callable
        Makes what JSON says instead of the tables; its version is added.
    """
    if chosen is Format.json:
        emit_json({"schema_version": SCHEMA_VERSION, **document()})
        return
    write = {Format.csv: _write_csv, Format.markdown: _write_markdown}.get(chosen, table)
    for index, (title, columns, rows) in enumerate(tables):
        if index:
            emit("")
        write(title, columns, rows)


def _write_csv(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(map(_csv_cell, columns))  # names of devices among them
    writer.writerows([_csv_cell(value) for value in row] for row in rows)


def _csv_cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = "" if value is None else printable(str(to_plain(value)))
    # Names come from files that anyone may have written, and a spreadsheet would run such a cell
    # (OWASP, "CSV injection"). It takes the apostrophe for "what follows is text".
    is_formula = not isinstance(value, (int, float)) and text.startswith(_FORMULA)
    return f"'{text}" if is_formula else text


def _write_markdown(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    lines = [tuple(row) for row in rows]
    numeric = [
        bool(lines) and all(isinstance(line[index], (int, float, type(None))) for line in lines)
        for index in range(len(columns))
    ]
    if title:
        emit(f"### {_markdown(title)}\n")
    emit(_markdown_row(columns))
    emit(f"|{'|'.join('---:' if right else '---' for right in numeric)}|")
    for line in lines:
        emit(_markdown_row([rounded(value) for value in line]))


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_markdown, cells))} |"


def _markdown(text: str) -> str:
    """Return `text` so that Markdown shows it as it is: no markup, no HTML, no new column."""
    text = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"[\\`*\[\]|~#]", r"\\\g<0>", text)
    # Within a word an underscore means nothing; names are full of them.
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", text)
