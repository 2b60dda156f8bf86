"""Lines are decoded quickly: none that the models refuse is taken, and they read the same."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.trace_reader import TraceReader


def assert_read_alike(folder, *texts):
    """Compare what the index and the models make of some lines."""
    (folder / "traces").mkdir(exist_ok=True)
    (folder / "traces" / "x.jsonl").write_bytes(b"".join(text + b"\n" for text in texts))
    quick, plain = (TraceSet.from_path(folder, on_error="collect") for _ in range(2))
    plain.traces  # noqa: B018 - from now on its answers come from memory
    made = [repr([astuple(row)[1:-2] for row in one.run_rows()]) for one in (quick, plain)]
    assert made[0] == made[1]
    assert list(map(str, quick.load_errors)) == list(map(str, plain.load_errors))
    return len(quick.load_errors)


def base(make, **changes):
    return make.trace_record(
        correctness={
            "max_relative_error": 0.25,
            "max_absolute_error": 1e-3,
            "extra": {"a": [1], "integrity": {"clean": True}},
        },
        provenance={"seed": 3, "timer": "wall", "wall_s": 1.5, "extra": {"a": {"b": [1]}}},
        **changes,
    )


def test_todays_lines_are_read_quickly(make, tmp_path):
    workload = {key: make.trace_record()[key] for key in ("definition", "workload")}
    records = [make.trace_record(status=one) for one in ("PASSED", "TIMEOUT")]
    records += [base(make), workload, {**workload, "solution": None, "evaluation": None}]
    records.append({**base(make), "of_later": [1]})
    texts = [json.dumps(record).encode() for record in records]
    assert None not in map(TraceReader().read_line, texts)
    assert assert_read_alike(tmp_path, *texts) == 0


SPECIAL = [b'"NaN"', b'"Infinity"', b"NaN", b"null", b"-1", b"1e999", b"-0.0", b"0", b"true", b"{}"]
SPECIAL += [b"18446744073709551617", b'""', b'"\\ud800"', b'"\xff"', b"[]", b'"f32:AAAAPwAAgD4="']
SPECIAL += [b'"f32:AAA="', b"[2.0, 1.0]", b"[1, 2.5]", b"[[0]]", b"[[0, 1], [1, 9]]"]
PLACES = {
    "alice_v1": b'"alice_v1"',
    "max_relative_error": b"0.25",
    "latency_ms": b"1.5",
    "log": b'"fine"',
    "seed": b"3",
    "status": b'"PASSED"',
    "samples_ms": b'"a"',
    "reference_samples_ms": b'"b"',
    "interval_ms": b'"c"',
    "speedup_interval": b'"d"',
    "dropped": b'"e"',
    "outliers": b'"f"',
}


@pytest.mark.parametrize("place", PLACES)
def test_special_values_in_each_place(make, tmp_path, place):
    record = base(make)
    if len(PLACES[place]) == 3:
        record["evaluation"]["performance"][place] = json.loads(PLACES[place])
    text = json.dumps(record).encode()
    assert PLACES[place] in text
    texts = [text.replace(PLACES[place], special) for special in SPECIAL]
    assert assert_read_alike(tmp_path, *texts) > 0


@given(data=st.data())
def test_damaged_lines(make, tmp_path_factory, data):
    """Bytes replaced, taken out or doubled anywhere: also keys, quotes, braces and escapes."""
    text = bytearray(json.dumps(base(make, log='é\\"\n')).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        size = data.draw(st.integers(0, 30))
        pieces = st.sampled_from([b"", b'"', b"\\", b"{", b"}", b",", b"\x00", b"\xc3", b"9", b"-"])
        put = data.draw(st.one_of(pieces, st.just(bytes(text[at : at + size]) * 2)))
        text[at : at + size] = put
    assert_read_alike(tmp_path_factory.getbasetemp(), bytes(text))


def test_repeated_keys_count_as_in_the_models(make, tmp_path):
    record = json.dumps(base(make))
    doubled = (
        record.replace('"status": "PASSED"', '"status": "TIMEOUT", "status": "PASSED"'),
        record.replace('"latency_ms": ', '"latency_ms": 7, "latency_ms": '),
        record[:-1] + ', "solution": "bob"}',
        record[:-1] + ', "definition": "other"}',
        record.replace('"hardware": ', '"hardware": "x", "hardware": '),
        record.replace('"uuid": ', '"uuid": "x", "uuid": '),
    )
    assert_read_alike(tmp_path, *(text.encode() for text in doubled))
