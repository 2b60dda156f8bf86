"""What commands print: data on stdout, talk on stderr.

On a terminal a table is drawn; anywhere else it is written as tab-separated values, header first,
with six significant digits, so that ``cut``, ``sort`` and ``awk`` work on it; ``--json`` has every
digit. Names and logs come from
datasets that others wrote, so control characters never reach the terminal as such.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

_NARROWEST = 12  # a column of text is not folded to less; rich would fold it to nothing

# C0 and C1 controls (with ESC, tab and newline) and the marks that reorder text.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""Return `text` on one line with every control character spelt out, such as ``\x1b``.

    Parameters
    ----------
    text : str
        Any text, possibly made to disturb a terminal or to break a table apart.

    Returns
    -------
    str
        The same text without control characters and without marks that reorder it.
    """
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def talk(message: str = "") -> None:
    """Write one message for humans to stderr.

    Parameters
    ----------
    message : str
        The message; its line breaks are kept, other control characters are spelt out.
    """
    lines = [printable(line) for line in message.split("\n")]
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()


def emit(text: str) -> None:
    """Write one line of data to stdout.

    Parameters
    ----------
    text : str
        The line, without its line break.
    """
    sys.stdout.write(text + "\n")


def emit_json(obj: Any) -> None:
    """Write `obj` to stdout as one JSON document, and nothing else.

    Parameters
    ----------
    obj : Any
        Plain values, mappings, sequences, sets, dataclasses, pydantic models, enums, paths and
        dates in any nesting. Non-finite floats become ``"NaN"``, ``"Infinity"`` and
        ``"-Infinity"``, as in the files of a dataset.
    """
    import json

    emit(json.dumps(to_plain(obj), indent=2, allow_nan=False))


def to_plain(obj: Any) -> Any:
    """Reduce `obj` to what JSON can hold; see `emit_json`."""
    if isinstance(obj, Enum):
        return to_plain(obj.value)
    if obj is None or isinstance(obj, (bool, int, str)):
        return obj
    if isinstance(obj, float):
        return _plain_float(obj)
    if isinstance(obj, Mapping):
        return {_plain_key(key): to_plain(value) for key, value in obj.items()}
    if isinstance(obj, (set, frozenset)):
        return sorted((to_plain(item) for item in obj), key=str)
    if isinstance(obj, (list, tuple)):
        return [to_plain(item) for item in obj]
    return _plain_object(obj)


def _plain_key(key: Any) -> str:
    return str(key.value if isinstance(key, Enum) else key)


def _plain_float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _plain_object(obj: Any) -> Any:
    import dataclasses

    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        fields = dataclasses.fields(obj)
        return {field.name: to_plain(getattr(obj, field.name)) for field in fields}
    if hasattr(obj, "model_dump"):
        return to_plain(obj.model_dump(mode="python", exclude_none=True))
    return str(obj)


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    file: TextIO | None = None,
) -> None:
    """Print a table: drawn on a terminal, tab-separated values anywhere else.

    On a terminal that is too narrow for its columns each row becomes a block of lines.

    Parameters
    ----------
    title : str
        Heading; only drawn, never part of the values. May be empty.
    columns : sequence of str
        Names of the columns.
    rows : iterable of sequences
        One value per column. None is an empty cell; floats are rounded to four digits where drawn
        and to six otherwise.
    file : file, optional
        Where to; stdout by default.

    Raises
    ------
    ValueError
        If a row has not as many values as there are columns.
    """
    out = file if file is not None else sys.stdout
    lines = [tuple(row) for row in rows]
    for line in lines:
        if len(line) != len(columns):
            raise ValueError(f"a row of {len(line)} values for {len(columns)} columns: {line!r}")
    if out.isatty():
        draw = _draw_table if _fits(columns, lines, console(out).width) else _draw_records
        draw(title, columns, lines, out)
    else:
        out.write(_tsv(columns))
        out.writelines(_tsv(line) for line in lines)


def _tsv(values: Sequence[Any]) -> str:
    return "\t".join(_cell(value) for value in values) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.6g}"
    return printable(str(to_plain(value)))


def rounded(value: Any) -> str:
    """Return `value` as it is shown to humans: four digits, ``-`` for None, yes or no."""
    if value is None:
        return "-"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return _cell(value)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _fits(columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int) -> bool:
    """Return whether a drawn table is readable: numbers whole, text folded to 12 or more."""
    needed = 0
    for index, name in enumerate(columns):
        cells = [row[index] for row in rows]
        longest = max(map(len, (printable(name), *map(rounded, cells))))
        numbers = bool(cells) and all(map(_is_number, cells))
        needed += (longest if numbers else min(longest, _NARROWEST)) + 3  # and the gap
    return needed <= width


def _draw_records(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], file: TextIO
) -> None:
    from rich.table import Table
    from rich.text import Text

    screen = console(file)
    if title:
        screen.print(Text(printable(title), style="italic"))
    for row in rows:
        block = Table.grid(padding=(0, 2))
        for name, value in zip(columns, row, strict=True):
            block.add_row(Text(printable(name), style="bold"), Text(rounded(value)))
        screen.print()
        block.columns[1].overflow = "fold"
        screen.print(block)


def _draw_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], file: TextIO
) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    # Text objects, not strings: a name such as "[red]" is a name and no markup.
    drawn = Table(
        title=Text(printable(title)) if title else None, title_justify="left", box=box.SIMPLE_HEAD
    )
    for index, name in enumerate(columns):
        numbers = bool(rows) and all(_is_number(row[index]) for row in rows)
        drawn.add_column(
            Text(printable(name)),
            justify="right" if numbers else "left",
            no_wrap=numbers,
            overflow="fold",
        )
    for row in rows:
        drawn.add_row(*(Text(rounded(value)) for value in row))
    console(file).print(drawn)


def console(file: TextIO) -> Console:
    """Return a rich console on `file`; colours are off under ``NO_COLOR`` and outside terminals."""
    from rich.console import Console

    return Console(file=file, highlight=False, markup=False, emoji=False, soft_wrap=False)
