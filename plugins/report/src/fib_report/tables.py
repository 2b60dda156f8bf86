"""Options and tables that the commands of this plugin share."""

from __future__ import annotations

import csv
import inspect
import re
import sys
from dataclasses import replace
from enum import Enum
from functools import wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Optional, TypeVar

import typer

from flashinfer_bench.cli import options, output
from flashinfer_bench.cli.datasets import OpenedDataset, open_datasets
from flashinfer_bench.cli.options import option
from flashinfer_bench.cli.output import Column, Columns, emit, talk
from flashinfer_bench.errors import SelectionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fib_report.results import Result
    from flashinfer_bench.data.selection import Selection

T = TypeVar("T")


def takes(**makers: Callable[..., Any]) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a command values that are made of options which it shares with other commands.

    Parameters
    ----------
    **makers
        For some parameters of the command, the function that makes the value. The options of
        these functions come after those of the command.
    """
    shared = {
        name: inspect.signature(make, eval_str=True).parameters for name, make in makers.items()
    }

    def with_shared_options(command: Callable[..., T]) -> Callable[..., T]:
        @wraps(command)
        def run(**values: Any) -> T:
            for name, make in makers.items():
                values[name] = make(**{each: values.pop(each) for each in shared[name]})
            return command(**values)

        own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [one for one in own if one.name not in makers]
        parameters += [one for some in shared.values() for one in some.values()]
        parameters = [one.replace(kind=one.KEYWORD_ONLY) for one in parameters]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return with_shared_options


# -------------------------------------------------------------------------------------- datasets


class Report(NamedTuple):
    """Datasets, and the part of them that is selected."""

    opened: OpenedDataset
    selection: Selection

    def latest(self, selection: Optional[Selection] = None) -> list[Result]:
        """Return the latest results of the selection, or of another one."""
        from fib_report.results import collect_results, latest_results, with_intervals

        found = collect_results(self.opened.trace_set, selection or self.selection)
        return self.checked(with_intervals(latest_results(found)))

    def checked(self, results: list[Result]) -> list[Result]:
        """Return `results`; raise `SelectionError` if there are none."""
        if not results:
            raise SelectionError(
                f"{self.opened.name} has no traces of runs that match the filters",
                hint="record some with 'fib run', or use fewer filters",
            )
        return results


def report_of(
    local: options.Local = None,
    hub: options.Hub = None,
    definitions: options.Definitions = None,
    op_types: options.OpTypes = None,
    hardware: options.Hardware = None,
    log_level: options.LogLevel = None,
) -> Report:
    """Open the datasets of a command line; omitted filters select everything."""
    output.set_up_logging(log_level)
    from flashinfer_bench.data.selection import Selection

    names = {"definitions": definitions, "op_types": op_types, "hardware": hardware}
    selection = Selection(**{field: tuple(given or ()) for field, given in names.items()})
    return Report(open_datasets(local, hub), selection)


@takes(report=report_of)
def narrow_report_of(
    report: Report, solutions: options.Solutions = None, authors: options.Authors = None
) -> Report:
    """Open datasets as `report_of` does, with filters for solutions and authors as well."""
    names = {"solutions": tuple(solutions or ()), "authors": tuple(authors or ())}
    return report._replace(selection=replace(report.selection, **names))


# ---------------------------------------------------------------------------------------- formats


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


def format_of(
    output_format: FormatOption = Format.table, as_json: options.AsJson = False
) -> Format:
    """Return the format; ``--json`` is short for ``--format json``."""
    return Format.json if as_json else output_format


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


def rank_columns(path: str) -> list[Column]:
    """Return the columns of a rank: ``=1`` for people; number, and whether it is shared."""

    def rank_of(row: Any) -> str:
        return attrgetter(path)(row) or ""

    return [
        Column("rank", path, programs=False),
        Column("rank", lambda row: int(rank_of(row).lstrip("=") or 0) or None, people=False),
        Column("tied", lambda row: rank_of(row).startswith("="), people=False),
    ]


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
