"""The quick way takes no line that the models refuse, and reads the same from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_bench.data.index.lean import LineReader
from flashinfer_bench.data.trace_reader import TraceReader
from flashinfer_bench.errors import DataError

PATH = Path("x.jsonl")


def quick(text):
    """Return the row that the quick way makes of a line, None if it leaves it."""
    reader = LineReader(TraceReader(), PATH)
    line = text.replace(b"\n", b" ") + b"\n"
    left = list(reader.read_block(bytearray(line), 0, len(line), 0, 1))
    return None if left else _only_row(reader)


def full(text):
    reader = LineReader(TraceReader(), PATH)
    try:
        reader.read(text.replace(b"\n", b" "), 0, 1)
    except DataError:
        return None
    return _only_row(reader)


def _only_row(reader):
    columns = reader.columns()
    row = columns.row(0)
    hardware = columns.hardware[row.hardware] if row.hardware >= 0 else None
    return repr((columns.heads[row.head], hardware, row[2:9], row.samples, columns.timestamps()))


def base(make, **changes):
    return make.trace_record(
        correctness={"max_relative_error": 0.25, "max_absolute_error": 1e-3, "extra": {"a": [1]}},
        provenance={"seed": 3, "timer": "wall", "wall_s": 1.5, "extra": {"a": {"b": [1]}}},
        **changes,
    )


def test_todays_lines_are_read_quickly(make):
    for status in ("PASSED", "TIMEOUT", "INCORRECT_NUMERICAL"):
        text = json.dumps(make.trace_record(status=status)).encode()
        assert quick(text) == full(text) is not None
    text = json.dumps(base(make)).encode()
    assert quick(text) == full(text) is not None


SPECIAL = [b'"NaN"', b'"Infinity"', b"NaN", b"null", b"-1", b"1e999", b"-0.0", b"0", b"true", b"{}"]
SPECIAL += [b"[" * 150 + b"]" * 150, b"18446744073709551617", b'""', b'"\\ud800"', b'"\xff"', b"[]"]


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("value", [b"0.25", b"0.001", b"1.5", b'"fine"', b"3", b"[1]", b'"PASSED"'])
def test_special_values_in_each_place(make, value, special):
    text = json.dumps(base(make)).encode()
    assert value in text
    changed = text.replace(value, special)
    found = quick(changed)
    assert found in (None, full(changed))


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_damaged_lines(make, data):
    """Bytes replaced, taken out or doubled anywhere: also keys, quotes, braces and escapes."""
    text = bytearray(json.dumps(base(make, log='é\\"\n')).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        size = data.draw(st.integers(0, 30))
        pieces = st.sampled_from([b"", b'"', b"\\", b"{", b"}", b",", b"\x00", b"\xc3", b"9", b"-"])
        put = data.draw(st.one_of(pieces, st.just(bytes(text[at : at + size]) * 2)))
        text[at : at + size] = put
    found = quick(bytes(text))
    assert found in (None, full(bytes(text)))


def test_repeated_keys_count_as_in_the_models(make):
    record = json.dumps(base(make))
    doubled = (
        record.replace('"status": "PASSED"', '"status": "TIMEOUT", "status": "PASSED"'),
        record.replace('"latency_ms": ', '"latency_ms": 7, "latency_ms": '),
        record.replace('"solution": ', '"solution": "bob", "solution": '),
        record[:-1] + ', "solution": "bob"}',
        record[:-1] + ', "definition": "other"}',
        record.replace('"definition": ', '"definition": "x", "definition": '),
        record.replace('"hardware": ', '"hardware": "x", "hardware": '),
        record.replace('"uuid": ', '"uuid": "x", "uuid": '),
    )
    for text in doubled:
        assert quick(text.encode()) in (None, full(text.encode()))


def test_a_line_that_is_left_is_as_it_was(make):
    good = json.dumps(make.trace_record()).encode()
    odd = good.replace(b'"timestamp"', b'"timestamp_"')
    reader = LineReader(TraceReader(), PATH)
    block = bytearray(good + b"\n" + odd + b"\n")
    left = [
        (bytes(block[start:end]), line)
        for start, end, line in reader.read_block(block, 0, len(block), 0, 1)
    ]
    assert left == [(odd, 2)]


def test_many_levels_are_left_to_the_models(make):
    deep = json.loads("[" * 150 + "]" * 150)
    text = json.dumps(base(make, log="")).encode()
    for place in (b'{"a": [1]}', b'{"b": [1]}'):
        changed = text.replace(place, json.dumps({"a": deep}).encode())
        assert quick(changed) in (None, full(changed))
