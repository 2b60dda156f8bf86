"""Records of older releases: what was renamed or defaulted is read, what is missing is refused."""

from __future__ import annotations

import copy
import json
import math
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flashinfer_bench.data import (
    Correctness,
    Definition,
    DType,
    Environment,
    Evaluation,
    Performance,
    Provenance,
    Solution,
    Trace,
    Workload,
    from_json,
    to_json,
)
from flashinfer_bench.data.workload import derive_uuid


def old_definition(make):
    """One of 2025-07."""
    record = make.definition_record(constraints=None, tags=None)
    record["type"] = record.pop("op_type")
    record["axes"] = {
        "M": {"type": "var", "parent": "batch"},
        "N": {"value": 8},
        "K": {"value": 4},
        "F": {},
    }
    record["inputs"]["q"] = {"shape": ["M", 1, "16"], "dtype": "float8_e4m3"}
    return record


def test_an_old_definition(make):
    record = old_definition(make)
    before = copy.deepcopy(record)
    definition = Definition.model_validate(record)
    assert record == before
    assert definition.op_type == "gemm"
    assert definition.var_axes == ["M", "F"]
    assert definition.const_axes == {"N": 8, "K": 4}
    assert definition.inputs["q"].shape == ["M", "1", "16"]
    assert definition.inputs["q"].dtype == "float8_e4m3fn"
    assert definition.get_input_shapes({"M": 3})[2] == (3, 1, 16)
    again = from_json(to_json(definition), Definition)
    assert again == definition
    assert again.axes["M"].parent == "batch"


def test_an_old_solution(make):
    record = make.solution_record(
        spec={"language": "Triton", "entry_point": "run", "build_commands": ["make"]}
    )
    solution = Solution.model_validate(record)
    assert solution.spec.language == "triton"
    assert solution.spec.entry_point == "main.py::run"
    assert solution.get_entry_symbol() == "run"
    again = from_json(to_json(solution), Solution)
    assert again == solution
    assert again.spec.build_commands == ["make"]
    del record["spec"]["build_commands"]
    assert again.hash() == Solution.model_validate(record).hash()


@pytest.mark.parametrize(
    ("paths", "main"), [(["k.py"], "k.py"), (["util.py", "main.py"], "main.py")]
)
def test_an_old_entry_point_belongs_to_the_only_file_or_to_main_py(make, paths, main):
    sources = [{"path": path, "content": "def run(): ..."} for path in paths]
    solution = make.solution(sources=sources, spec={"entry_point": "run"})
    assert solution.spec.entry_point == f"{main}::run"


def test_an_old_entry_point_in_one_of_several_files_is_refused(make):
    sources = [{"path": path, "content": "def run(): ..."} for path in ("a.py", "b.py")]
    with pytest.raises(ValidationError, match="file::symbol"):
        make.solution(sources=sources, spec={"entry_point": "run"})


def old_workload(**changes):
    inputs = {"a": {"type": "random"}, "s": {"type": "scalar", "value": 2}}
    return {"axes": {"M": 2}, "inputs": inputs, **changes}


def test_a_workload_without_identity_gets_one_from_its_content():
    first = Workload.model_validate(old_workload()).uuid
    assert first == Workload.model_validate(old_workload()).uuid
    assert uuid.UUID(first).version == 5


def test_the_identity_never_changes_between_releases():
    derived = derive_uuid("gemm", {"M": 4}, {"A": {"type": "random"}})
    assert derived == "b3229257-ce59-5ae4-bf6e-a80d3d7cc7df"


# ------------------------------------------------------------------------------------ evaluation


def old_evaluation(make, status="PASSED", **changes):
    """One of 2025-08."""
    record = make.evaluation_record(status)
    del record["log"]
    record["environment"] = {"device": "NVIDIA B200", "libs": {"torch": "2.7.1"}}
    return {**record, "log_file": "gemm_123.log", "error": None, **changes}


def test_an_old_evaluation(make):
    record = old_evaluation(make)
    before = copy.deepcopy(record)
    evaluation = Evaluation.model_validate(record)
    assert record == before
    assert evaluation.environment.hardware == "NVIDIA B200"
    assert evaluation.log == "log file: gemm_123.log"


@pytest.mark.parametrize("where", [{"device": "B200"}, {"hardware": "B200"}])
def test_an_old_error_is_kept_and_goes_to_the_log(make, where):
    record = old_evaluation(make, "RUNTIME_ERROR", error="illegal access", environment=where)
    evaluation = Evaluation.model_validate(record)
    again = from_json(to_json(evaluation), Evaluation)
    assert again == evaluation
    assert (again.error, again.log_file) == ("illegal access", "gemm_123.log")
    assert again.log == "illegal access\nlog file: gemm_123.log"
    assert Evaluation.model_validate({**record, "log": "said"}).log == "said"
    assert Evaluation.model_validate({**record, "log_file": None}).log == "illegal access"


def test_todays_evaluations_have_no_old_fields(make):
    evaluation = Evaluation.model_validate(make.evaluation_record())
    assert evaluation.error is None
    assert not {"error", "log_file"} & evaluation.model_dump().keys()


@pytest.mark.parametrize("status", ["INCORRECT", "incorrect", "incorrect_numerical"])
def test_other_spellings_of_a_status(make, status):
    record = {**old_evaluation(make, "INCORRECT_NUMERICAL"), "status": status}
    assert Evaluation.model_validate(record).status == "INCORRECT_NUMERICAL"


@pytest.mark.parametrize("spelled", ["PASSED", "passed"])
def test_an_empty_object_is_zero_where_the_status_asks_for_it(make, spelled):
    record = {**old_evaluation(make, correctness={}), "status": spelled}
    assert Evaluation.model_validate(record).correctness == Correctness()


