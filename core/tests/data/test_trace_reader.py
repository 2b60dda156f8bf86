"""Traces that are read share what is equal in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flashinfer_bench.data import Trace
from flashinfer_bench.data.trace_reader import TraceReader

PATH = Path("x.jsonl")


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
