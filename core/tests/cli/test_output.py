"""Tables, JSON, messages and log lines."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import re
import subprocess
from contextlib import redirect_stdout
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_tests.cli import Terminal
from flashinfer_bench.cli.output import (
    Column,
    StderrHandler,
    document_of,
    emit_json,
    printable,
    rounded,
    set_up_logging,
    table,
    write_output,
)
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.report import Measured


@given(st.text())
def test_no_control_character_is_printable(text):
    shown = printable(text)
    assert all(character.isprintable() or ord(character) > 0x9F for character in shown)
    assert "\n" not in shown
    assert "\x1b" not in shown


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
        "tuple": [1, None, True],
        "red": "red",
        "model": {"latency_ms": 1.0, "reference_latency_ms": 2.0, "speedup_factor": 2.0},
        "infinite": ["Infinity", "-Infinity"],
        "text": "ünï\x1b",
    }


ROWS = [("a", 1, 0.123456789, None), ("b\tc", 20000, 12345.678, True)]
COLUMNS = ("name", "count", "latency", "flag")


def test_values_are_separated_by_tabs(capsys):
    table("Title", COLUMNS, ROWS)
    assert capsys.readouterr().out == (
        "name\tcount\tlatency\tflag\na\t1\t0.123457\t\nb\\tc\t20000\t12345.7\tyes\n"
    )


@given(st.lists(st.lists(st.text(), min_size=2, max_size=2), max_size=5))
def test_whatever_the_cells_there_is_a_line_for_each_row(rows):
    with redirect_stdout(io.StringIO()) as out:
        table("", ("a", "b"), rows)
    lines = out.getvalue().split("\n")
    assert len(lines) == len(rows) + 2
    assert all(line.count("\t") == 1 for line in lines[:-1])


def test_markup_in_a_name_is_a_name():
    with redirect_stdout(Terminal()) as out:
        table("[bold]T[/bold]", ("[red]c",), [("[link=x]n[/link] :smile:",)])
    shown = out.getvalue()
    for text in ("[bold]T[/bold]", "[red]c", "[link=x]n[/link] :smile:"):
        assert text in shown


@pytest.mark.parametrize("width", [20, 80, 200])
def test_whatever_the_width_nothing_is_left_out(monkeypatch, width):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    name = "a_name_of_quite_some_length_" * 4
    columns = [f"column_{index}" for index in range(8)]
    row = [name, "b", 1.5, None, True, 12345, "end", 0.25]
    with redirect_stdout(Terminal()) as out:
        table("Title", columns, [row, [f"{name}2", "c", 2.5, 1, False, 12345.5, "ends", 0.5]])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
    assert max(map(len, lines)) <= width
    assert name in "".join("".join(lines).split())
    if width < 80:  # too narrow for any line of columns
        assert "    column_5: 12345" in lines
    else:
        assert sum("column_5" in line for line in lines) == 1
    assert sum("12345" in line or "12,346" in line for line in lines) == 2
    assert "…" not in out.getvalue()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (True, "yes"),
        (1234567, "1234567"),
        (0.000123456, "0.0001235"),
        (12345.6, "12,346"),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
    ],
)
def test_rounded(value, shown):
    assert rounded(value) == shown


def test_columns_are_tables_and_json_alike(capsys):
    columns = [
        Column("name", "name"),
        Column("latency", lambda row: row.latency, measured=True),
        Column("clock", "clock", people=False),
        Column("notes", lambda row: "many words", programs=False),
        Column("log", "log", people=False, programs=False, json=True),
    ]
    row = SimpleNamespace(name="a", latency=Measured(2.0, (1.9, 2.1)), clock="cpu", log="text")
    bare = SimpleNamespace(name="b", latency=None, clock="gpu", log="")
    table("Title", columns, [row, bare])
    assert capsys.readouterr().out == (
        "name\tlatency\tlatency_low\tlatency_high\tclock\na\t2\t1.9\t2.1\tcpu\nb\t\t\t\tgpu\n"
    )
    with redirect_stdout(Terminal()) as drawn:
        table("Title", columns, [row, bare])
    for text in ("2 ±5%", "many words"):
        assert text in drawn.getvalue()
    assert "cpu" not in drawn.getvalue()
    assert document_of(columns, row) == {
        "name": "a",
        "latency": 2.0,
        "latency_low": 1.9,
        "latency_high": 2.1,
        "clock": "cpu",
        "log": "text",
    }


def test_a_pipe_stays_one_and_a_link_too(tmp_path):
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        try:
            write_output(pipe, b"data")
            assert reader.stdout.read() == b"data"
        finally:
            reader.kill()
    assert pipe.is_fifo()
    link.symlink_to(file)
    write_output(link, b"data")
    assert link.is_symlink()
    assert file.read_bytes() == b"data"
    with pytest.raises(ConfigError, match="is not a file"):
        write_output(Path(), b"data")


# ------------------------------------------------------------------------------------ logging


def test_our_log_records_go_to_whatever_stderr_is(capsys):
    set_up_logging("DEBUG")
    logging.getLogger("somebody.else").info("chatter")
    logging.getLogger("flashinfer_bench.x").debug("told \x1b[31m\nsecond line")
    assert capsys.readouterr().err == "DEBUG flashinfer_bench.x: told \\x1b[31m\nsecond line\n"


def test_setting_up_twice_does_not_say_things_twice(capsys):
    set_up_logging("INFO")
    set_up_logging("WARNING")
    logging.getLogger("flashinfer_bench.x").warning("once")
    logging.getLogger("flashinfer_bench.x").info("not at all")
    assert capsys.readouterr().err.count("\n") == 1
    handlers = [h for h in logging.getLogger().handlers if isinstance(h, StderrHandler)]
    assert len(handlers) == 1


def test_where_the_level_comes_from(monkeypatch):
    assert set_up_logging() == "WARNING"
    assert set_up_logging(default="INFO") == "INFO"
    monkeypatch.setenv("FIB_LOG_LEVEL", "error")
    assert set_up_logging(default="INFO") == "ERROR"
    assert set_up_logging("debug") == "DEBUG"


@pytest.mark.parametrize("level", ["LOUD", "10", " "])
def test_unknown_levels(level):
    with pytest.raises(ConfigError, match="unknown log level"):
        set_up_logging(level)
