"""Runtimes of datasets: what calls are sent where, from `enable_apply` on."""

from __future__ import annotations

import importlib.util
import sys
import threading
import traceback
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from flashinfer_bench.apply import (  # noqa: E402
    ApplyConfig,
    ApplyConfigRegistry,
    ApplyRuntime,
    apply,
    disable_apply,
    enable_apply,
    get_runtime,
)
from flashinfer_bench.data import TraceSet  # noqa: E402
from flashinfer_bench.errors import (  # noqa: E402
    CapabilityError,
    ConfigError,
    DataError,
    DatasetNotFoundError,
)
from flashinfer_bench.integration.slots import board  # noqa: E402

spec = importlib.util.spec_from_file_location(
    "runtime_dataset", Path(__file__).with_name("runtime_dataset.py")
)
runtime_dataset = importlib.util.module_from_spec(spec)
spec.loader.exec_module(runtime_dataset)
Dataset, sample = runtime_dataset.Dataset, runtime_dataset.sample

pytestmark = pytest.mark.plugin("python")


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path / "none"))
    monkeypatch.delenv("FIB_APPLY_PATH", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    board.clear()
    board.asked()
    yield
    board.clear()


@pytest.fixture
def dataset(tmp_path):
    return sample(tmp_path / "dataset")


@pytest.fixture
def other(tmp_path):
    """The same definition, and another one."""
    made = Dataset(tmp_path / "other").definition().definition("twice")
    made.add("other", 2, 3, tag=5)
    return made.add("twice_it", 2, of="twice", tag=7)


@apply("double")
def double(x):
    return x * 2


def rows(n):
    return torch.zeros(n, 4)


def tag_of(function, n=2):
    """Return the tag of what ran; 0 for the original."""
    return int(function(rows(n))[0, 0])


def original(x):
    return x * 2


class TestCalls:
    def test_go_to_the_best_solution_of_their_size(self, dataset):
        enable_apply(dataset.root)
        assert [tag_of(double, n) for n in (2, 3, 4)] == [100, 1000, 0]

    def test_of_functions_that_are_decorated_later(self, dataset):
        enable_apply(dataset.root)
        later = apply("double")(lambda x: x * 2)
        assert tag_of(later) == 100

    def test_by_name(self, dataset):
        enable_apply(dataset.root)
        assert tag_of(lambda x: double(x=x)) == 100

    def test_in_the_function_form(self, dataset):
        enable_apply(dataset.root)
        assert tag_of(lambda x: apply("double", args=(x,), fallback=original)) == 100
        assert tag_of(lambda x: apply("double", kwargs={"x": x}, fallback=original)) == 100
        assert tag_of(lambda x: apply("double", runtime_kwargs={"x": x}, fallback=original)) == 100
        assert tag_of(lambda x: apply("double", args=(x,), fallback=original), 4) == 0

    def test_by_a_resolver(self, dataset):
        enable_apply(dataset.root)
        resolved = apply(lambda x: "double" if x.shape[0] < 3 else "nothing")(original)
        assert [tag_of(resolved, n) for n in (2, 3)] == [100, 0]

    def test_that_are_destination_passing(self, dataset):
        enable_apply(dataset.root)
        y = rows(2)
        assert apply("double", args=(rows(2), y)) is None
        assert y[0, 0] == 100

        @apply("double")
        def into(x, y):
            y.copy_(x * 2)

        y = rows(3)
        assert into(rows(3), y) is None
        assert y[0, 0] == 1000

    def test_of_a_function_with_an_out_parameter(self, dataset):
        @apply("double")
        def doubled(x, *, eps=0.0, y=None):
            result = x * 2 + eps
            return result if y is None else y.copy_(result)

        enable_apply(dataset.root)
        y = rows(2)
        assert tag_of(doubled) == 100
        assert doubled(rows(2), y=y) is y
        assert y[0, 0] == 100
        assert tag_of(lambda x: doubled(x, eps=1.0)) == 1

    def test_of_a_method(self, dataset):
        class Layer:
            @apply("double")
            def forward(self, x):
                assert isinstance(self, Layer)
                return x * 2

        enable_apply(dataset.root)
        assert [tag_of(Layer().forward, n) for n in (2, 4)] == [100, 0]

    def test_to_a_destination_passing_solution(self, tmp_path):
        made = Dataset(tmp_path / "d").definition()
        enable_apply(made.add("into", 2, tag=3, source=runtime_dataset.INTO).root)
        assert tag_of(double) == 3

    def test_of_a_function_that_cannot_be_of_its_definition(self, dataset, caplog):
        @apply("double")
        def odd(x, mode):
            return x * 2

        runtime = enable_apply(dataset.root)
        for _ in range(3):
            assert odd(rows(2), "mode")[0, 0] == 0
        assert [each.levelname for each in caplog.records] == ["WARNING"]
        assert "'mode' is neither" in caplog.text
        assert any("odd" in name for name in runtime.problems)

    def test_with_a_wrong_number_of_arguments_are_refused_with_both_counts(self, dataset):
        enable_apply(dataset.root)
        with pytest.raises(ValueError, match=r"1\b.*2\b"):
            apply("double", args=(rows(2),) * 3, fallback=original)

    def test_of_an_unknown_definition(self, dataset):
        enable_apply(dataset.root)
        assert apply("unknown", args=(rows(2),), fallback=original)[0, 0] == 0
        with pytest.raises(RuntimeError, match="'unknown'"):
            apply("unknown", args=(rows(2),))

    def test_that_miss_without_a_fallback(self, dataset):
        enable_apply(dataset.root)
        with pytest.raises(RuntimeError, match="double"):
            apply("double", args=(rows(4),))

    def test_a_size_that_was_recorded_elsewhere_is_a_miss(self, tmp_path):
        made = Dataset(tmp_path / "d").definition().solution("fast", tag=5)
        enable_apply(made.wins("fast", 2, hardware="NVIDIA H100 80GB HBM3").root)
        assert tag_of(double) == 0


class TestPolicies:
    @pytest.mark.parametrize(
        ("policy", "expected"),
        [
            ("fallback_only", [0, 100, 1000, 0, 0]),
            ("nearest", [0, 100, 1000, 1000, 0]),
        ],
    )
    def test_for_sizes_that_were_not_recorded(self, dataset, policy, expected):
        config = ApplyConfig(on_miss_policy=policy, nearest_ratio=1.5)
        enable_apply(dataset.root, config)
        assert [tag_of(double, n) for n in (1, 2, 3, 4, 5)] == expected

    def test_the_best_of_all_takes_any_size(self, tmp_path):
        made = Dataset(tmp_path / "d").definition().add("best", 2, 3, tag=5)
        enable_apply(made.root, ApplyConfig(on_miss_policy="use_def_best"))
        assert [tag_of(double, n) for n in (1, 2, 3, 50)] == [5] * 4

    def test_settings_of_one_definition(self, other):
        registry = ApplyConfigRegistry()
        registry.register("twice", ApplyConfig(on_miss_policy="use_def_best"))
        enable_apply(other.root, registry)
        assert tag_of(double, 9) == 0
        assert tag_of(apply("twice")(original), 9) == 7


class TestNesting:
    def test_the_inner_one_decides_and_the_outer_one_is_back_afterwards(self, dataset, other):
        with enable_apply(dataset.root):
            assert tag_of(double) == 100
            with enable_apply(other.root):
                assert tag_of(double) == 5
            assert tag_of(double) == 100
        assert tag_of(double) == 0

    def test_the_inner_one_decides_alone(self, dataset, tmp_path):
        empty = Dataset(tmp_path / "empty").definition()
        with enable_apply(dataset.root), enable_apply(empty.root):
            assert tag_of(double) == 0

    def test_functions_undo_one_another(self, dataset, other):
        enable_apply(dataset.root)
        enable_apply(other.root)
        assert tag_of(double) == 5
        disable_apply()
        assert tag_of(double) == 100
        disable_apply()
        assert tag_of(double) == 0
        disable_apply()

    def test_the_same_dataset_twice(self, dataset):
        with enable_apply(dataset.root) as outer:
            with enable_apply(dataset.root) as inner:
                assert outer is not inner
                assert tag_of(double) == 100
            assert tag_of(double) == 100
        assert get_runtime() is None

    def test_disabling_inside_of_the_body(self, dataset, other):
        with enable_apply(dataset.root):
            with enable_apply(other.root):
                disable_apply()
                assert tag_of(double) == 100
            assert tag_of(double) == 100
        assert tag_of(double) == 0

    def test_an_exception_in_the_body_goes_on(self, dataset):
        with pytest.raises(ZeroDivisionError), enable_apply(dataset.root):
            raise ZeroDivisionError
        assert tag_of(double) == 0

    def test_what_was_enabled_in_the_body_stays(self, dataset, other):
        with enable_apply(dataset.root):
            inner = enable_apply(other.root)
        assert get_runtime() is inner
        assert tag_of(double) == 5

    def test_a_mapping_inside_of_a_dataset(self, dataset):
        with enable_apply(dataset.root):
            with enable_apply({"double": lambda x: x * 2 + 9}) as count:
                assert count >= 1
                assert tag_of(double) == 9
            assert tag_of(double) == 100

    def test_a_mapping_inside_of_a_mapping(self):
        with enable_apply({"double": lambda x: x * 2 + 9}):
            with enable_apply({"double": lambda x: x * 2 + 8}):
                assert tag_of(double) == 8
            assert tag_of(double) == 9
        assert tag_of(double) == 0

    def test_a_mapping_replaces_one_that_is_no_context_manager(self):
        enable_apply({"double": lambda x: x * 2 + 9})
        enable_apply({"double": lambda x: x * 2 + 8})
        assert tag_of(double) == 8
        disable_apply()
        assert tag_of(double) == 0

    def test_a_dataset_inside_of_a_mapping(self, dataset):
        with enable_apply({"double": lambda x: x * 2 + 9}):
            with enable_apply(dataset.root):
                assert tag_of(double) == 100
            assert tag_of(double) == 9
        assert tag_of(double) == 0


class TestTheRuntime:
    def test_is_what_enabling_returns(self, dataset):
        runtime = enable_apply(dataset.root)
        assert isinstance(runtime, ApplyRuntime)
        assert ApplyRuntime.get_instance() is runtime is get_runtime()
        assert runtime.is_active
        assert str(dataset.root) in repr(runtime)

    @pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu")])
    def test_is_of_one_device(self, dataset, device):
        with enable_apply(dataset.root, device=device):
            assert tag_of(double) == 100

    def test_is_not_active_before_it_is_started(self, dataset):
        runtime = ApplyRuntime(dataset.root)
        assert not runtime.is_active
        assert tag_of(double) == 0
        assert runtime.start() is runtime
        runtime.start()
        assert tag_of(double) == 100
        runtime.stop()
        runtime.stop()
        assert tag_of(double) == 0
        assert ApplyRuntime.get_instance() is None

    def test_as_a_context_manager(self, dataset):
        runtime = ApplyRuntime(dataset.root)
        for _ in range(2):
            with runtime as entered:
                assert entered is runtime
                with runtime:
                    assert tag_of(double) == 100
                assert tag_of(double) == 100
            assert tag_of(double) == 0

    def test_answers_single_calls(self, dataset):
        runtime = ApplyRuntime(dataset.root, device="cpu")
        for _ in range(2):
            x = rows(2)
            assert runtime.dispatch("double", (x,), {}, original)[0, 0] == 100
            assert runtime.dispatch("double", (), {"x": x}, original)[0, 0] == 100
            assert runtime.dispatch("double", {"x": x}, original)[0, 0] == 100
            assert runtime("double", (x,))[0, 0] == 100
            assert runtime("double", runtime_kwargs={"x": x}, fallback=original)[0, 0] == 100
            assert runtime(lambda x: "double", args=(x,))[0, 0] == 100
            assert runtime(lambda x: None, args=(x,), fallback=original)[0, 0] == 0
            assert runtime.dispatch("unknown", (x,), None, original)[0, 0] == 0
            with pytest.raises(RuntimeError, match="'unknown'"):
                runtime.dispatch("unknown", (x,))
            runtime.start()

    def test_of_a_dataset_in_memory(self, dataset):
        trace_set = TraceSet.from_path(dataset.root)
        assert trace_set.traces
        trace_set.root = None
        with enable_apply(trace_set) as runtime:
            assert tag_of(double) == 100
            assert "memory" in repr(runtime)

    @pytest.mark.parametrize("of", [str, Path, TraceSet.from_path])
    def test_of_a_dataset_in_any_form(self, dataset, of):
        with enable_apply(of(dataset.root)):
            assert tag_of(double) == 100

    def test_of_the_dataset_of_the_environment(self, dataset, monkeypatch):
        monkeypatch.setenv("FIB_DATASET_PATH", str(dataset.root))
        with enable_apply():
            assert tag_of(double) == 100

    def test_counts_what_became_of_calls(self, dataset):
        runtime = enable_apply(dataset.root)
        assert runtime.stats() == {}
        for n in (2, 2, 3, 4):
            tag_of(double, n)
        stats = runtime.stats()["double"]
        assert (stats.hits, stats.fallbacks, stats.errors) == (3, 1, 0)
        assert sum(stats.misses.values()) == 1

    def test_builds_ahead_as_much_as_it_is_told(self, dataset, monkeypatch):
        ahead = []
        from flashinfer_bench.apply.building import Builds

        monkeypatch.setattr(Builds, "ahead", lambda self, names: ahead.append(names) or {})
        for ratio in (0.0, 0.5, 1.0):
            ApplyRuntime(dataset.root, ApplyConfig(aot_ratio=ratio), device="cpu")
        assert ahead == [["hundred"], ["hundred", "thousand"]]

    def test_explains_itself(self, dataset):
        pytest.importorskip("flashinfer_bench.apply.explain")
        runtime = ApplyRuntime(dataset.root, device="cpu")
        assert "hundred" in str(runtime.explain("double"))


class TestWhatIsRefused:
    def test_a_dataset_that_does_not_exist(self, tmp_path):
        with pytest.raises(DatasetNotFoundError, match="nowhere"):
            enable_apply(tmp_path / "nowhere")
        assert get_runtime() is None

    def test_no_dataset_in_the_environment_either(self):
        with pytest.raises(DatasetNotFoundError):
            enable_apply()

    def test_a_file_as_a_dataset(self, tmp_path):
        (tmp_path / "file").write_text("x")
        with pytest.raises(DatasetNotFoundError, match="not a folder"):
            enable_apply(tmp_path / "file")

    def test_settings_that_are_something_else(self, dataset):
        with pytest.raises(ConfigError):
            enable_apply(dataset.root, {"max_atol": 1})
        with pytest.raises(ConfigError):
            ApplyConfig(on_miss_policy="whatever")
        assert get_runtime() is None

    @pytest.mark.parametrize("device", ["tpu", "cuda:x", 0])
    def test_a_device_that_is_none(self, dataset, device):
        with pytest.raises(CapabilityError, match="not supported; use cpu, cuda or cuda:N"):
            enable_apply(dataset.root, device=device)
        assert get_runtime() is None

    def test_a_gpu_that_is_not_there(self, dataset):
        with pytest.raises(CapabilityError, match="cuda:63"):
            enable_apply(dataset.root, device="cuda:63")
        assert get_runtime() is None

    def test_a_device_for_a_mapping(self, tmp_path, monkeypatch):
        with pytest.raises(ConfigError, match="device='cpu' is for a dataset"):
            enable_apply({"double": lambda x: x}, device="cpu")
        monkeypatch.setenv("FIB_APPLY_PATH", str(tmp_path))
        with pytest.raises(ConfigError, match="is for a dataset"):
            enable_apply(device="cpu")
        assert get_runtime() is None

    def test_something_that_is_no_dataset(self):
        with pytest.raises((ConfigError, TypeError)):
            enable_apply(5)


class TestBrokenDatasets:
    def test_a_solution_that_cannot_be_built_costs_itself(self, dataset, caplog):
        dataset.add("broken", 4, source=runtime_dataset.BROKEN, latency_ms=0.1)
        runtime = enable_apply(dataset.root)
        assert [tag_of(double, n) for n in (2, 3, 4)] == [100, 1000, 0]
        assert "broken" in runtime.problems
        assert "broken" in caplog.text

    def test_one_without_a_builder_as_well(self, dataset, caplog):
        dataset.add("alien", 4, language="klingon", latency_ms=0.1)
        runtime = enable_apply(dataset.root)
        assert [tag_of(double, n) for n in (2, 4)] == [100, 0]
        assert "klingon" in runtime.problems["alien"]

    def test_in_strict_mode_it_raises(self, dataset):
        dataset.add("broken", 4, source=runtime_dataset.BROKEN, latency_ms=0.1)
        enable_apply(dataset.root, ApplyConfig(strict=True))
        assert tag_of(double) == 100
        with pytest.raises(RuntimeError, match="broken"):
            tag_of(double, 4)

    def test_a_solution_that_raises_is_answered_by_the_original(self, dataset):
        dataset.add("raises", 4, source=runtime_dataset.RAISES, latency_ms=0.1)
        runtime = enable_apply(dataset.root)
        for _ in range(6):
            assert tag_of(double, 4) == 0
        assert runtime.stats()["double"].errors == ApplyConfig().max_failures
        assert tag_of(double) == 100

    def test_in_strict_mode_its_error_names_it(self, dataset):
        dataset.add("raises", 4, source=runtime_dataset.RAISES, latency_ms=0.1)
        enable_apply(dataset.root, ApplyConfig(strict=True))
        with pytest.raises(Exception, match="inside of the solution") as caught:
            tag_of(double, 4)
        assert "raises" in "".join(traceback.format_exception(caught.value))

    def test_a_torn_definition_costs_itself(self, dataset):
        dataset.put("definitions/torn.json", '{"name": "torn"')
        enable_apply(dataset.root)
        assert tag_of(double) == 100

    def test_a_definition_that_cannot_be_read_when_it_is_needed_costs_itself(
        self, dataset, other, monkeypatch, caplog
    ):
        other.add("hundred", 2, tag=100)
        runtime = enable_apply(other.root, ApplyConfig(aot_ratio=0.0))
        source = runtime._generation.table.source
        read = source.definition

        def changed(name):
            if name == "double":
                raise DataError("has changed since the table was made")
            return read(name)

        monkeypatch.setattr(source, "definition", changed)
        assert [tag_of(double) for _ in range(3)] == [0, 0, 0]
        assert tag_of(apply("twice")(original)) == 7
        assert "has changed" in runtime.problems["double"]
        assert len([each for each in caplog.records if each.levelname == "WARNING"]) == 1
        with pytest.raises(RuntimeError, match="has changed"):
            runtime.dispatch("double", (rows(2),))


class TestRecursion:
    CALLS_BACK = "import calls_back\n\ndef run(x):\n    return calls_back.function(x) + {tag}\n"

    @pytest.fixture
    def back(self, monkeypatch):
        """A module through which solutions reach what they take the place of."""
        module = types.ModuleType("calls_back")
        monkeypatch.setitem(sys.modules, "calls_back", module)
        return module

    def test_a_solution_that_makes_such_a_call_itself_gets_the_original(self, tmp_path, back):
        made = Dataset(tmp_path / "d").definition()
        made.add("wraps", 2, 3, tag=5, source=self.CALLS_BACK)
        for function in (double, lambda x: apply("double", (x,), None, original)):
            back.function = function
            with enable_apply(made.root):
                assert [tag_of(function, n) for n in (2, 3, 2, 2)] == [5] * 4

    def test_a_solution_that_makes_another_call_gets_that_one_s_solution(self, tmp_path, back):
        made = Dataset(tmp_path / "d").definition().definition("twice")
        made.add("outer", 2, tag=6, source=self.CALLS_BACK)  # builds of equal content are shared
        made.add("inner", 2, of="twice", tag=7)
        back.function = apply("twice")(original)
        with enable_apply(made.root):
            assert [tag_of(double) for _ in range(3)] == [13] * 3

    def test_an_original_that_makes_single_calls_of_its_own_definition(self, dataset):
        @apply("double")
        def function(x):
            return apply("double", args=(x,), fallback=lambda x: x * 2 + 1)

        assert tag_of(function) == 1
        enable_apply(dataset.root)
        assert [tag_of(function, n) for n in (2, 4, 4)] == [100, 1, 1]


class TestTorchCompile:
    @pytest.fixture(autouse=True)
    def fresh(self):
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()

    def compiled(self, function=double, **options):
        return torch.compile(lambda x: function(x * 2) + 1, backend="eager", **options)

    def test_callers_are_answered(self, dataset):
        caller = self.compiled()
        assert tag_of(caller) == 1
        with enable_apply(dataset.root) as runtime:
            for _ in range(3):
                assert [tag_of(caller, n) for n in (2, 3, 4)] == [101, 1001, 1]
            assert runtime.stats()["double"].hits == 6
            runtime.rebuild()
            assert [tag_of(caller, n) for n in (2, 3, 4)] == [101, 1001, 1]
        assert [tag_of(caller, n) for n in (2, 3, 4)] == [1, 1, 1]

    def test_solutions_are_neither_traced_nor_compiled(self, tmp_path):
        source = "import torch\n\ndef run(x):\n    assert not torch.compiler.is_compiling()\n"
        source += "    return x * 2 + {tag}\n"
        made = Dataset(tmp_path / "d").definition().add("plain", 2, tag=5, source=source)
        with enable_apply(made.root, ApplyConfig(strict=True)):
            frames = []

            def backend(graph, _inputs):
                frames.append(graph)
                return graph.forward

            caller = torch.compile(lambda x: double(x * 2) + 1, backend=backend)
            for _ in range(4):
                assert tag_of(caller) == 6
            assert len(frames) <= 2  # before the call and after it

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_without_gradients(self, dataset, mode):
        enable_apply(dataset.root)
        caller = self.compiled()
        with mode():
            assert [tag_of(caller) for _ in range(3)] == [101] * 3
            assert [tag_of(double) for _ in range(3)] == [100] * 3

    def test_a_function_that_is_bound_by_name(self, dataset):
        @apply("double")
        def function(scale=2, *, x):
            return x * scale

        enable_apply(dataset.root)
        caller = self.compiled(lambda x: function(x=x))
        assert [tag_of(caller) for _ in range(3)] == [101] * 3


class TestThreads:
    def test_one_enables_while_others_call(self, dataset, other):
        wrong, stop = [], threading.Event()

        def work():
            while not stop.is_set():
                for function in (double, lambda x: apply("double", (x,), None, original)):
                    tag = tag_of(function)
                    if tag not in (0, 5, 100):
                        wrong.append(tag)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(8):
                with enable_apply(dataset.root), enable_apply(other.root):
                    assert tag_of(double) == 5
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert wrong == []
        assert tag_of(double) == 0
