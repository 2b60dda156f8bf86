"""Workloads, evaluations and traces: fields and the rules between them."""

from __future__ import annotations

import base64
import json
import math
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flashinfer_bench.data import (
    Correctness,
    Evaluation,
    EvaluationStatus,
    Performance,
    ScalarInput,
    Trace,
)
from flashinfer_bench.data.trace import packed, rounded, unpacked
from flashinfer_bench.data.trace_reader import TraceReader


def test_a_status_is_its_text():
    assert f"{EvaluationStatus.TIMEOUT}" == str(EvaluationStatus.TIMEOUT) == "TIMEOUT"


@pytest.mark.parametrize("value", [-1.0, -math.inf, math.nan, "1.0", None, True])
def test_latencies_are_not_negative_and_speedups_finite(value):
    with pytest.raises(ValidationError, match="latency_ms"):
        Performance(latency_ms=value)
    with pytest.raises(ValidationError, match="speedup_factor"):
        Performance(speedup_factor=math.inf)


def test_what_is_not_given_is_zero():
    assert Correctness() == Correctness(max_relative_error=0.0, max_absolute_error=0.0)
    assert Performance() == Performance(latency_ms=0, reference_latency_ms=0, speedup_factor=0)


@pytest.mark.parametrize("status", list(EvaluationStatus))
@pytest.mark.parametrize("given", [(True, True), (True, False), (False, True), (False, False)])
def test_what_is_given_with_each_status(make, status, given):
    wanted = {"PASSED": (True, True), "INCORRECT_NUMERICAL": (True, False)}
    wanted = wanted.get(status, (False, False))
    passed = make.evaluation_record()
    record = make.evaluation_record(status)
    for field, there in zip(("correctness", "performance"), given, strict=True):
        record[field] = passed[field] if there else None
    if given == wanted:
        assert Evaluation(**record).status == status
        return
    with pytest.raises(ValidationError, match=f"must be .* when the status is {status}"):
        Evaluation(**record)


# -------------------------------------------------------------------------------- numbers as text


def test_numbers_that_json_does_not_know_are_written_as_words():
    made = Correctness(
        max_relative_error=math.nan,
        max_absolute_error=math.inf,
        extra={"low": -math.inf, "list": [math.nan]},
    )
    text = made.model_dump_json()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "max_relative_error": "NaN",
        "max_absolute_error": "Infinity",
        "extra": {"low": "-Infinity", "list": ["NaN"]},
    }
    assert made.model_dump(mode="json") == json.loads(text)
    assert made.model_dump()["max_absolute_error"] == math.inf


@pytest.mark.parametrize("spelled", ['"infinity"', '"Infinity"', "Infinity"])
def test_a_latency_may_be_infinite(spelled):
    made = Performance.model_validate_json(f'{{"latency_ms": {spelled}}}')
    assert made.latency_ms == math.inf
    assert made.model_dump(mode="json")["latency_ms"] == "Infinity"
    assert Performance.model_validate_json(made.model_dump_json()) == made


@pytest.mark.parametrize("word", ["nan", "infinity", "-infinity", "NAN"])
def test_words_for_numbers_may_be_in_lower_case(word):
    read = ScalarInput.model_validate({"value": word}).value
    assert str(read) == str(float(word))


# --------------------------------------------------------------------------------- samples as text


SINGLE = st.floats(min_value=0, max_value=2.0**127, width=32)
DOUBLE = st.floats(min_value=0, allow_infinity=False, allow_nan=False)


def text_of(raw):
    return "f32:" + base64.b64encode(raw).decode()


@given(st.lists(SINGLE))
def test_single_precision_numbers_come_back_from_a_text(values):
    text = packed(values)
    assert isinstance(text, str)
    assert unpacked(text) == values


@given(st.lists(DOUBLE))
def test_a_record_comes_back_exactly_whatever_its_numbers_are(values):
    before = Performance(samples_ms=values, reference_samples_ms=values[:3])
    assert Performance.model_validate_json(before.model_dump_json()) == before


def test_what_is_too_large_is_written_as_a_list():
    assert packed([1e39]) == [1e39]
    with pytest.raises(OverflowError):
        rounded([1e39])


def test_lists_of_earlier_traces_are_read():
    assert Performance.model_validate_json('{"samples_ms": [0.1, 2]}').samples_ms == [0.1, 2.0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0.5, 0.6", "begin with 'f32:'"),
        ("f64:AAAAPw==", "begin with 'f32:'"),
        ("f32:AAAAPw=", "Base64"),
        ("f32:AAAA Pw==", "Base64"),
        ("f32:é", "Base64"),
        ("f32:AAA=", "2 bytes"),
        (text_of(struct.pack("<f", math.nan)), "finite and not negative"),
        (text_of(struct.pack("<f", math.inf)), "finite and not negative"),
        (text_of(struct.pack("<2f", 1.0, -1.0)), "finite and not negative"),
    ],
)
def test_other_texts_are_refused(text, problem):
    with pytest.raises(ValueError, match=problem):
        unpacked(text)
    with pytest.raises(ValidationError, match=problem):
        Performance.model_validate_json(json.dumps({"samples_ms": text}))


@given(st.text(), st.binary(max_size=40))
def test_no_text_ends_in_anything_but_samples_or_a_named_error(text, raw):
    for one in (text, "f32:" + text, text_of(raw)):
        try:
            values = unpacked(one)
        except ValueError:
            continue
        assert all(0.0 <= value < math.inf for value in values)


@pytest.mark.parametrize(
    ("dropped", "counted"),
    [
        (None, [1.0, 2.0, 3.0, 4.0]),
        ([(0, 2), (1, 3)], [4.0]),
        ([(3, 10**15)], [1.0, 2.0, 3.0]),
        ([(10**15, 10**18), (3, 1)], [1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_dropped_samples_do_not_count(dropped, counted):
    record = Performance(samples_ms=[1.0, 2.0, 3.0, 4.0], dropped=dropped)
    assert record.counted_ms == counted


@pytest.mark.parametrize("field", ["interval_ms", "speedup_interval"])
@pytest.mark.parametrize("value", [[2.0, 1.0], [1.0], [1.0, 2.0, 3.0], [-1.0, 1.0], ["a", 1.0], 3])
def test_intervals_have_two_ends_in_order(field, value):
    with pytest.raises(ValidationError):
        Performance.model_validate_json(json.dumps({field: value}))


# -------------------------------------------------------------------------------- as they are read


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