@pytest.mark.parametrize("nothing", [{}, None])
def test_empty_objects_in_place_of_nothing(make, nothing):
    record = old_evaluation(make, "COMPILE_ERROR", correctness=nothing, performance=nothing)
    evaluation = Evaluation.model_validate(record)
    assert evaluation.correctness is None
    assert evaluation.performance is None


@pytest.mark.parametrize(
    "nothing",
    [
        {"solution": None, "evaluation": None},
        {},
        {"solution": "", "evaluation": {}},
        {"solution": ""},
        {"evaluation": {}},
    ],
)
def test_workload_traces_of_all_releases(make, nothing):
    record = {"definition": "d", "workload": make.workload_record(), **nothing}
    trace = Trace.model_validate(record)
    assert trace.is_workload_trace()
    assert trace == Trace.model_validate({**record, "solution": None, "evaluation": None})


# ---------------------------------------------------------------------------------------- of today


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
SIZES = st.integers(0, 1 << 62)
FINITE = st.floats(0, allow_infinity=False, allow_nan=False)
ERRORS = st.floats(0) | st.just(math.nan)
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
EXTRA = st.dictionaries(TEXT, ANYTHING, max_size=2)


AXES = ["M", "N", "K", "batch size", "é"]
AXIS = st.fixed_dictionaries(
    {"type": st.just("var")}, optional={"description": st.none() | TEXT}
) | st.fixed_dictionaries({"type": st.just("const"), "value": SIZES})
TENSORS = st.fixed_dictionaries(
    {
        "shape": st.none() | st.lists(st.sampled_from([*AXES, "7"]), max_size=3),
        "dtype": st.sampled_from(list(DType)),
    },
    optional={"description": TEXT},
)
DEFINITIONS = st.builds(
    Definition,
    name=NAMES,
    op_type=NAMES,
    axes=st.fixed_dictionaries(dict.fromkeys(AXES, AXIS)),
    inputs=st.dictionaries(NAMES.map("in {}".format), TENSORS, max_size=3),
    outputs=st.dictionaries(NAMES.map("out {}".format), TENSORS, max_size=3),
    reference=st.sampled_from(["def run(x): return x", "run = print"]),
    tags=st.lists(NAMES, max_size=2),
    description=st.none() | TEXT,
    constraints=st.lists(st.sampled_from(["M == N + 1", "K % 2 == 0"]), max_size=2),
)


@given(DEFINITIONS)
def test_definition(definition):
    assert from_json(to_json(definition), Definition) == definition
    assert Definition.model_validate(definition.model_dump()) == definition
    assert Definition.model_validate(definition.model_dump(mode="json")) == definition


NUMBERS = st.booleans() | st.integers() | st.floats(allow_nan=False)
INPUTS = (
    st.just({"type": "random"})
    | st.fixed_dictionaries({"type": st.just("scalar"), "value": NUMBERS})
    | st.fixed_dictionaries({"type": st.just("safetensors"), "path": NAMES, "tensor_key": NAMES})
)
WORKLOADS = st.builds(
    Workload,
    axes=st.dictionaries(NAMES, SIZES, max_size=3),
    inputs=st.dictionaries(NAMES, INPUTS, max_size=3),
    uuid=NAMES,
)
CORRECTNESS = st.builds(
    Correctness, max_relative_error=ERRORS, max_absolute_error=ERRORS, extra=st.none() | EXTRA
)
PERFORMANCE = st.builds(
    Performance,
    latency_ms=FINITE,
    reference_latency_ms=FINITE,
    speedup_factor=FINITE,
    samples_ms=st.none() | st.lists(FINITE, max_size=4),
)
PROVENANCE = st.builds(
    Provenance,
    seed=st.none() | st.integers(0, 1 << 63),
    timer=st.none() | TEXT,
    transient=st.booleans(),
    wall_s=st.none() | FINITE,
    extra=EXTRA,
)


def evaluations(status, correctness, performance):
    libs = st.dictionaries(NAMES, TEXT, max_size=2)
    return st.builds(
        Evaluation,
        status=st.just(status),
        environment=st.builds(Environment, hardware=NAMES, libs=libs),
        timestamp=NAMES,
        log=TEXT,
        correctness=correctness,
        performance=performance,
        provenance=st.none() | PROVENANCE,
    )


EVALUATIONS = (
    evaluations("PASSED", CORRECTNESS, PERFORMANCE)
    | evaluations("INCORRECT_NUMERICAL", CORRECTNESS, st.none())
    | evaluations("TIMEOUT", st.none(), st.none())
)
TRACES = st.builds(Trace, definition=NAMES, workload=WORKLOADS) | st.builds(
    Trace, definition=NAMES, workload=WORKLOADS, solution=NAMES, evaluation=EVALUATIONS
)


def same(one, two):
    """Compare plain data, where a NaN equals a NaN."""
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, float) and isinstance(two, float) and math.isnan(one):
        return math.isnan(two)
    return one == two and type(one) is type(two)


@given(TRACES)
def test_trace(trace):
    plain = trace.model_dump()
    text = to_json(trace, indent=None)
    assert "\n" not in text
    json.loads(text, parse_constant=lambda token: 1 / 0)
    assert same(from_json(text, Trace).model_dump(), plain)
    assert same(from_json(to_json(trace), Trace).model_dump(), plain)
    assert same(Trace.model_validate(trace.model_dump(mode="json")).model_dump(), plain)
    assert same(Trace.model_validate(plain).model_dump(), plain)
