"""Records of older releases: what was renamed or defaulted is read, what is missing is refused."""

from __future__ import annotations

import copy
import math
import uuid

import pytest
from pydantic import ValidationError

from flashinfer_bench.data import Definition, Evaluation, Solution, Trace, Workload, legacy

UPGRADES = [
    legacy.upgrade_axis,
    legacy.upgrade_tensor,
    legacy.upgrade_definition,
    legacy.upgrade_build_spec,
    legacy.upgrade_solution,
    legacy.upgrade_input,
    legacy.upgrade_correctness,
    legacy.upgrade_evaluation,
    legacy.upgrade_trace,
    lambda data: legacy.upgrade_workload(data, definition="d"),
]


@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("data", [None, 3, "text", [], [1], True, {}, {"other": {}}, {"type": []}])
def test_what_is_no_such_record_is_left_alone(upgrade, data):
    before = copy.deepcopy(data)
    upgrade(data)
    assert data == before


def test_records_of_today_are_not_copied(make):
    for upgrade, record in (
        (legacy.upgrade_definition, make.definition_record()),
        (legacy.upgrade_solution, make.solution_record()),
        (legacy.upgrade_evaluation, make.evaluation_record()),
        (legacy.upgrade_trace, make.trace_record()),
        (legacy.upgrade_trace, make.trace_record(None)),
    ):
        assert upgrade(record) is record


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


def test_a_definition_without_any_op_type_is_refused_by_itself(make):
    record = make.definition_record()
    del record["op_type"]
    with pytest.raises(ValidationError, match="op_type"):
        Definition.model_validate(record)


@pytest.mark.parametrize(
    ("tensor", "field"),
    [
        ({"shape": ["M"]}, "dtype"),
        ({"shape": ["M"], "dtype": None}, "dtype"),
        ({"dtype": "int8"}, "shape"),
    ],
)
def test_missing_content_of_a_tensor_is_refused(make, tensor, field):
    with pytest.raises(ValidationError, match=rf"inputs\.x\.{field}"):
        make.definition(inputs={"x": tensor})


def test_true_is_no_size_in_a_shape(make):
    with pytest.raises(ValidationError, match="shape"):
        make.definition(inputs={"x": {"shape": [True], "dtype": "int8"}})


# -------------------------------------------------------------------------------------- solution


def test_an_old_solution(make):
    record = make.solution_record(
        spec={"language": "Triton", "entry_point": "run", "build_steps": []}
    )
    solution = Solution.model_validate(record)
    assert solution.spec.language == "triton"
    assert solution.spec.entry_point == "main.py::run"
    assert solution.get_entry_symbol() == "run"


def test_build_commands_are_ignored(make):
    assert make.solution(spec={"build_commands": ["make"]}) == make.solution()


def test_an_old_entry_point_belongs_to_the_only_file(make):
    sources = [{"path": "kernel.py", "content": "def run(): ..."}]
    solution = make.solution(sources=sources, spec={"entry_point": "run"})
    assert solution.spec.entry_point == "kernel.py::run"


def test_an_old_entry_point_belongs_to_main_py(make):
    sources = [{"path": path, "content": "def run(): ..."} for path in ("util.py", "main.py")]
    solution = make.solution(sources=sources, spec={"entry_point": "run"})
    assert solution.spec.entry_point == "main.py::run"


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


@pytest.mark.parametrize("nothing", [None, ""])
def test_an_empty_identity_is_none(nothing):
    derived = Workload.model_validate(old_workload()).uuid
    assert Workload.model_validate(old_workload(uuid=nothing)).uuid == derived


def test_the_order_of_keys_does_not_matter():
    backward = {"inputs": dict(reversed(old_workload()["inputs"].items())), "axes": {"M": 2}}
    assert Workload.model_validate(backward).uuid == Workload.model_validate(old_workload()).uuid


def test_other_content_gives_another_identity():
    identities = {
        Workload.model_validate(record).uuid
        for record in (
            old_workload(),
            old_workload(axes={"M": 3}),
            old_workload(axes={"N": 2}),
            old_workload(inputs={"a": {"type": "random"}}),
        )
    }
    assert len(identities) == 4


