"""Runtimes of datasets: what calls are sent where, from `enable_apply` on."""

from __future__ import annotations

import gc
import os
import sys
import threading
import types
import weakref

import pytest

torch = pytest.importorskip("torch")

from fib_tests import runtime_dataset  # noqa: E402
from fib_tests.runtime_dataset import Dataset, sample  # noqa: E402
from fib_tests.threads import forked_while_held  # noqa: E402
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
from flashinfer_bench.errors import ConfigError, DatasetNotFoundError  # noqa: E402
from flashinfer_bench.routing.patch_points import router  # noqa: E402

pytestmark = [pytest.mark.plugin("python"), pytest.mark.usefixtures("on_the_cpu")]


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

    def test_as_programs_for_earlier_releases_make_them(self, dataset):
        """The example of the documents that users know."""
        enable_apply(str(dataset.root), ApplyConfig(max_atol=1e-2, max_rtol=1e-5, aot_ratio=1.0))
        for tag in (100, 0):
            out = apply("double", runtime_kwargs={"x": rows(2)}, fallback=lambda **kw: kw["x"] * 2)
            assert out[0, 0] == tag
            disable_apply()


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

    def test_settings_of_one_definition(self, other):
        registry = ApplyConfigRegistry()
        registry.register("twice", ApplyConfig(on_miss_policy="use_def_best"))
        enable_apply(other.root, registry)
        assert tag_of(double, 9) == 0
        assert tag_of(apply("twice")(original), 9) == 7


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

    def test_the_one_that_started_last_stops_first(self, dataset, other):
        outer, inner = enable_apply(dataset.root), enable_apply(other.root)
        with pytest.raises(RuntimeError, match="LIFO"):
            outer.stop()
        assert tag_of(double) == 5
        inner.stop()
        assert tag_of(double) == 100
        outer.stop()
        assert get_runtime() is None
        with pytest.raises(ZeroDivisionError), outer:  # what the body raises is what is told
            1 / bool(enable_apply(other.root) is None)
        disable_apply()

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
        from flashinfer_bench.apply.runtime import Builds

        monkeypatch.setattr(Builds, "ahead", lambda self, names: ahead.append(names) or ())
        for ratio in (0.0, 0.5, 1.0):
            ApplyRuntime(dataset.root, ApplyConfig(aot_ratio=ratio), device="cpu")
        assert ahead == [[], ["hundred"], ["hundred", "thousand"]]


class TestWhatIsRefused:
    def test_settings_that_are_something_else(self, dataset):
        with pytest.raises(ConfigError):
            enable_apply(dataset.root, {"max_atol": 1})
        assert get_runtime() is None

    def test_a_device_for_a_mapping(self, tmp_path, monkeypatch):
        with pytest.raises(ConfigError, match="device='cpu' is for datasets"):
            enable_apply({"double": lambda x: x}, device="cpu")
        monkeypatch.setenv("FIB_APPLY_PATH", str(tmp_path))
        with pytest.raises(ConfigError, match="is for datasets"):
            enable_apply(device="cpu")
        assert get_runtime() is None


def test_a_solution_that_cannot_be_built_costs_itself(dataset, caplog):
    dataset.add("broken", 4, source=runtime_dataset.BROKEN, latency_ms=0.1)
    runtime = enable_apply(dataset.root)
    assert [tag_of(double, n) for n in (2, 3, 4)] == [100, 1000, 0]
    assert "broken" in runtime.problems
    assert "broken" in caplog.text


class TestRecursion:
    CALLS_BACK = "import calls_back\n\ndef run(x):\n    return calls_back.function(x) + {tag}\n"

    @pytest.fixture
    def back(self, monkeypatch):
        """A module through which solutions reach what they take the place of."""
        module = types.ModuleType("calls_back")
        monkeypatch.setitem(sys.modules, "calls_back", module)
        return module

    def test_a_solution_that_makes_another_call_gets_that_one_s_solution(self, tmp_path, back):
        made = Dataset(tmp_path / "d").definition().definition("twice")
        made.add("outer", 2, tag=6, source=self.CALLS_BACK)  # builds of equal content are shared
        made.add("inner", 2, of="twice", tag=7)
        back.function = apply("twice")(original)
        with enable_apply(made.root):
            assert [tag_of(double) for _ in range(3)] == [13] * 3


