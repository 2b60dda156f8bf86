"""What programs for earlier releases did, with its classes, registries, settings and files."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from flashinfer_bench import data, errors
from flashinfer_bench.bench import BenchmarkConfig, PersistentRunner
from flashinfer_bench.compile import Builder, BuilderRegistry, Runnable, RunnableMetadata
from flashinfer_bench.data import (
    AxisVar,
    BuildSpec,
    Correctness,
    Definition,
    Environment,
    Evaluation,
    Solution,
    Trace,
    TraceSet,
    Workload,
)
from flashinfer_bench.tracing import (
    FilterPolicy,
    InputDumpPolicy,
    PolicyRegistry,
    TracingConfig,
    TracingRuntime,
    enable_tracing,
)

DEFINITION = Definition(
    name="double",
    op_type="op",
    axes={"n": {"type": "var"}, "k": {"type": "const", "value": 2}},
    inputs={"x": {"shape": ["n"], "dtype": "float32"}, "i": {"shape": ["n"], "dtype": "int32"}},
    outputs={"y": {"shape": ["n"], "dtype": "float32"}},
    reference="def run(x, i):\n    return x * 2\n",
)
SOLUTION = Solution(
    name="plain",
    definition="double",
    author="me",
    spec={"language": "python", "target_hardware": ["cpu"], "entry_point": "m.py::run"},
    sources=[{"path": "m.py", "content": "def run(x, i):\n    return x * 2\n"}],
)
INPUTS = {"x": {"type": "random"}, "i": {"type": "random"}}
WORKLOAD = Workload(axes={"n": 3}, inputs=INPUTS, uuid="w")
METADATA = RunnableMetadata(
    build_type="t", definition_name="double", solution_name="plain", definition=DEFINITION
)


# ------------------------------------------------------------------------------- attributes


def test_attributes_by_old_names() -> None:
    assert DEFINITION.type == "op"
    assert DEFINITION.get_const_axes() == DEFINITION.const_axes == {"k": 2}
    assert DEFINITION.get_var_axes() == DEFINITION.var_axes == ["n"]
    assert DEFINITION.get_var_axes_bindings() == DEFINITION.var_axes_bindings == {"n": ("x", 0)}
    fields = DEFINITION.model_dump()
    fields["type"] = fields.pop("op_type")
    assert Definition(**fields).op_type == "op"
    assert Trace(definition="double", workload=WORKLOAD).is_workload()
    assert AxisVar().parent is None
    assert SOLUTION.spec.build_commands == []
    assert AxisVar(parent="m").parent == "m"
    spec = SOLUTION.spec.model_dump()
    assert BuildSpec(**spec, build_commands=["make"]).build_commands == ["make"]
    trace_set = TraceSet(workload={"double": []})
    assert trace_set.workload is trace_set.workloads
    with pytest.raises(TypeError, match="'workloads' and 'workload'"):
        TraceSet(workloads={}, workload={})


def test_texts_of_old_evaluations() -> None:
    common = {"environment": Environment(hardware="cpu"), "timestamp": "2025-09-01"}
    new = Evaluation(status="RUNTIME_ERROR", log="what was said", **common)
    assert (new.log_file, new.error) == ("what was said", None)
    old = Evaluation(status="RUNTIME_ERROR", log_file="/tmp/a.log", error="broke", **common)
    assert (old.log_file, old.error) == ("/tmp/a.log", "broke")
    assert Correctness().max_relative_error == 0.0


@pytest.mark.parametrize("name", ["nothing_like_it", "_private"])
def test_what_there_never_was(name: str) -> None:
    for owner in (DEFINITION, TraceSet(), Runnable(len, METADATA), TracingConfig()):
        with pytest.raises(AttributeError, match=f"{type(owner).__name__}.*{name}"):
            getattr(owner, name)


# --------------------------------------------------------------------------- names and files


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            data.EvaluationStatus,
            "PASSED INCORRECT_SHAPE INCORRECT_NUMERICAL INCORRECT_DTYPE RUNTIME_ERROR "
            "COMPILE_ERROR TIMEOUT",
        ),
        (
            data.DType,
            "float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float4_e2m1 int64 int32 int16 int8 "
            "bool",
        ),
        (data.SupportedBindings, "tvm-ffi torch"),
    ],
)
def test_values_of_enumerations(kind: type, names: str) -> None:
    assert [each.value for each in kind] == names.split()
    assert list(kind) == names.split()


def test_known_languages() -> None:
    assert data.SupportedLanguages.PYTHON == "python"
    assert data.SupportedLanguages.TRITON.value == "triton"
    assert data.SupportedLanguages.CUDA == "cuda"
    assert data.EvaluationStatus.PASSED.name == "PASSED"


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
def test_errors_are_what_callers_catch(ours: type, builtin: type) -> None:
    assert issubclass(ours, builtin)


def test_both_orders_of_arguments(tmp_path) -> None:
    data.save_json_file(DEFINITION, tmp_path / "d.json")
    assert data.load_json_file(Definition, tmp_path / "d.json") == DEFINITION
    assert data.load_json_file(str(tmp_path / "d.json"), Definition) == DEFINITION
    trace = Trace(definition="double", workload=WORKLOAD)
    data.save_jsonl_file([trace], tmp_path / "t.jsonl")
    data.append_jsonl_lines(tmp_path / "t.jsonl", [trace])
    data.append_jsonl_line(tmp_path / "t.jsonl", trace)
    assert data.load_jsonl_file(tmp_path / "t.jsonl", Trace) == [trace] * 3
    assert data.load_jsonl_file(Trace, tmp_path / "t.jsonl") == [trace] * 3


def test_text_and_plain_data() -> None:
    from flashinfer_bench.data.json_codec import dataclass_to_dict, dict_to_dataclass

    assert data.from_json(data.to_json(SOLUTION), Solution) == SOLUTION
    assert data.from_json(SOLUTION.to_json(), Solution) == SOLUTION
    assert dict_to_dataclass(dataclass_to_dict(DEFINITION), Definition) == DEFINITION
    with pytest.raises(errors.DataError, match="sources"):
        dict_to_dataclass({**dataclass_to_dict(SOLUTION), "sources": []}, Solution)


def test_a_trace_set_made_by_hand_answers_every_question() -> None:
    def run_trace(solution: str, latency_ms: float) -> Trace:
        evaluation = Evaluation(
            status="PASSED",
            environment=Environment(hardware="cpu"),
            timestamp="2025-10-01",
            correctness=Correctness(),
            performance=data.Performance(
                latency_ms=latency_ms,
                reference_latency_ms=2.0,
                speedup_factor=2.0 / latency_ms,
            ),
        )
        return Trace(
            definition="double", workload=WORKLOAD, solution=solution, evaluation=evaluation
        )

    base = SOLUTION.model_copy(update={"name": "base", "author": "baseline"})
    traces = [run_trace("plain", 1.0), run_trace("base", 2.0)]
    solutions = {"double": [SOLUTION, base]}
    trace_set = TraceSet(None, {"double": DEFINITION}, solutions, {}, {"double": traces})
    assert trace_set.get_solution("plain") is SOLUTION
    assert trace_set.get_solution("none") is None
    assert trace_set.filter_traces("double") == traces
    assert trace_set.get_best_trace("double", axes={"n": 3}).solution == "plain"
    assert trace_set.get_best_trace("double", axes={"n": 4}) is None
    assert set(trace_set.to_dict()) == {"definitions", "solutions", "workloads", "traces"}


# --------------------------------------------------------------------- runnables, builders


def test_the_old_ways_to_the_registry(monkeypatch) -> None:
    from flashinfer_bench.compile import registry

    monkeypatch.setattr(registry, "_default", None)
    first = registry.get_registry()
    assert BuilderRegistry.get_instance() is first
    first.clear()
    with pytest.raises(ValueError, match="at least one builder"):
        BuilderRegistry([])


def test_a_runnable_as_it_was_made() -> None:
    closed = []
    for made in (
        Runnable(len, lambda: closed.append(1), {"language": "python"}),
        Runnable(fn=len, closer=lambda: closed.append(2), meta={"language": "python"}),
        Runnable(len, None, None),
    ):
        assert made([1, 2]) == 2
        assert made.meta in ({"language": "python"}, {})
        made.close()
        made.cleanup()
        assert made.closed
    assert closed == [1, 2]
    with pytest.raises(TypeError, match=r"metadata=3 is not allowed; give a RunnableMetadata"):
        Runnable(len, 3)


def test_outputs_by_name() -> None:
    def run(x, i, y):
        y.copy_(x * 2)

    x, i, y = torch.ones(3), torch.zeros(3, dtype=torch.int32), torch.empty(3)
    Runnable(run, METADATA).call_dest(x=x, y=y, i=i)
    assert y.tolist() == [2.0, 2.0, 2.0]


class OldBuilder(Builder):
    """A builder as the first release had them."""

    def can_build(self, sol: Solution) -> bool:
        return True

    def _make_key(self, solution: Solution) -> str:
        return solution.name

    def _make_closer(self, *args: object, **kwargs: object) -> object:
        return lambda: None

    def _build(self, definition: Definition, solution: Solution) -> Runnable:
        return Runnable(fn=lambda x, i: x * 2, closer=self._make_closer(), meta={})


def test_a_builder_of_the_first_release() -> None:
    builder = OldBuilder()
    registry = BuilderRegistry((builder,))
    made = registry.build(defn=DEFINITION, sol=SOLUTION)
    assert made(torch.ones(1), None).tolist() == [2.0]
    assert registry.build_reference(defn=DEFINITION)(torch.ones(1), None).tolist() == [2.0]
    builder.clear_cache()
    registry.clear()
    assert made.closed


def test_half_a_builder() -> None:
    class Half(Builder):
        def can_build(self, solution: Solution) -> bool:
            return True

        def _make_key(self, solution: Solution) -> str:
            return ""

    with pytest.raises(TypeError, match=r"abstract class Half .*build"):
        Half()


def test_builders_whose_methods_are_no_plain_functions() -> None:
    class Odd(OldBuilder):
        @staticmethod
        def can_build(solution: Solution) -> bool:
            return True

        @classmethod
        def build(cls, definition: Definition, solution: Solution) -> Runnable:
            return Runnable(len, METADATA)

    assert Odd().can_build(SOLUTION)
    assert Odd().build(DEFINITION, SOLUTION)([1]) == 1


def test_a_builder_that_changes_how_another_builds() -> None:
    from flashinfer_bench.compile.builders import PythonBuilder

    class Own(PythonBuilder):
        def _build(self, definition: Definition, solution: Solution) -> Runnable:
            return Runnable(len, METADATA)

    assert Own().build(DEFINITION, SOLUTION)([1]) == 1


def test_a_property_that_fails_says_why() -> None:
    class Own(TraceSet):
        @property
        def mine(self) -> int:
            return self.nothing_like_it

    with pytest.raises(AttributeError, match="nothing_like_it"):
        Own().mine  # noqa: B018


def test_old_parameters_of_builders_that_others_wrote() -> None:
    from flashinfer_bench.compile.builders import PythonBuilder, TritonBuilder

    assert PythonBuilder().can_build(sol=SOLUTION)
    assert not TritonBuilder(PythonBuilder()).can_build(sol=SOLUTION)
    assert not TritonBuilder(py_builder=PythonBuilder()).can_build(SOLUTION)
    with pytest.raises(TypeError, match=r"'solution' and 'sol'"):
        PythonBuilder().can_build(solution=SOLUTION, sol=SOLUTION)


# ---------------------------------------------------------------------------------- running


def test_a_baseline_and_a_solution_on_it() -> None:
    config = BenchmarkConfig(warmup_runs=1, iterations=2, num_trials=1, trust="off", seed=1)
    with PersistentRunner("cpu") as runner:
        baseline = runner.run_ref(DEFINITION, WORKLOAD, config, traceset_root=None)
        assert baseline == "double/w"
        evaluation = runner.run_solution(SOLUTION, baseline, config)
        runner.release(baseline)
    assert evaluation.status == "PASSED"


def test_settings_that_have_gone_or_moved() -> None:
    config = BenchmarkConfig(log_dir="/tmp/x", sampling_validation_trials=7, rtol=0.5)
    sampling = DEFINITION.model_copy(update={"op_type": "sampling"})
    assert config.resolve_eval_config(sampling).extra["sampling_validation_trials"] == 7
    assert config.resolve_eval_config(sampling).rtol == 0.5
    with pytest.raises(errors.ConfigError, match="smapling_validation_trials: no such setting"):
        BenchmarkConfig(smapling_validation_trials=7)


def test_settings_of_what_only_looks_like_a_definition() -> None:
    class Named:
        name, op_type = "double", "op"

    found = BenchmarkConfig(definition_config={"double": {"iterations": 3}})
    assert found.resolve_eval_config(Named()).iterations == 3


# ---------------------------------------------------------------------------------- tracing


class EveryOther(FilterPolicy):
    def __init__(self) -> None:
        self.kept, self.count = [], 0

    def submit(self, entry) -> None:
        self.count += 1
        if self.count % 2:
            self.kept.append(entry)

    def drain(self):
        kept, self.kept = self.kept, []
        return kept


class Indices(InputDumpPolicy):
    def __init__(self, suffix: str = "") -> None:
        self.suffix = suffix

    def get_inputs_to_dump(self, inputs):
        return [name for name, value in inputs.items() if value.dtype == torch.int32]


def test_policies_registered_by_decorators(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(PolicyRegistry, "_own", {"calls": {}, "inputs": {}})
    assert PolicyRegistry.register_filter_policy("every_other")(EveryOther) is EveryOther
    assert PolicyRegistry.register_input_dump_policy("indices")(Indices) is Indices
    assert PolicyRegistry.get_filter_policy("every_other") is EveryOther
    assert PolicyRegistry.get_input_dump_policy("indices") is Indices
    assert "every_other" in PolicyRegistry.list_filter_policies()
    assert {"indices", "dump_all"} <= {*PolicyRegistry.list_input_dump_policies()}
    with pytest.raises(errors.DuplicateNameError, match="'every_other' already"):
        PolicyRegistry.register_filter_policy("every_other")
    config = TracingConfig("indices", {"suffix": "a"}, filter_policy="every_other")
    assert isinstance(config.create_filter_policy(), EveryOther)
    trace_set = dataset(tmp_path)
    with TracingRuntime(trace_set, tracing_config=config) as runtime:
        for size in (1, 2, 3):
            inputs = {"x": torch.ones(size), "i": torch.arange(size, dtype=torch.int32)}
            runtime.collect("double", kwargs=inputs)
    written = TraceSet.from_path(tmp_path).workloads["double"]
    assert [each.workload.axes["n"] for each in written] == [1, 3]
    assert written[0].workload.inputs["i"].type == "safetensors"
    assert written[0].workload.inputs["x"].type == "random"


def dataset(folder) -> TraceSet:
    data.save_json_file(DEFINITION, folder / "definitions" / "op" / "double.json")
    return TraceSet.from_path(folder)


@pytest.mark.parametrize(
    ("name", "names"), [("dump_int", ["i"]), ("dump_all", ["x", "i"]), (["x"], ["x"])]
)
def test_what_a_dump_policy_picks(name, names) -> None:
    inputs = {"x": torch.ones(2), "i": torch.arange(2, dtype=torch.int32), "s": 3}
    config = TracingConfig(name)
    assert list(config.get_inputs_to_dump(inputs)) == names
    assert list(config.create_input_dump_policy()(inputs)) == names


@pytest.mark.parametrize("field", ["filter_policy", "input_dump_policy"])
def test_an_unknown_policy_is_an_error_at_once(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}: there is no .* policy 'nope'; available"):
        TracingConfig(**{field: "nope"})


def test_policies_by_their_names_of_then() -> None:
    from flashinfer_bench.tracing.policy import AttentionFilterPolicy, KeepFirstPolicy

    assert TracingConfig(filter_policy="attention") == TracingConfig(
        filter_policy="keep_first_by_avg_seq_len"
    )
    assert isinstance(
        TracingConfig(filter_policy="attention").create_filter_policy(), AttentionFilterPolicy
    )
    assert isinstance(
        TracingConfig(filter_policy="keep_first").create_filter_policy(), KeepFirstPolicy
    )


def test_rules_and_folders_by_position(tmp_path) -> None:
    from flashinfer_bench.tracer import TracingRule
    from flashinfer_bench.tracer.presets import DUMP_ALL, KEEP_ALL

    dataset(tmp_path)
    rules = {"double": TracingRule(tensors_to_dump=DUMP_ALL, dedup_policy=KEEP_ALL)}
    folders = tmp_path / "traces" / "workloads", tmp_path / "blob" / "workloads"
    with enable_tracing(rules, *folders) as tracer:
        tracer.collect("double", runtime_args={"x": torch.ones(1), "i": torch.ones(1).int()})
    assert len(TraceSet.from_path(tmp_path).workloads["double"]) == 1


def test_classes_import_nothing_for_old_names() -> None:
    program = (
        "import sys\n"
        "from flashinfer_bench.compile import builders, Builder, Runnable\n"
        "from flashinfer_bench.tracing import TracingRuntime, get_full_configs\n"
        "get_full_configs(); builders.PythonBuilder\n"
        "print([name for name in sys.modules if 'compat.functions' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_a_tensor_file_that_is_not_there(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        dataset(tmp_path).get_workload_blob_tensor("blob/workloads/none.safetensors")


def test_runtimes_stop_in_reverse_order(tmp_path) -> None:
    trace_set = dataset(tmp_path)
    first, second = TracingRuntime(trace_set), TracingRuntime(trace_set)
    first.start()
    second.start()
    with pytest.raises(RuntimeError, match="LIFO"):
        first.stop()
    second.stop()
    first.stop()
    assert TracingRuntime.get_instance() is None
