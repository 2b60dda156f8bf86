"""What core itself provides keeps to the contracts of plugins."""

import pytest

from fib_testing import (
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
from flashinfer_bench.data import Definition
from flashinfer_bench.plugins import KeyBuilderSpec, Settings, discover

pytestmark = pytest.mark.torch

BUILTIN = "flashinfer_bench.plugins.builtin"
CATALOG = discover(Settings(no_plugins=True))


def record(kind, name):
    return CATALOG.find(kind, name).spec


class TestWallClock(TimerConformance):
    @pytest.fixture
    def case(self):
        return TimerCase(record=record("timer", "cpu"), plugin=BUILTIN)


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
