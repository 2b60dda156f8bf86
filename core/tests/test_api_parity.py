"""The public names that programs written for earlier releases import, with their parameters.

This is a snapshot. A name that is missing here may go; one that is here must stay.
"""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

from flashinfer_bench import data, errors
from flashinfer_bench.data import (
    BuildSpec,
    Correctness,
    Definition,
    Environment,
    Evaluation,
    EvaluationStatus,
    Performance,
    RandomInput,
    Solution,
    SourceFile,
    Trace,
    TraceSet,
    Workload,
)

MODULES = {
    "flashinfer_bench": (
        "AxisConst AxisVar AxisSpec TensorSpec DType Definition SourceFile BuildSpec Solution "
        "SupportedLanguages SupportedBindings RandomInput ScalarInput SafetensorsInput InputSpec "
        "Workload Correctness Performance Environment EvaluationStatus Evaluation Trace TraceSet "
        "save_json_file load_json_file save_jsonl_file "
        "load_jsonl_file append_jsonl_file Builder BuilderRegistry Runnable BuildError __version__ "
        "apply enable_apply disable_apply ApplyConfig ApplyConfigRegistry ApplyRuntime"
    ),
    "flashinfer_bench.data": (
        "AxisConst AxisVar AxisSpec TensorSpec DType Definition SourceFile BuildSpec Solution "
        "SupportedLanguages SupportedBindings RandomInput ScalarInput SafetensorsInput InputSpec "
        "InputDesc Workload Correctness Performance Environment EvaluationStatus Evaluation Trace "
        "TraceSet save_json_file load_json_file save_jsonl_file "
        "load_jsonl_file append_jsonl_file append_jsonl_line append_jsonl_lines to_json from_json"
    ),
    "flashinfer_bench.data.definition": "AxisConst AxisVar TensorSpec Definition",
    "flashinfer_bench.data.json_codec": (
        "dataclass_to_dict dict_to_dataclass to_json from_json save_json_file load_json_file "
        "save_jsonl_file load_jsonl_file append_jsonl_line append_jsonl_lines"
    ),
    "flashinfer_bench.data.solution": "SupportedLanguages SourceFile BuildSpec Solution",
    "flashinfer_bench.data.trace": (
        "RandomInput ScalarInput SafetensorsInput ScalarValue InputDesc Workload Correctness "
        "Performance Environment EvaluationStatus Evaluation Trace"
    ),
    "flashinfer_bench.data.traceset": "TraceSet",
    "flashinfer_bench.compile": (
        "Builder BuildError BuilderRegistry Runnable RunnableMetadata get_registry"
    ),
    "flashinfer_bench.compile.builder": "Builder BuildError",
    "flashinfer_bench.compile.registry": "BuilderRegistry get_registry",
    "flashinfer_bench.compile.runnable": "Runnable",
    "flashinfer_bench.apply": (
        "apply enable_apply disable_apply get_runtime set_runtime ApplyConfig ApplyConfigRegistry "
        "get_default_registry ApplyRuntime ApplyKey ApplyKeyBuilder AxesOnlyKeyBuilder "
        "GEMMKeyBuilder GQAKeyBuilder MLAKeyBuilder ApplyKeyFactory ApplyTable"
    ),
    "flashinfer_bench.apply.api": "apply enable_apply disable_apply get_runtime set_runtime",
    "flashinfer_bench.apply.config": "ApplyConfig ApplyConfigRegistry get_default_registry",
    "flashinfer_bench.apply.hook": "set_apply_hook get_apply_hook",
    "flashinfer_bench.apply.key": (
        "ApplyKey ApplyKeyBuilder AxesOnlyKeyBuilder GEMMKeyBuilder GQAKeyBuilder MLAKeyBuilder "
        "ApplyKeyFactory"
    ),
    "flashinfer_bench.apply.runtime": "ApplyRuntime get_runtime set_runtime",
    "flashinfer_bench.apply.table": "ApplyTable",
    "flashinfer_bench.utils": (
        "env_snapshot hardware_from_device list_cuda_devices dtype_str_to_torch_dtype "
        "torch_dtype_from_def dtype_str_to_python_dtype is_dtype_integer redirect_stdio_to_file"
    ),
}

