"""Records of older releases: what was renamed or defaulted is read, what is missing is refused."""

from __future__ import annotations

import copy
import uuid

import pytest
from pydantic import ValidationError

from flashinfer_bench.data import (
    Correctness,
    Definition,
    Evaluation,
    Solution,
    Trace,
    Workload,
    from_json,
    to_json,
)
from flashinfer_bench.data.workload import derive_uuid

# ------------------------------------------------------------------------------------ definition


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


# -------------------------------------------------------------------------------------- solution


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


# ------------------------------------------------------------------------------ workload identity


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


# ----------------------------------------------------------------------------------------- trace


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
