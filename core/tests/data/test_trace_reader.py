"""The quick way of reading traces gives what the ordinary way gives, and shares what is equal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.data import Trace
from flashinfer_bench.data.json_codec import decode
from flashinfer_bench.data.trace_reader import TraceReader
from flashinfer_bench.errors import DataError

PATH = Path("x.jsonl")


def outcome(read):
    try:
        return read()
    except DataError as error:
        return (str(error), error.path, error.line, error.field)


def both(text):
    """Read the quick way and the ordinary way; return both outcomes."""
    quick = outcome(lambda: TraceReader().read(text, path=PATH, line=3))
    return quick, outcome(lambda: decode(Trace, text, path=PATH, line=3))


VARIANTS = {
    "run": lambda make: make.trace_record(),
    "workload": lambda make: make.trace_record(None),
    "failed": lambda make: make.trace_record(status="TIMEOUT"),
    "wrong": lambda make: make.trace_record(status="INCORRECT_NUMERICAL"),
    "infinite": lambda make: make.trace_record(status="INCORRECT_NUMERICAL", error=float("inf")),
    "old": lambda make: {**make.trace_record(None), "solution": "", "evaluation": {}},
    "bare": lambda make: {k: make.trace_record()[k] for k in ("definition", "workload")},
    "extra": lambda make: {**make.trace_record(), "more": [1]},
    "samples": lambda make: make.trace_record(
        performance={
            "latency_ms": 1,
            "reference_latency_ms": 2,
            "speedup_factor": 2,
            "samples_ms": [1, 1.5],
        },
        provenance={"seed": 3, "other": "x"},
    ),
    "no workload": lambda make: {"definition": "d"},
    "no solution": lambda make: {**make.trace_record(), "solution": None},
    "no evaluation": lambda make: {**make.trace_record(), "evaluation": None},
    "number": lambda make: {**make.trace_record(), "solution": 5},
    "empty": lambda make: {**make.trace_record(), "definition": ""},
    "bad workload": lambda make: {**make.trace_record(), "workload": {"axes": {"M": -1}}},
    "bad evaluation": lambda make: {**make.trace_record(), "evaluation": {"status": "PASSED"}},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_both_ways_agree(make, variant):
    quick, ordinary = both(json.dumps(VARIANTS[variant](make)).encode())
    assert quick == ordinary


@given(st.data(), st.sampled_from(sorted(VARIANTS)))
def test_both_ways_agree_on_damaged_lines(make, data, variant):
    text = bytearray(json.dumps(VARIANTS[variant](make)).encode())
    position = data.draw(st.integers(0, len(text) - 1))
    kind = data.draw(st.sampled_from(["replace", "delete", "cut", "insert"]))
    if kind == "replace":
        text[position] = data.draw(st.integers(0, 255))
    elif kind == "delete":
        del text[position]
    elif kind == "cut":
        del text[position:]
    else:
        text.insert(position, data.draw(st.sampled_from(b'{}[]",:0 \n')))
    quick, ordinary = both(bytes(text))
    assert quick == ordinary


def read_all(make, *records):
    reader = TraceReader()
    return [reader.read(json.dumps(record).encode(), path=PATH, line=1) for record in records]


def test_equal_parts_are_one_object(make):
    one, two, three = read_all(
        make, make.trace_record(), make.trace_record("bob_v1"), make.trace_record(None)
    )
    assert one.workload is two.workload is three.workload
    assert one.evaluation.environment is two.evaluation.environment
    assert one.evaluation is not two.evaluation
    assert one.definition is two.definition


def test_equal_workloads_written_otherwise_are_one_object(make):
    record = make.trace_record()
    turned = {**record, "workload": dict(reversed(record["workload"].items()))}
    old = {**make.trace_record(None), "solution": "", "evaluation": {}}
    one, two, three = read_all(make, record, turned, old)
    assert one.workload is two.workload is three.workload


@pytest.mark.parametrize(("first", "second"), [(1, 1.0), (1, True), (0.0, False)])
def test_scalars_of_different_types_stay_apart(make, first, second):
    records = [make.trace_record(), make.trace_record()]
    for record, value in zip(records, (first, second), strict=True):
        record["workload"]["inputs"] = {"s": {"type": "scalar", "value": value}}
    values = [trace.workload.inputs["s"].value for trace in read_all(make, *records)]
    assert [type(value) for value in values] == [type(first), type(second)]


def test_traces_that_were_read_can_be_changed(make):
    one, two = read_all(make, make.trace_record(), make.trace_record())
    one.solution = "other"
    one.evaluation.log = "changed"
    assert (two.solution, two.evaluation.log) == ("alice_v1", "fine")
    copied = two.model_copy(update={"solution": "copy"})
    assert (copied.solution, two.solution) == ("copy", "alice_v1")
    assert Trace.model_validate_json(one.model_dump_json()) == one