# What is behind a name with a star is given by keyword only; "=" marks what may be left out.
FUNCTIONS = {
    "data:save_json_file": "obj path",
    "data:load_json_file": "cls path",
    "data:save_jsonl_file": "objs path",
    "data:load_jsonl_file": "cls path",
    "data:append_jsonl_file": "objs path",
    "data:append_jsonl_line": "path obj",
    "data:append_jsonl_lines": "path objs",
    "data:to_json": "obj indent=",
    "data:from_json": "text cls",
    "data:Definition.get_axes_values": "input_shapes",
    "data:Definition.get_axes_values_from_inputs": "inputs",
    "data:Definition.get_input_shapes": "var_axes_values=",
    "data:Definition.get_output_shapes": "var_axes_values=",
    "data:Definition.merge_kwargs_to_args": "args kwargs",
    "data:Definition.get_const_axes": "",
    "data:Definition.get_var_axes": "",
    "data:Definition.get_var_axes_bindings": "",
    "data:Solution.get_entry_path": "",
    "data:Solution.get_entry_symbol": "",
    "data:Solution.get_entry_source": "",
    "data:Solution.hash": "",
    "data:Solution.with_unique_name": "",
    "data:Solution.requires_build": "",
    "data:Solution.to_json": "",
    "data:Trace.is_workload_trace": "",
    "data:Trace.is_workload": "",
    "data:Trace.is_successful": "",
    "data:TraceSet.from_path": "path= *on_error=",
    "data:TraceSet.to_dict": "",
    "data:TraceSet.get_solution": "name",
    "data:TraceSet.filter_traces": "def_name atol= rtol=",
    "data:TraceSet.get_best_trace": "def_name axes= max_abs_error= max_rel_error=",
    "data:TraceSet.summary": "baseline_author= op_type= definition_name=",
    "data:TraceSet.get_solution_score": "solution_name baseline_author=",
    "data:TraceSet.get_author_score": "author baseline_author= op_type= definition_name=",
    "data:TraceSet.rank_authors": "baseline_author= op_type= definition_name=",
    "data:TraceSet.backup_traces": "",
    "data:TraceSet.add_traces": "traces",
    "data:TraceSet.add_workload_traces": "traces",
    "data:TraceSet.add_workload_blob_tensor": "def_name workload_uuid tensors",
    "data:TraceSet.get_workload_blob_tensor": "path_str",
    "compile:BuilderRegistry": "builders *select=",
    "compile:BuilderRegistry.get_instance": "",
    "compile:BuilderRegistry.build": "definition solution",
    "compile:BuilderRegistry.build_reference": "definition",
    "compile:BuilderRegistry.cleanup": "",
    "compile:BuilderRegistry.clear": "",
    "compile:get_registry": "",
    "compile:Builder": "package_prefix build_dir_name",
    "compile:Builder.is_available": "",
    "compile:Builder.can_build": "solution",
    "compile:Builder.build": "definition solution",
    "compile:Runnable": "callable metadata cleaner= *explain=",
    "compile:Runnable.__call__": "args kwargs",
    "compile:Runnable.call_kwargs": "kwargs",
    "compile:Runnable.call_destination_passing": "args",
    "compile:Runnable.call_value_returning": "args",
    "compile:Runnable.cleanup": "",
    "compile:Runnable.close": "",
    "apply:disable_apply": "",
    "apply:get_default_registry": "",
    "apply:get_runtime": "",
    "apply:set_runtime": "rt",
    "apply:ApplyConfigRegistry": "default= per_definition=",
    "apply:ApplyConfigRegistry.get": "name",
    "apply:ApplyConfigRegistry.register": "name config override=",
    "apply:ApplyConfigRegistry.register_many": "configs override=",
    "apply:ApplyRuntime.start": "",
    "apply:ApplyRuntime.stop": "",
    "apply:ApplyRuntime.get_instance": "",
    "apply:ApplyKey.from_encoded": "s",
    "apply:ApplyKeyBuilder": "definition",
    "apply:ApplyKeyFactory.register": "type_name builder_cls",
    "apply:ApplyKeyFactory.for_type": "type_name",
    "apply:ApplyKeyFactory.specialize": "defn",
    "apply:ApplyTable.match_solution": "def_name key",
    "apply.hook:get_apply_hook": "",
    "utils:env_snapshot": "device",
    "utils:hardware_from_device": "device",
    "utils:list_cuda_devices": "",
    "utils:dtype_str_to_torch_dtype": "dtype_str",
    "utils:torch_dtype_from_def": "dtype_str",
    "utils:dtype_str_to_python_dtype": "dtype_str",
    "utils:is_dtype_integer": "dtype",
    "utils:redirect_stdio_to_file": "log_path",
}

