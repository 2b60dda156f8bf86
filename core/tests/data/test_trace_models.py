"""Workloads, evaluations and traces: fields and the rules between them."""

from __future__ import annotations

import json
import math

import pytest
from pydantic import ValidationError

from flashinfer_bench.data import (
    Correctness,
    Environment,
    Evaluation,
    EvaluationStatus,
    Performance,
    Provenance,
    RandomInput,
    SafetensorsInput,
    ScalarInput,
    Trace,
    Workload,
)

FAILURES = ["INCORRECT_SHAPE", "INCORRECT_DTYPE", "RUNTIME_ERROR", "COMPILE_ERROR", "TIMEOUT"]


# -------------------------------------------------------------------------------------- workload


def test_kinds_of_inputs(make):
    inputs = {
        "r": {"type": "random"},
        "s": {"type": "scalar", "value": 0.5},
        "t": {"type": "safetensors", "path": "blob/x.safetensors", "tensor_key": "t"},
    }
    workload = make.workload(inputs=inputs)
    assert isinstance(workload.inputs["r"], RandomInput)
    assert workload.inputs["s"] == ScalarInput(value=0.5)
    assert workload.inputs["t"] == SafetensorsInput(path="blob/x.safetensors", tensor_key="t")


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "custom"},
        {"type": "generated", "path": "x"},
        {},
        {"type": "scalar"},
        {"type": "scalar", "value": None},
        {"type": "scalar", "value": "3"},
        {"type": "scalar", "value": [1]},
        {"type": "safetensors", "path": "x"},
        {"type": "safetensors", "path": "", "tensor_key": "t"},
        {"type": "safetensors", "path": "x", "tensor_key": ""},
        "random",
    ],
)
def test_inputs_that_are_refused(make, spec):
    with pytest.raises(ValidationError):
        make.workload(inputs={"x": spec})


@pytest.mark.parametrize("value", [True, False, 0, 1, -3, 2.0, 1 << 62, 1e300])
def test_scalars_keep_their_type(value):
    read = ScalarInput.model_validate_json(ScalarInput(value=value).model_dump_json()).value
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("value", [-1, 1.5, 2.0, "2", True, None])
def test_axis_values_are_real_integers_of_at_least_0(make, value):
    with pytest.raises(ValidationError, match="axes"):
        make.workload(axes={"M": value})


def test_an_axis_of_0_and_no_axes_at_all_are_allowed(make):
    assert make.workload(axes={"M": 0}).axes == {"M": 0}
    assert make.workload(axes={}).axes == {}


@pytest.mark.parametrize("uuid", ["", None, 3])
def test_a_workload_has_an_identity(make, uuid):
    with pytest.raises(ValidationError, match="uuid"):
        make.workload(uuid=uuid)


# ------------------------------------------------------------------------------------ evaluation


@pytest.mark.parametrize("value", [0.0, 1e-9, 3, math.inf, math.nan])
def test_errors_may_be_infinite_or_nan(value):
    made = Correctness(max_relative_error=value, max_absolute_error=value)
    assert math.isclose(made.max_relative_error, value) or math.isnan(value)


@pytest.mark.parametrize("value", [-1e-9, -math.inf, True, None, "much"])
def test_errors_are_not_negative(value):
    with pytest.raises(ValidationError, match="max_relative_error"):
        Correctness(max_relative_error=value, max_absolute_error=0.0)


@pytest.mark.parametrize("field", ["latency_ms", "reference_latency_ms", "speedup_factor"])
@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan, "1.0", None, True])
def test_durations_are_finite_and_not_negative(field, value):
    fields = {"latency_ms": 1.0, "reference_latency_ms": 1.0, "speedup_factor": 1.0, field: value}
    with pytest.raises(ValidationError, match=field):
        Performance(**fields)


def test_samples_are_optional():
    made = Performance(latency_ms=1, reference_latency_ms=0, speedup_factor=0)
    assert made.samples_ms is None
    fields = {**made.model_dump(), "samples_ms": [1.0, 1.25]}
    assert Performance(**fields).samples_ms == [1.0, 1.25]
    with pytest.raises(ValidationError, match="samples_ms"):
        Performance(**{**fields, "samples_ms": [-1.0]})


def test_hardware_is_named():
    assert Environment(hardware="cpu").libs == {}
    with pytest.raises(ValidationError, match="hardware"):
        Environment(hardware="")
    with pytest.raises(ValidationError, match="libs"):
        Environment(hardware="cpu", libs={"torch": 2})


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


@pytest.mark.parametrize("status", ["passed", "INVALID_REFERENCE", "", None])
def test_other_statuses_are_refused(make, status):
    with pytest.raises(ValidationError, match="status"):
        Evaluation(**make.evaluation_record(status=status))


