"""Output of commands: data on stdout, messages on stderr.

Tables are drawn on a terminal. Anywhere else they are written as tab-separated values, header
first, with six significant digits, so that ``cut``, ``sort`` and ``awk`` can process them;
``--json`` has every digit. Names and logs come from datasets that others wrote, so control
characters are escaped before they reach the terminal.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import time
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, TextIO, Union

from flashinfer_bench import env
from flashinfer_bench.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from rich.console import Console
    from rich.text import Text

_SHORT = 8  # longer names get a line of their own where a table is too wide

# C0 and C1 controls (with ESC, tab and newline) and the marks that reorder text.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""Return `text` on one line with every control character escaped, such as ``\x1b``.

    Parameters
    ----------
    text : str
        Any text, possibly meant to disturb a terminal or to break a table.

    Returns
    -------
    str
        The text, with control characters and marks that reorder text escaped.
    """
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def as_line(text: str) -> str:
    """Return `text` as one printable line that is not a workflow command of GitHub Actions.

    Such commands begin with two colons, and names or logs may contain anything.
    """
    shown = printable(text)
    return f" {shown}" if shown.startswith("::") else shown


def talk(message: str = "") -> None:
    """Write one message to stderr.

    Parameters
    ----------
    message : str
        The message; its line breaks are kept, other control characters are escaped.
    """
    lines = [as_line(line) for line in message.split("\n")]
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()


def tell_counts(noun: str, kinds: Counter[Any], begin: float, *, interrupted: bool) -> None:
    """Write to stderr how many items were processed since `begin`, with their outcomes."""
    counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    begun = "interrupted after " if interrupted else ""
    seconds = time.monotonic() - begin
    told = noun if kinds.total() != 1 else noun.removesuffix("s")
    talk(f"{begun}{kinds.total():,} {told} in {seconds:.1f} s{': ' if counts else ''}{counts}")


def emit(text: str) -> None:
    """Write one line of data to stdout.

    Parameters
    ----------
    text : str
        The line, without its line break.
    """
    sys.stdout.write(text + "\n")


def write_output(path: Path, data: bytes) -> None:
    """Write the file that ``--output`` names; its folder must exist.

    Raises
    ------
    ConfigError
        If the folder does not exist.
    StorageError
        If the file cannot be written.
    """
    from flashinfer_bench.data.storage import replace_file, storage_error

    if not path.name:
        raise ConfigError(f"cannot write the output: {path} is not a file", hint="name a file")
    if path.is_symlink():
        path = path.resolve()
    if not path.absolute().parent.is_dir():
        hint = "create it first, or name a file elsewhere"
        raise ConfigError(f"cannot write {path}: no folder {path.parent}", hint=hint)
    is_special = path.exists() and not (path.is_file() or path.is_dir())  # a device or pipe
    try:
        if is_special:
            path.write_bytes(data)
        else:
            replace_file(path, data)
    except OSError as error:
        failed = error if isinstance(error, StorageError) else storage_error(path, error)
        failed.hint = "name a file elsewhere"
        raise failed from None


# ----------------------------------------------------------------------------------------- JSON


def emit_json(obj: Any) -> None:
    """Write `obj` to stdout as one JSON document.

    Parameters
    ----------
    obj : Any
        Plain values, mappings, sequences, dataclasses, pydantic models, enums, paths and dates in
        any nesting. Non-finite floats become ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, as in
        the files of a dataset.
    """
    import json

    emit(json.dumps(to_plain(obj), indent=2))


def emit_document(*, schema_version: int = 1, **fields: Any) -> None:
    """Write the result of a command to stdout as one JSON document, with its schema version."""
    emit_json({"schema_version": schema_version, **fields})


def to_plain(obj: Any) -> Any:
    """Convert `obj` to plain JSON values; see `emit_json`."""
    import json

    from pydantic_core import to_json

    text = to_json(obj, inf_nan_mode="strings", exclude_none=True, fallback=str)
    return json.loads(text)


# ---------------------------------------------------------------------------------------- tables


