"""Tables, JSON and messages."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.cli.output import (
    emit,
    emit_json,
    printable,
    rounded,
    table,
    talk,
    to_plain,
)


class Terminal(io.StringIO):
    """A file that says that it is a terminal."""

    def isatty(self):
        return True


@given(st.text())
def test_no_control_character_is_printable(text):
    shown = printable(text)
    assert all(character.isprintable() or ord(character) > 0x9F for character in shown)
    assert "\n" not in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain · näme", "plain · näme"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\tb\nc\rd", "a\\tb\\nc\\rd"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
    ],
)
def test_printable(text, shown):
    assert printable(text) == shown


def test_talk_goes_to_stderr_line_by_line(capsys):
    talk("first\nsecond\x1b[2J")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "first\nsecond\\x1b[2J\n"


def test_emit_goes_to_stdout(capsys):
    emit("data")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("data\n", "")


# --------------------------------------------------------------------------------------- JSON


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: float
    where: Path


def test_json_of_many_kinds(capsys):
    from flashinfer_bench.data import Performance

    emit_json(
        {
            "point": Point(math.nan, Path("a/b")),
            "set": {"b", "a"},
            "tuple": (1, None, True),
            Colour.RED: Colour.RED,
            "model": Performance(latency_ms=1.0, reference_latency_ms=2.0, speedup_factor=2.0),
            "infinite": [math.inf, -math.inf],
            "text": "ünï\x1b",
        }
    )
    captured = capsys.readouterr()
    assert captured.err == ""
    assert json.loads(captured.out) == {
        "point": {"x": "NaN", "where": "a/b"},
        "set": ["a", "b"],
        "tuple": [1, None, True],
        "red": "red",
        "model": {"latency_ms": 1.0, "reference_latency_ms": 2.0, "speedup_factor": 2.0},
        "infinite": ["Infinity", "-Infinity"],
        "text": "ünï\x1b",
    }


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=15,
)


@given(PLAIN)
def test_plain_values_stay_as_they_are(value):
    assert json.loads(json.dumps(to_plain(value))) == value


@given(st.text(st.characters(exclude_categories=[])))
def test_json_is_ascii_and_never_fails(text):
    assert json.dumps(to_plain({"k": text})).isascii()


# ------------------------------------------------------------------------------------- tables

ROWS = [("a", 1, 0.123456789, None), ("b\tc", 20000, 12345.678, True)]
COLUMNS = ("name", "count", "latency", "flag")


def test_values_are_separated_by_tabs():
    out = io.StringIO()
    table("Title", COLUMNS, ROWS, file=out)
    assert out.getvalue() == (
        "name\tcount\tlatency\tflag\na\t1\t0.123457\t\nb\\tc\t20000\t12345.7\tyes\n"
    )


@given(st.lists(st.lists(st.text(), min_size=2, max_size=2), max_size=5))
def test_whatever_the_cells_there_is_a_line_for_each_row(rows):
    out = io.StringIO()
    table("", ("a", "b"), rows, file=out)
    lines = out.getvalue().split("\n")
    assert len(lines) == len(rows) + 2
    assert all(line.count("\t") == 1 for line in lines[:-1])


def test_a_terminal_gets_a_drawing():
    out = Terminal()
    table("Title", COLUMNS, ROWS, file=out)
    shown = out.getvalue()
    assert "Title" in shown
    assert "0.1235" in shown
    assert "12,346" in shown
    assert "b\\tc" in shown
    assert "─" in shown


def test_markup_in_a_name_is_a_name():
    out = Terminal()
    table("[bold]T[/bold]", ("[red]c",), [("[link=x]n[/link] :smile:",)], file=out)
    shown = out.getvalue()
    for text in ("[bold]T[/bold]", "[red]c", "[link=x]n[/link] :smile:"):
        assert text in shown


def test_escape_sequences_never_reach_the_terminal(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    table("\x1b]0;pwned\x07", ("c\x1b[2J",), [("\x1b[31mred\u202e",)], file=out)
    assert "\x1b]" not in out.getvalue()
    assert "\x1b[31m" not in out.getvalue()
    assert "\u202e" not in out.getvalue()


def test_no_colour_when_asked(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    table("Title", COLUMNS, ROWS, file=out)
    assert "\x1b[3" not in out.getvalue()


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_whatever_the_width_nothing_is_left_out(monkeypatch, width):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    name = "a_name_of_quite_some_length_" * 4
    columns = [f"column_{index}" for index in range(8)]
    row = [name, "b", 1.5, None, True, 12345, "end", 0.25]
    out = Terminal()
    table("Title", columns, [row, row], file=out)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
    assert max(map(len, lines)) <= width
    if width < 120:  # too narrow for eight columns: one line for each value
        assert name in "".join("".join(lines).split())
        assert sum("column_5  12345" in line for line in lines) == 2
    else:
        assert sum("12345" in line for line in lines) == 2
    assert "…" not in out.getvalue()


def test_a_table_without_rows_is_its_header():
    out = io.StringIO()
    table("", ("a", "b"), [], file=out)
    assert out.getvalue() == "a\tb\n"
    table("Empty", ("a", "b"), [], file=Terminal())


def test_rows_must_fit_the_columns():
    with pytest.raises(ValueError, match="a row of 1 values for 2 columns"):
        table("", ("a", "b"), [("x",)], file=io.StringIO())


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (True, "yes"),
        (3, "3"),
        (1234567, "1234567"),
        (0.000123456, "0.0001235"),
        (12345.6, "12,346"),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        ("text", "text"),
    ],
)
def test_rounded(value, shown):
    assert rounded(value) == shown
