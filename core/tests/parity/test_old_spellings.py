"""What programs for earlier releases did, as they did it."""

from __future__ import annotations

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

REFERENCE = "def run(a, s):\n    return a * s\n"


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
