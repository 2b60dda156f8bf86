"""What core itself provides keeps to the contracts of plugins."""

from __future__ import annotations

import pytest

from flashinfer_bench._lazy import import_string
from flashinfer_bench.data import Definition
from flashinfer_bench.plugins import KeyBuilderSpec, Settings, discover
from flashinfer_bench.testing import (
    EvaluatorCase,
    EvaluatorConformance,
    KeyBuilderCase,
    KeyBuilderConformance,
    PluginCase,
    PluginConformance,
    TimerCase,
    TimerConformance,
    sample_definition,
)

pytestmark = pytest.mark.torch

BUILTIN = "flashinfer_bench.plugins.builtin"
CATALOG = discover(Settings(no_plugins=True))


def record(kind, name):
    return CATALOG.find(kind, name).spec


class TestWallClock(TimerConformance):
    @pytest.fixture
    def case(self):
        return TimerCase(record=record("timer", "cpu"), plugin=BUILTIN)


class OnCuda(TimerConformance):
    """Work of a known length for the timers of a GPU."""

    timer = "cuda_event"

    @pytest.fixture
    def case(self):
        import torch

        def work(milliseconds):
            # About a GHz, whatever the device's clock: within the factor that the suite allows.
            torch.cuda._sleep(int(milliseconds * 2e6))

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        return TimerCase(
            record=record("timer", self.timer), device="cuda", plugin=BUILTIN, work=work
        )


@pytest.mark.gpu
class TestCudaEvents(OnCuda):
    timer = "cuda_event"


@pytest.mark.gpu
class TestCudaGraphs(OnCuda):
    timer = "cuda_graph"


@pytest.mark.gpu
class TestDoBench(OnCuda):
    timer = "do_bench"


@pytest.mark.parametrize("name", ["cpu", "cuda_event", "cuda_graph", "do_bench"])
def test_records_of_timers_say_what_the_timers_are_like(name):
    """Also of those that cannot be used here: their classes can be imported anywhere."""
    spec = record("timer", name)
    timer = import_string(spec.factory)
    told = (spec.name, spec.repeats, spec.caches, spec.resolution_ms)
    assert told == (timer.name, timer.repeats, timer.caches, timer.resolution_ms)
    assert spec.overhead


class TestDefaultEvaluator(EvaluatorConformance):
    @pytest.fixture
    def case(self):
        return EvaluatorCase(
            record=record("evaluator", "default"), definition=sample_definition(), plugin=BUILTIN
        )


class TestDefaultEvaluatorOnScalars(EvaluatorConformance):
    """Two outputs, one of them a scalar, and none in the usual precision."""

    @pytest.fixture
    def case(self):
        definition = Definition.model_validate(
            {
                "name": "sum_and_count",
                "op_type": "toy",
                "axes": {"n": {"type": "var"}},
                "inputs": {"x": {"shape": ["n"], "dtype": "bfloat16"}},
                "outputs": {
                    "total": {"shape": None, "dtype": "bfloat16"},
                    "order": {"shape": ["n"], "dtype": "int64"},
                },
                "reference": "def run(x):\n    return x.sum(), x.argsort() + 1\n",
            }
        )
        return EvaluatorCase(
            record="flashinfer_bench.bench.evaluators.default:DefaultEvaluator",
            definition=definition,
            settings={"rtol": 0.02},
            plugin=BUILTIN,
        )


class TestAxesOnly(KeyBuilderConformance):
    @pytest.fixture
    def case(self):
        spec = KeyBuilderSpec(
            name="axes",
            op_types=["sample"],
            factory="flashinfer_bench.apply:AxesOnlyKeyBuilder",
            summary="The variable axes",
        )
        return KeyBuilderCase(record=spec, definition=sample_definition(), plugin=BUILTIN)


class TestEverything(PluginConformance):
    @pytest.fixture
    def case(self):
        # As if it were a plugin beside core, which registers the same: only its own rules count.
        return PluginCase(plugin="conforming_builtin", installed=False)

    @pytest.fixture(autouse=True)
    def a_copy_of_it(self, tmp_path, monkeypatch):
        source = "from dataclasses import replace\nfrom flashinfer_bench.plugins import hookimpl\n"
        for kind in ("timers", "evaluators", "executors"):
            source += (
                f"@hookimpl\ndef fib_register_{kind}():\n"
                f"    from {BUILTIN} import fib_register_{kind} as of_core\n"
                "    return [replace(spec, name=f'my_{spec.name}') for spec in of_core()]\n"
            )
        (tmp_path / "conforming_builtin.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
