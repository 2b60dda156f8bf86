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


def error_of(cls, record) -> DataError:
    with pytest.raises(DataError) as caught:
        decode(cls, json.dumps(record), path=PATH)
    return caught.value


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