def test_the_identity_depends_on_the_definition():
    record = {"workload": old_workload(), "solution": "", "evaluation": {}}
    one = Trace.model_validate({"definition": "one", **record})
    two = Trace.model_validate({"definition": "two", **record})
    again = Trace.model_validate({"definition": "one", **record})
    assert one.workload.uuid == again.workload.uuid != two.workload.uuid


def test_the_identity_never_changes_between_releases():
    derived = legacy.derive_uuid("gemm", {"M": 4}, {"A": {"type": "random"}})
    assert derived == "b3229257-ce59-5ae4-bf6e-a80d3d7cc7df"


def test_a_given_identity_is_kept():
    assert Workload.model_validate(old_workload(uuid="mine")).uuid == "mine"


def test_a_workload_without_inputs_is_refused_for_that():
    with pytest.raises(ValidationError, match="inputs"):
        Workload.model_validate({"axes": {"M": 2}})


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


def test_an_old_error_goes_to_the_log(make):
    record = old_evaluation(make, "RUNTIME_ERROR", error="illegal access")
    assert Evaluation.model_validate(record).log == "illegal access\nlog file: gemm_123.log"
    record = old_evaluation(make, "RUNTIME_ERROR", error="illegal access", log_file=None)
    assert Evaluation.model_validate(record).log == "illegal access"


def test_a_log_wins_over_its_old_names(make):
    record = {**make.evaluation_record(), "log_file": "x.log", "error": "no"}
    assert Evaluation.model_validate(record).log == "fine"


def test_a_null_log_is_empty(make):
    assert Evaluation.model_validate(make.evaluation_record(log=None)).log == ""


def test_the_old_status_of_wrong_numbers(make):
    record = {**old_evaluation(make, "INCORRECT_NUMERICAL"), "status": "INCORRECT"}
    assert Evaluation.model_validate(record).status == "INCORRECT_NUMERICAL"


@pytest.mark.parametrize("nothing", [{}, None])
def test_empty_objects_in_place_of_nothing(make, nothing):
    record = old_evaluation(make, "COMPILE_ERROR", correctness=nothing, performance=nothing)
    evaluation = Evaluation.model_validate(record)
    assert evaluation.correctness is None
    assert evaluation.performance is None


def test_null_libs_are_none(make):
    record = make.evaluation_record(environment={"hardware": "cpu", "libs": None})
    assert Evaluation.model_validate(record).environment.libs == {}


def test_words_for_numbers_deep_inside_a_trace(make):
    record = make.trace_record(status="INCORRECT_NUMERICAL", error=0.5)
    record["evaluation"]["correctness"]["max_absolute_error"] = "NaN"
    trace = Trace.model_validate(record)
    assert math.isnan(trace.evaluation.correctness.max_absolute_error)


def test_unknown_statuses_are_refused(make):
    with pytest.raises(ValidationError, match="INVALID_REFERENCE"):
        Evaluation.model_validate(make.evaluation_record(status="INVALID_REFERENCE"))


def test_an_evaluation_without_environment_is_refused(make):
    record = old_evaluation(make)
    del record["environment"]
    with pytest.raises(ValidationError, match="environment"):
        Evaluation.model_validate(record)


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


def test_an_old_trace(make):
    record = {
        "definition": "gemm",
        "solution": "gemm_torch",
        "workload": old_workload(),
        "evaluation": old_evaluation(make),
    }
    trace = Trace.model_validate(record)
    assert trace.is_successful()
    assert uuid.UUID(trace.workload.uuid).version == 5
    assert Trace.model_validate_json(trace.model_dump_json()) == trace


def test_the_json_way_reads_old_records_too(make):
    import json

    record = {"definition": "d", "workload": old_workload(), "solution": "", "evaluation": {}}
    assert Trace.model_validate_json(json.dumps(record)) == Trace.model_validate(record)


def test_a_bare_workload_with_shapes_is_no_trace():
    record = {"axes": {"M": 16}, "input_shapes": {"x": {"shape": [16], "dtype": "torch.bfloat16"}}}
    with pytest.raises(ValidationError, match="definition"):
        Trace.model_validate(record)