# The first parameters; further ones must be optional.
BEGINNINGS = {
    "apply:apply": "name_or_resolver= args= kwargs= fallback=",
    "apply:enable_apply": "dataset_path= apply_config=",
    "apply:ApplyConfig": "max_atol= max_rtol= aot_ratio= on_miss_policy=",
    "apply:ApplyKey": "axes feats=",
    "apply:ApplyRuntime": "trace_set= config=",
    "apply:ApplyRuntime.dispatch": "name args= kwargs= fallback=",
    "apply:ApplyRuntime.rebuild": "trace_set= config=",
    "apply:ApplyKeyBuilder.build_from_args": "args",
    "apply:ApplyKeyBuilder.build_from_runtime": "runtime_kwargs",
    "apply:ApplyKeyBuilder.build_from_workload": "workload",
    "apply:ApplyKeyBuilder.features": "args",
    "apply:ApplyTable.load_or_build": "source config=",
}

DEFAULTS = {
    "data:TraceSet.filter_traces": {"atol": 1e-2, "rtol": 1e-2},
    "data:TraceSet.get_best_trace": {"axes": None, "max_abs_error": 1e-2, "max_rel_error": 1e-2},
    "data:TraceSet.summary": {"baseline_author": "baseline", "op_type": None},
    "data:TraceSet.get_solution_score": {"baseline_author": "baseline"},
    "data:TraceSet.get_author_score": {"baseline_author": "baseline", "definition_name": None},
    "data:TraceSet.rank_authors": {"baseline_author": "baseline", "definition_name": None},
    "apply:enable_apply": {"dataset_path": None, "apply_config": None},
    "apply:ApplyConfig": {"aot_ratio": 1.0, "on_miss_policy": "fallback_only"},
    "apply:ApplyConfigRegistry.register_many": {"override": False},
}

# Fields in their order; "=" marks those that have a default.
FIELDS = {
    "data:AxisConst": "type= value description=",
    "data:AxisVar": "type= description=",
    "data:TensorSpec": "shape dtype description=",
    "data:Definition": (
        "name op_type axes inputs outputs reference tags= description= constraints="
    ),
    "data:SourceFile": "path content",
    "data:BuildSpec": (
        "language target_hardware entry_point dependencies= destination_passing_style= binding="
    ),
    "data:Solution": "name definition author spec sources description=",
    "data:RandomInput": "type=",
    "data:ScalarInput": "type= value",
    "data:SafetensorsInput": "type= path tensor_key",
    "data:Workload": "axes inputs uuid",
    "data:Correctness": "max_relative_error= max_absolute_error= extra=",
    "data:Performance": "latency_ms= reference_latency_ms= speedup_factor=",
    "data:Environment": "hardware libs=",
    "data:Evaluation": "status environment timestamp log= correctness= performance=",
    "data:Trace": "definition workload solution= evaluation=",
    "compile:RunnableMetadata": (
        "build_type definition_name solution_name destination_passing_style= definition= misc="
    ),
}

PROPERTIES = {
    Definition: "const_axes var_axes var_axes_bindings torch_input_dtypes torch_output_dtypes",
    TraceSet: (
        "definitions_path solutions_path workloads_path traces_path blob_path blob_workloads_path "
        "workloads traces workload"
    ),
}

REFERENCE = "def run(a, s):\n    return a * s\n"


def resolve(path):
    module, _, attributes = path.partition(":")
    found = import_module(f"flashinfer_bench.{module}")
    for name in attributes.split("."):
        found = getattr(found, name)
    return found


def spelled(function):
    """Return the parameters as the table above spells them."""
    words = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        star = "*" if parameter.kind is parameter.KEYWORD_ONLY else ""
        optional = "" if parameter.default is parameter.empty else "="
        words.append(f"{star}{parameter.name}{optional}")
    return " ".join(words)