class Column(NamedTuple):
    """A column of a table, and the field of that name in JSON.

    Attributes
    ----------
    name : str
        Its heading.
    value : str or callable
        Its value in a row: the path of an attribute, or a function of the row.
    measured : bool
        Whether the value is a `flashinfer_bench.report.Measured` or None. Drawn tables show
        ``0.1428 ±2.1%``; for programs it has three values: NAME, NAME_low and NAME_high.
    people, programs : bool
        Whether it is in drawn tables and Markdown; in tab-separated values, CSV and JSON.
    json : bool, optional
        Whether it is in JSON. Default: ``programs``.
    """

    name: str
    value: Union[str, Callable[[Any], Any]]
    measured: bool = False
    people: bool = True
    programs: bool = True
    json: Optional[bool] = None

    def names(self) -> list[str]:
        """Return the names of the values for programs."""
        return [self.name + end for end in (("", "_low", "_high") if self.measured else ("",))]

    def read(self, row: Any) -> Any:
        """Return the value in a row."""
        return attrgetter(self.value)(row) if isinstance(self.value, str) else self.value(row)

    def values(self, row: Any) -> list[Any]:
        """Return the values for programs."""
        found = self.read(row)
        if not self.measured:
            return [found]
        return [None] * 3 if found is None else [found.value, *(found.ends or (None, None))]

    def drawn(self, row: Any) -> Any:
        """Return the value for drawn tables: with its interval, if one is known."""
        found = self.read(row)
        if not self.measured or found is None:
            return found
        return found.value if found.ends is None else with_interval(found.value, found.ends)


def with_interval(value: float, ends: Optional[tuple[float, float]], unit: str = "") -> str:
    """Return a number with half the width of its interval, if it has one: ``0.1428 ±2.1%``."""
    if ends is None or not value:
        return rounded(value) + unit
    percent = 50 * (ends[1] - ends[0]) / value
    # Two significant digits: 0.12%, 2.1%, 34%.
    width = f"{percent:.0f}" if percent >= 10 else f"{float(f'{percent:.2g}'):g}"
    return f"{rounded(value)}{unit} ±{width}%"


Columns = Union["Sequence[str]", "Sequence[Column]"]


def document_of(columns: Sequence[Column], row: Any) -> dict[str, Any]:
    """Return a row as its JSON object."""
    kept = [one for one in columns if (one.programs if one.json is None else one.json)]
    return {
        name: value
        for column in kept
        for name, value in zip(column.names(), column.values(row), strict=True)
    }


def laid_out(
    columns: Columns, rows: Iterable[Any], *, drawn: bool
) -> tuple[list[str], list[Sequence[Any]]]:
    """Return the headings and rows of a table: for people if `drawn`, else for programs."""
    known = [
        one if isinstance(one, Column) else Column(str(one), itemgetter(index))
        for index, one in enumerate(columns)
    ]
    if drawn:
        kept = [one for one in known if one.people]
        return [one.name for one in kept], [[one.drawn(row) for one in kept] for row in rows]
    kept = [one for one in known if one.programs]
    names = [name for one in kept for name in one.names()]
    return names, [[value for one in kept for value in one.values(row)] for row in rows]


def table(title: str, columns: Columns, rows: Iterable[Any]) -> None:
    """Print a table: drawn on a terminal, tab-separated values anywhere else.

    Parameters
    ----------
    title : str
        Heading of a drawn table; not written otherwise. May be empty.
    columns : sequence of str or of Column
        Names of the columns, or the columns themselves.
    rows : iterable
        If columns are names, one value per column. None is an empty cell; floats are rounded to
        four digits where drawn and to six otherwise.
    """
    out = sys.stdout
    names, lines = laid_out(columns, rows, drawn=out.isatty())
    if out.isatty():
        _draw(title, names, lines, out)
    else:
        out.writelines("\t".join(map(_cell, line)) + "\n" for line in (names, *lines))


def numeric_columns(names: Sequence[str], lines: Sequence[Sequence[Any]]) -> list[bool]:
    """Return for each column whether all its values are numbers or None."""

    def is_number(value: Any) -> bool:
        return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))

    return [
        bool(lines) and all(is_number(line[index]) for line in lines) for index in range(len(names))
    ]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.6g}"
    return printable(value if type(value) is str else str(to_plain(value)))


def rounded(value: Any) -> str:
    """Return `value` as drawn tables show it: four digits, ``-`` for None, yes or no."""
    if value is None:
        return "-"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return _cell(value)


