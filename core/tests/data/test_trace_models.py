"""Workloads, evaluations and traces: fields and the rules between them."""

from __future__ import annotations

import json
import math

import pytest
from pydantic import ValidationError

from flashinfer_bench.data import (
    Correctness,
    Evaluation,
    EvaluationStatus,
    Performance,
    ScalarInput,
    Workload,
)

# -------------------------------------------------------------------------------------- workload


@pytest.mark.parametrize("value", [True, False, 0, 1, -3, 2.0, 1 << 62, 1e300])
def test_scalars_keep_their_type(value):
    read = ScalarInput.model_validate_json(ScalarInput(value=value).model_dump_json()).value
    assert read == value
    assert type(read) is type(value)


# ------------------------------------------------------------------------------------ evaluation


def test_statuses_are_the_seven_of_the_format():
    assert [status.value for status in EvaluationStatus] == [
        "PASSED",
        "INCORRECT_SHAPE",
        "INCORRECT_NUMERICAL",
        "INCORRECT_DTYPE",
        "RUNTIME_ERROR",
        "COMPILE_ERROR",
        "TIMEOUT",
    ]
    assert EvaluationStatus.PASSED == "PASSED"
    assert f"{EvaluationStatus.TIMEOUT}" == str(EvaluationStatus.TIMEOUT) == "TIMEOUT"
    assert {"PASSED": 1}[EvaluationStatus.PASSED] == 1


@pytest.mark.parametrize("value", [-1.0, -math.inf, math.nan, "1.0", None, True])
def test_latencies_are_not_negative(value):
    with pytest.raises(ValidationError, match="latency_ms"):
        Performance(latency_ms=value, reference_latency_ms=1.0, speedup_factor=1.0)


def test_a_speedup_is_finite():
    with pytest.raises(ValidationError, match="speedup_factor"):
        Performance(latency_ms=1.0, reference_latency_ms=math.inf, speedup_factor=math.inf)


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


def test_a_scalar_may_be_infinite(make):
    workload = make.workload(inputs={"cap": {"type": "scalar", "value": -math.inf}})
    text = workload.model_dump_json()
    assert '"-Infinity"' in text
    assert Workload.model_validate_json(text) == workload