@pytest.mark.parametrize("module", MODULES)
def test_names(module):
    found = import_module(module)
    missing = [name for name in MODULES[module].split() if not hasattr(found, name)]
    assert not missing


@pytest.mark.parametrize("path", FUNCTIONS)
def test_parameters(path):
    assert spelled(resolve(path)) == FUNCTIONS[path]


@pytest.mark.parametrize("path", BEGINNINGS)
def test_the_first_parameters(path):
    words, wanted = spelled(resolve(path)).split(), BEGINNINGS[path].split()
    assert words[: len(wanted)] == wanted
    others = [word for word in words[len(wanted) :] if word != "old"]  # ``**old``
    assert all(word.endswith("=") for word in others), "others must be optional"


@pytest.mark.parametrize("path", DEFAULTS)
def test_defaults(path):
    parameters = inspect.signature(resolve(path)).parameters
    assert {name: parameters[name].default for name in DEFAULTS[path]} == DEFAULTS[path]


@pytest.mark.parametrize("path", FIELDS)
def test_fields(path):
    fields = resolve(path).model_fields
    words = [name if field.is_required() else f"{name}=" for name, field in fields.items()]
    wanted = FIELDS[path].split()
    assert words[: len(wanted)] == wanted
    assert all(word.endswith("=") for word in words[len(wanted) :]), "new fields must be optional"


@pytest.mark.parametrize("owner", PROPERTIES)
def test_properties(owner):
    for name in PROPERTIES[owner].split():
        assert isinstance(inspect.getattr_static(owner, name), property), name


def test_statuses():
    names = "PASSED INCORRECT_SHAPE INCORRECT_NUMERICAL INCORRECT_DTYPE RUNTIME_ERROR COMPILE_ERROR"
    assert [status.name for status in EvaluationStatus] == [*names.split(), "TIMEOUT"]
    assert all(status == status.name for status in EvaluationStatus)


def test_dtypes():
    names = "float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float4_e2m1 int64 int32 int16 int8"
    assert [dtype.value for dtype in data.DType] == [*names.split(), "bool"]


def test_known_names():
    assert data.SupportedLanguages.PYTHON == "python"
    assert data.SupportedLanguages.TRITON.value == "triton"
    assert data.SupportedLanguages.CUDA == "cuda"
    assert [binding.value for binding in data.SupportedBindings] == ["tvm-ffi", "torch"]


@pytest.mark.parametrize(
    ("ours", "builtin"),
    [
        (errors.DuplicateNameError, ValueError),
        (errors.DataError, ValueError),
        (errors.ConfigError, ValueError),
        (errors.DatasetNotFoundError, FileNotFoundError),
        (errors.UnknownNameError, KeyError),
        (errors.StorageError, OSError),
        (errors.BuildError, RuntimeError),
        (errors.SelectionError, LookupError),
        (errors.TimingError, RuntimeError),
        (errors.ProtocolError, RuntimeError),
    ],
)
def test_errors_are_what_callers_catch(ours, builtin):
    assert issubclass(ours, builtin)


# ---------------------------------------------------------------------------------- old spellings


def definition(**fields):
    tensor = {"shape": ["M", "K"], "dtype": "float32"}
    record = {
        "name": "d",
        "op_type": "scale",
        "axes": {"M": {"type": "var"}, "K": {"type": "const", "value": 4}},
        "inputs": {"a": tensor, "s": {"shape": None, "dtype": "float32"}},
        "outputs": {"b": tensor},
        "reference": REFERENCE,
    }
    return Definition(**{**record, **fields})


def workload_trace():
    inputs = {"a": RandomInput(), "s": data.ScalarInput(value=2.0)}
    return Trace(definition="d", workload=Workload(axes={"M": 2}, inputs=inputs, uuid="w"))


def run_trace(solution="one", latency_ms=1.0, author_speedup=2.0):
    evaluation = Evaluation(
        status=EvaluationStatus.PASSED,
        environment=Environment(hardware="cpu", libs={}),
        timestamp="2025-10-01T00:00:00",
        correctness=Correctness(max_relative_error=0.0, max_absolute_error=0.0),
        performance=Performance(
            latency_ms=latency_ms, reference_latency_ms=2.0, speedup_factor=author_speedup
        ),
    )
    return Trace(
        definition="d",
        workload=workload_trace().workload,
        solution=solution,
        evaluation=evaluation,
    )