def test_the_log_is_empty_by_default(make):
    record = make.evaluation_record()
    del record["log"]
    assert Evaluation(**record).log == ""


@pytest.mark.parametrize("field", ["environment", "timestamp", "status"])
def test_required_fields_of_an_evaluation(make, field):
    record = make.evaluation_record()
    del record[field]
    with pytest.raises(ValidationError, match=field):
        Evaluation(**record)


@pytest.mark.parametrize("field", ["correctness", "performance"])
def test_a_pass_has_correctness_and_performance(make, field):
    with pytest.raises(ValidationError, match=f"{field} must be given when the status is PASSED"):
        Evaluation(**make.evaluation_record(**{field: None}))


def test_wrong_numbers_have_correctness_but_no_performance(make):
    record = make.evaluation_record("INCORRECT_NUMERICAL")
    assert Evaluation(**record).performance is None
    with pytest.raises(ValidationError, match="correctness must be given"):
        Evaluation(**{**record, "correctness": None})
    performance = make.evaluation_record()["performance"]
    with pytest.raises(ValidationError, match="performance must be absent"):
        Evaluation(**{**record, "performance": performance})


@pytest.mark.parametrize("status", FAILURES)
def test_other_failures_have_neither(make, status):
    record = make.evaluation_record(status)
    assert Evaluation(**record).correctness is None
    passed = make.evaluation_record()
    for field in ("correctness", "performance"):
        with pytest.raises(
            ValidationError, match=f"{field} must be absent when the status is {status}"
        ):
            Evaluation(**{**record, field: passed[field]})


def test_provenance_is_optional_and_open(make):
    provenance = {"seed": 7, "timer": "cpu", "transient": True, "clocks_mhz": [1980]}
    evaluation = Evaluation(**make.evaluation_record(provenance=provenance))
    assert evaluation.provenance.seed == 7
    assert evaluation.provenance.transient
    dumped = evaluation.provenance.model_dump(exclude_none=True)
    assert dumped["clocks_mhz"] == [1980]
    assert Provenance().transient is False


def test_a_timestamp_is_given(make):
    with pytest.raises(ValidationError, match="timestamp"):
        Evaluation(**make.evaluation_record(timestamp=""))


# ----------------------------------------------------------------------------------------- trace


def test_a_run(make):
    trace = make.trace()
    assert not trace.is_workload_trace()
    assert not trace.is_workload()
    assert trace.is_successful()


def test_a_workload_trace(make):
    trace = make.trace(None)
    assert trace.is_workload_trace()
    assert trace.is_workload()
    assert not trace.is_successful()


@pytest.mark.parametrize("status", [*FAILURES, "INCORRECT_NUMERICAL"])
def test_a_failed_run(make, status):
    assert not make.trace(status=status).is_successful()


@pytest.mark.parametrize("field", ["solution", "evaluation"])
def test_solution_and_evaluation_come_together(make, field):
    record = {**make.trace_record(), field: None}
    with pytest.raises(ValidationError, match=f"{field} is missing: give both"):
        Trace(**record)


def test_a_trace_may_leave_both_out(make):
    record = {key: make.trace_record()[key] for key in ("definition", "workload")}
    assert Trace(**record).is_workload_trace()


def test_unknown_keys_are_ignored(make):
    record = {**make.trace_record(has_nan=False), "hardware_id": 3}
    assert "hardware_id" not in Trace(**record).model_dump()


def test_models_may_be_given_as_objects(make):
    workload = make.workload()
    trace = Trace(definition="d", workload=workload)
    assert trace.workload is workload


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


@pytest.mark.parametrize("text", ['"NaN"', "NaN", '"nan"'])
def test_nan_is_read_from_word_and_token(text):
    read = Correctness.model_validate_json(
        f'{{"max_relative_error": {text}, "max_absolute_error": 0}}'
    )
    assert math.isnan(read.max_relative_error)


@pytest.mark.parametrize("text", ['"Infinity"', "Infinity", '"inf"', "1e999"])
def test_infinity_is_read_from_word_and_token(text):
    read = Correctness.model_validate_json(
        f'{{"max_relative_error": {text}, "max_absolute_error": 0}}'
    )
    assert read.max_relative_error == math.inf


def test_words_are_read_from_python_too():
    record = {"max_relative_error": "Infinity", "max_absolute_error": 0}
    assert Correctness.model_validate(record).max_relative_error == math.inf


def test_a_scalar_may_be_infinite(make):
    workload = make.workload(inputs={"cap": {"type": "scalar", "value": -math.inf}})
    text = workload.model_dump_json()
    assert '"-Infinity"' in text
    assert Workload.model_validate_json(text) == workload