# -------------------------------------------------------------------------------------- rebuilding


FIRST, SECOND = 100, 1000


@pytest.fixture
def growing(tmp_path):
    return Dataset(tmp_path / "dataset").definition().add("first", 2, tag=FIRST)


def improve(growing):
    growing.add("second", 2, 3, tag=SECOND, latency_ms=0.5)


def single(x):
    return apply("double", (x,), None, lambda x: x * 2)


class TestWhatHasChanged:
    def test_is_used_afterwards(self, growing):
        runtime = enable_apply(growing.root)
        assert (tag_of(double), tag_of(single), tag_of(double, 3)) == (FIRST, FIRST, 0)
        improve(growing)
        runtime.rebuild()
        assert (tag_of(double), tag_of(single), tag_of(double, 3)) == (SECOND, SECOND, SECOND)
        assert runtime.stats()["double"].hits == 5  # counts go on

    def test_may_be_a_new_definition(self, growing):
        runtime = enable_apply(growing.root)
        twice = apply("twice")(lambda x: x * 2)
        assert tag_of(twice) == 0
        growing.definition("twice").add("twice_it", 2, of="twice", tag=7)
        runtime.rebuild()
        assert tag_of(twice) == 7

    def test_may_be_the_dataset(self, growing, tmp_path):
        other = Dataset(tmp_path / "other").definition().add("other", 2, tag=5)
        runtime = enable_apply(growing.root)
        runtime.rebuild(other.root)
        assert tag_of(double) == 5
        runtime.rebuild()
        assert tag_of(double) == 5


def test_failures_of_the_dataset_change_nothing(growing, tmp_path):
    runtime = enable_apply(growing.root)
    with pytest.raises(DatasetNotFoundError):
        runtime.rebuild(tmp_path / "nowhere")
    assert tag_of(double) == FIRST
    improve(growing)
    runtime.rebuild()
    assert tag_of(double) == SECOND


def test_a_call_that_is_running_ends_with_what_it_began_with(growing):
    growing.add(
        "waits",
        5,
        source="import gate\n\ndef run(x):\n    return gate.wait(x) + {tag}\n",
        tag=3,
    )
    inside, go_on = threading.Event(), threading.Event()

    class Gate:
        @staticmethod
        def wait(x):
            inside.set()
            assert go_on.wait(30)
            return x

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "gate", Gate)
        runtime = enable_apply(growing.root)
        found = []
        thread = threading.Thread(target=lambda: found.append(tag_of(double, 5)))
        thread.start()
        assert inside.wait(30)
        improve(growing)
        runtime.rebuild()
        runtime.stop()
        gc.collect()
        go_on.set()
        thread.join()
    assert found == [3]


def test_the_old_table_is_dropped_when_nobody_uses_it(growing):
    runtime = enable_apply(growing.root)
    tag_of(double)
    tag_of(single)
    old = weakref.ref(runtime._generation)
    runtime.rebuild()
    tag_of(double)
    gc.collect()
    assert old() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_that_is_forked_while_a_thread_rebuilds_may_change_it_for_itself(growing):
    runtime = enable_apply(growing.root)
    tag_of(double)

    def works():
        assert tag_of(double) == FIRST
        growing.add("own", 2, tag=7, latency_ms=0.5)
        runtime.rebuild()
        return tag_of(double) == 7

    assert forked_while_held([router.changing, router._lock], works)
    assert tag_of(double) == FIRST


@pytest.mark.parametrize("known", [True, False])
def test_the_hook_of_the_first_release_gets_inputs_by_their_names(dataset, known):
    hook = pytest.importorskip("fib_ops_llm.apply_hook")
    seen = []
    hook.set_apply_hook(lambda name, arguments: seen.append(sorted(arguments)))
    try:
        if known:
            enable_apply(dataset.root)
        apply("double", (rows(2),), None, original)
        apply("double", runtime_kwargs={"x": rows(2)}, fallback=original)
    finally:
        hook.set_apply_hook(None)
    assert seen == [["x"] if known else ["0"], ["x"]]