def solution(name="one", author="me"):
    spec = BuildSpec(language="Python", target_hardware=["cpu"], entry_point="main.py::run")
    sources = [SourceFile(path="main.py", content=REFERENCE)]
    return Solution(name=name, definition="d", author=author, spec=spec, sources=sources)


def test_the_old_name_of_the_op_type():
    fields = definition().model_dump()
    fields["type"] = fields.pop("op_type")
    assert Definition(**fields).op_type == "scale"


def test_the_old_methods_of_definitions():
    one = definition()
    assert one.get_const_axes() == one.const_axes == {"K": 4}
    assert one.get_var_axes() == one.var_axes == ["M"]
    assert one.get_var_axes_bindings() == one.var_axes_bindings == {"M": ("a", 0)}
    assert one.get_input_shapes({"M": 2}) == [(2, 4), None]


def test_both_orders_of_arguments(tmp_path):
    data.save_json_file(definition(), tmp_path / "d.json")
    loaded = data.load_json_file(Definition, tmp_path / "d.json")
    assert data.load_json_file(str(tmp_path / "d.json"), Definition) == loaded == definition()
    data.save_jsonl_file([workload_trace()], tmp_path / "t.jsonl")
    data.append_jsonl_lines(tmp_path / "t.jsonl", [workload_trace()])
    data.append_jsonl_line(tmp_path / "t.jsonl", workload_trace())
    assert data.load_jsonl_file(tmp_path / "t.jsonl", Trace) == [workload_trace()] * 3
    assert data.load_jsonl_file(Trace, tmp_path / "t.jsonl") == [workload_trace()] * 3


def test_text_and_plain_data():
    from flashinfer_bench.data.json_codec import dataclass_to_dict, dict_to_dataclass

    assert data.from_json(data.to_json(solution()), Solution) == solution()
    assert data.from_json(solution().to_json(), Solution) == solution()
    assert dict_to_dataclass(dataclass_to_dict(definition()), Definition) == definition()
    with pytest.raises(errors.DataError, match="sources"):
        dict_to_dataclass({**dataclass_to_dict(solution()), "sources": []}, Solution)


def test_the_old_field_of_trace_sets():
    trace_set = TraceSet(workload={"d": [workload_trace()]})
    assert trace_set.workload is trace_set.workloads
    assert trace_set.workload["d"][0].is_workload()


def test_a_trace_set_made_by_hand_answers_every_question():
    mine, theirs = solution(), solution("base", "baseline")
    traces = [run_trace("one", 1.0, 2.0), run_trace("base", 2.0, 1.0)]
    trace_set = TraceSet(None, {"d": definition()}, {"d": [mine, theirs]}, {}, {"d": traces})
    assert trace_set.get_solution("one") is mine
    assert trace_set.get_solution("none") is None
    assert trace_set.filter_traces("d") == traces
    assert trace_set.get_best_trace("d", axes={"M": 2}).solution == "one"
    assert trace_set.get_best_trace("d", axes={"M": 3}) is None
    assert set(trace_set.to_dict()) == {"definitions", "solutions", "workloads", "traces"}


def test_the_old_ways_to_the_registry(monkeypatch):
    from flashinfer_bench.compile import registry

    monkeypatch.setattr(registry, "_default", None)
    first = registry.get_registry()
    assert registry.BuilderRegistry.get_instance() is first
    first.clear()
    with pytest.raises(ValueError, match="at least one builder"):
        registry.BuilderRegistry([])


def test_the_old_end_of_a_runnable():
    from flashinfer_bench.compile import Runnable, RunnableMetadata

    calls = []
    metadata = RunnableMetadata(build_type="x", definition_name="d", solution_name="s")
    runnable = Runnable(lambda: (5,), metadata, lambda: calls.append(1))
    assert runnable() == 5
    runnable.close()
    runnable.cleanup()
    assert calls == [1]


def test_the_concrete_builders_have_their_names():
    from flashinfer_bench.compile import builders

    wanted = {"PythonBuilder", "TritonBuilder", "TileLangBuilder", "TVMFFIBuilder", "TorchBuilder"}
    assert set(dir(builders)) >= wanted
