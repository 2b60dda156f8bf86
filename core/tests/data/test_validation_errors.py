"""Errors name file, line and field, in the words of the format and not of the library behind it.

More mistakes are in ``tests/test_mistakes.py``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flashinfer_bench.data import Definition, Trace
from flashinfer_bench.data.json_codec import decode
from flashinfer_bench.errors import DataError

PATH = Path("d/x.json")


def error_of(cls, record, line=None) -> DataError:
    with pytest.raises(DataError) as caught:
        decode(cls, json.dumps(record), path=PATH, line=line)
    return caught.value


def changed(record, path, value):
    """Return `record` with the value at a dotted path replaced; a value of ... removes it."""
    record = json.loads(json.dumps(record))
    *parents, last = path.split(".")
    target = record
    for part in parents:
        target = target[int(part) if isinstance(target, list) else part]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return record


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("name", ..., "this field is missing"),
        ("name", 3, "valid string, not 3"),
        ("axes.N.value", "eight", "valid integer, not 'eight'"),
        ("axes.N.value", -1, "greater than or equal to 0, not -1"),
        ("axes.N.value", True, "valid integer, not True"),
        ("op_type", ..., "this field is missing; write the family of the computation"),
        ("inputs.a.shape", ["2*N"], "a constraint such as 'twice_n == 2 * N'"),
        ("inputs.a.shape", ["Q"], "'Q' is not an axis of the definition (available axes: M, N, K)"),
        ("outputs", [], "must be an object"),
        ("constraints", ["a ="], "constraint 'a =' is not an expression"),
    ],
)
def test_definition(make, path, value, message):
    record = changed(make.definition_record(), path, value)
    error = error_of(Definition, record)
    assert error.field == path or error.field.startswith(path)
    assert message in error.message
    assert str(error).startswith(f"{PATH}: {path}")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("definition", ..., "this field is missing"),
        ("workload.axes.M", -2, "not -2"),
        ("workload.inputs.s", {"type": "scalar", "value": "x"}, "not 'x'"),
        ("workload.inputs.t", {"type": "safetensors", "path": "p"}, "this field is missing"),
        ("workload.axes.M", 2.0, "valid integer"),
        ("evaluation.timestamp", "", "at least 1 character"),
        ("evaluation.correctness", ..., "correctness must be given when the status is PASSED"),
        ("evaluation.correctness.max_absolute_error", -1, "not negative"),
        ("workload.inputs.a.type", ..., "this field is missing"),
        ("solution", None, "solution is missing: give both"),
        ("evaluation", None, "evaluation is missing: give both"),
    ],
)
def test_trace(make, path, value, message):
    error = error_of(Trace, changed(make.trace_record(), path, value), line=7)
    assert error.line == 7
    assert error.field.startswith(path)
    assert message in error.message
    assert str(error).startswith(f"{PATH}:7: {path}")


def test_fields_named_like_the_labels(make):
    axes = {"const": {"type": "const", "value": -1}, "var": {"type": "var"}}
    record = make.definition_record(axes=axes, inputs={}, outputs={})
    assert error_of(Definition, record).field == "axes.const.value"


def test_further_problems_are_named(make):
    record = make.trace_record()
    for field in ("axes", "inputs", "uuid"):
        record["workload"][field] = 3
    del record["definition"]
    record["evaluation"]["timestamp"] = 3
    error = error_of(Trace, record)
    assert error.field == "definition"
    listed = "workload.axes, workload.inputs, workload.uuid and 1 more"
    assert f"(also wrong: {listed})" in error.message