def _draw(title: str, names: Sequence[str], lines: Sequence[Sequence[Any]], file: TextIO) -> None:
    """Draw a table without cutting off names, whatever the width of the terminal.

    If a table is too wide, columns with the same text in all rows are printed above it; then texts
    with spaces are moved below their rows; then long names to separate lines.
    """
    screen, numeric, every = console(file), numeric_columns(names, lines), range(len(names))
    rows = [[*map(printable, names)], *([rounded(value) for value in line] for line in lines)]
    if title:
        screen.print(with_colours(printable(title)), style="italic")
    widths = [max(len(row[n]) for row in rows) for n in every]
    shown, above, below = [*every], list[int](), list[int]()

    def too_wide() -> bool:
        return bool(sum(widths[n] + 2 for n in shown) + 2 > screen.width + (0 if above else 4))

    if too_wide() and len(rows) > 2:
        for n in every[1:]:
            if len({row[n] for row in rows[1:]}) == 1:
                shown.remove(n)
                screen.print(with_colours(f"{rows[0][n]}: {rows[1][n]}"))
    while shown and too_wide():
        texts = [n for n in shown if any(" " in row[n].replace(" ±", "") for row in rows[1:])]
        long = [n for n in shown if not numeric[n] and widths[n] > _SHORT]
        taken = texts[-1:] or long[:1] or shown
        (above if long and not texts else below).extend(taken)
        shown = [n for n in shown if n not in taken]
    before: list[str] = []
    for number, row in enumerate(rows):
        heads = [row[n] for n in above] if number else []
        for depth, name in enumerate(heads):
            if heads[: depth + 1] != before[: depth + 1]:
                screen.print(with_colours("  " * depth + name), overflow="fold")
        before = heads
        cells = [row[n].rjust(widths[n]) if numeric[n] else row[n].ljust(widths[n]) for n in shown]
        if shown:
            text = ("    " if above else "") + "  ".join(cells).rstrip()
            screen.print(with_colours(text), style="" if number else "bold underline")
        for n in sorted(below) if number else ():
            if row[n] not in ("", "-"):
                screen.print(with_colours(f"    {rows[0][n]}: {row[n]}"))
    screen.print()


def with_colours(text: str) -> Text:
    """Return `text` for a console, with statuses coloured by success and failure."""
    from rich.text import Text

    coloured = Text(text)
    for style, words in _COLOURS.items():
        coloured.highlight_regex(words, style)
    return coloured


_COLOURS = {
    "green": r"\bPASSED\b|\bok\b",
    "red": r"\b(?:INCORRECT_[A-Z]+|[A-Z]+_ERROR|TIMEOUT|broken)\b",
    "yellow": r"\b(?:disputed|loose tolerance)\b",
}


def console(file: TextIO) -> Console:
    """Return a rich console on `file`; colours are off under ``NO_COLOR`` and outside terminals."""
    from rich.console import Console

    return Console(file=file, highlight=False, markup=False, emoji=False, soft_wrap=False)


# ------------------------------------------------------------------------------------ log lines

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class StderrHandler(logging.Handler):
    """Writes to the current stderr, which a progress bar replaces while it is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        try:
            # Messages may quote datasets, or the output of solutions.
            talk(self.format(record))
        except Exception:  # noqa: BLE001 - like the handlers of the standard library
            self.handleError(record)


def set_up_logging(level: Optional[str] = None, *, default: str = "WARNING") -> str:
    """Send log records of at least `level` to stderr.

    Parameters
    ----------
    level : str, optional
        Value of ``--log-level``; default: ``FIB_LOG_LEVEL``, else `default`.
    default : str
        Default level of the command.

    Returns
    -------
    str
        The level that is used.

    Raises
    ------
    ConfigError
        If there is no such level.
    """
    chosen = (level or env.log_level() or default).strip().upper()
    if chosen not in LEVELS:
        raise ConfigError(f"unknown log level {chosen!r}; allowed: {', '.join(LEVELS)}")
    root = logging.getLogger()
    if not any(isinstance(handler, StderrHandler) for handler in root.handlers):
        root.addHandler(StderrHandler())
    logging.getLogger("flashinfer_bench").setLevel(chosen)
    return chosen
