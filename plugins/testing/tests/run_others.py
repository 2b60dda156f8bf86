"""The suites for timers, evaluators, key builders and adapters on broken ones of each."""

import inspect
from types import SimpleNamespace

import broken_adapters
import broken_evaluators
import broken_keys
import broken_timers
import pytest

from fib_testing import (
    AdapterCase,
    AdapterConformance,
    EvaluatorCase,
    EvaluatorConformance,
    KeyBuilderCase,
    KeyBuilderConformance,
    SampleCall,
    TimerCase,
    TimerConformance,
    sample_definition,
)
from flashinfer_bench.data import Definition
from flashinfer_bench.plugins import AdapterSpec, EvaluatorSpec, KeyBuilderSpec, TimerSpec

COMMON = {"name": "toy", "summary": "A toy", "probe": "broken_probes:good"}
DEFINITION = sample_definition()
TWO_AXES = Definition.model_validate(
    {
        "name": "outer_sum",
        "op_type": "toy",
        "axes": {"rows": {"type": "var"}, "columns": {"type": "var"}},
        "inputs": {
            "x": {"shape": ["rows", "columns"], "dtype": "float32"},
            "y": {"shape": ["columns"], "dtype": "float32"},
            "scale": {"shape": None, "dtype": "float32"},
        },
        "outputs": {"out": {"shape": ["rows", "columns"], "dtype": "float32"}},
        "reference": "def run(x, y, scale):\n    return (x + y) * scale\n",
    }
)
TARGETS = [spec.path for spec in broken_adapters.SPECS]


def timer(name, **fields):
    record = TimerSpec(**COMMON | {"devices": ["cpu"], "factory": f"broken_timers:{name}"} | fields)
    return TimerCase(record=record, plugin="broken_probes")


def evaluator(name, *, definition=DEFINITION, **fields):
    given = {"op_types": ["sample"], "factory": f"broken_evaluators:{name}"}
    record = EvaluatorSpec(**COMMON | given | fields)
    return EvaluatorCase(
        record=record,
        definition=definition,
        plugin="broken_probes",
        wrong={
            "a constant": lambda trial, call: [t.mean().expand(t.shape) for t in trial.expected]
        },
    )


def keys(name, **fields):
    given = {"op_types": ["toy"], "factory": f"broken_keys:{name}"}
    record = KeyBuilderSpec(**COMMON | given | fields)
    return KeyBuilderCase(record=record, definition=TWO_AXES, plugin="broken_probes")


def adapter(name, *, targets=TARGETS, **fields):
    given = {"targets": targets, "factory": f"broken_adapters:{name}"}
    record = AdapterSpec(**COMMON | given | fields)
    return AdapterCase(record=record, plugin="broken_probes")


def run_arguments():
    import broken_library

    return [broken_library.Wrapper(), SimpleNamespace(shape=(9,))], {"out": object()}


def routed(shape, reference, **inputs):
    tensor = {"shape": ["n", "k"], "dtype": "float32"}
    return Definition.model_validate(
        {
            "name": shape,
            "op_type": "toy",
            "axes": {"n": {"type": "var"}, "k": {"type": "const", "value": 4}},
            "inputs": dict.fromkeys(inputs, tensor),
            "outputs": {"result": tensor},
            "reference": f"def run({', '.join(inputs)}):\n    return {reference}\n",
        }
    )


DOUBLE = routed("toy_double_k4", "x * 2", x=1)
ADD = routed("toy_add_k4", "x + residual", x=1, residual=1)


def sample_call(function, definition, *args, out=False, **kwargs):
    """Return a call with tensors for x, and for `residual` or a buffer."""

    def arguments():
        import torch

        x = torch.arange(8.0).reshape(2, 4) - 3
        named = {"out": torch.zeros(2, 4)} if out else {}
        named |= {"residual": torch.full((2, 4), 5.0)} if function == "add_into" else {}
        return (x, *args), {**named, **kwargs}

    return SampleCall(path=f"broken_library.{function}", arguments=arguments, definition=definition)


CALLS = (
    sample_call("activate", DOUBLE),
    sample_call("activate", DOUBLE, "none", out=True),
    sample_call("activate", DOUBLE, mode="none", flag=False),
    sample_call("activate", None, "relu", out=True),
    sample_call("activate", None, flag=True),
    sample_call("add_into", ADD),
)


def routes(name):
    targets = ["broken_library.activate", "broken_library.add_into"]
    return AdapterCase(
        record=adapter(name, targets=targets).record, plugin="broken_probes", calls=CALLS
    )


NO_LIBRARY = ["no_such_library_xyz.scale"]
SUITES = {
    "Timer": (TimerConformance, broken_timers, timer),
    "Evaluator": (EvaluatorConformance, broken_evaluators, evaluator),
    "Keys": (KeyBuilderConformance, broken_keys, keys),
    "Adapter": (AdapterConformance, broken_adapters, adapter),
}
CASES = {
    f"{kind}{name}": (suite, make(name))
    for kind, (suite, module, make) in SUITES.items()
    for name, found in inspect.getmembers(module, inspect.isclass)
    if found.__module__ == module.__name__
    and name not in ("Changed", "Naps", "Activate", "AddInto")
    and not name.startswith("Route")
}
CASES |= {
    name: (AdapterConformance, routes(name))
    for name in vars(broken_adapters)
    if name.startswith("Route") and name not in ("Route", "RouteAdapter")
}
CASES |= {
    "TimerForOthers": (TimerConformance, timer("Good", devices=["cuda"])),
    "TimerHeavyProbe": (TimerConformance, timer("Good", probe="broken_probes:heavy")),
    "TimerRepeats": (TimerConformance, timer("Repeats", repeats=True)),
    "TimerRepeatsWithOthers": (TimerConformance, timer("RepeatsWithOthers", repeats=True)),
    "TimerRepeatsUntold": (TimerConformance, timer("Repeats")),
    "TimerCareless": (TimerConformance, timer("Careless", resolution_ms=1e-3)),
    "TimerFactory": (TimerConformance, TimerCase(record="broken_timers:Good")),
    "EvaluatorForOthers": (EvaluatorConformance, evaluator("Good", op_types=["gemm"])),
    "EvaluatorFallback": (EvaluatorConformance, evaluator("Good", op_types=[])),
    "KeysForOthers": (KeyBuilderConformance, keys("Good", op_types=["gemm"])),
    "KeysLoud": (KeyBuilderConformance, keys("Good", op_types=["Toy"])),
    "AdapterMissing": (
        AdapterConformance,
        adapter("Missing", targets=[*TARGETS, "broken_library.no_such_function"]),
    ),
    "AdapterProbeImports": (
        AdapterConformance,
        adapter("Good", probe="broken_probes:imports_library"),
    ),
    "AdapterNoLibrary": (AdapterConformance, adapter("Good", probe="broken_probes:unavailable")),
    "AdapterArguments": (
        AdapterConformance,
        AdapterCase(
            record=adapter("LooksAtArguments").record,
            plugin="broken_probes",
            arguments={"broken_library.Wrapper.run": run_arguments},
        ),
    ),
}


def _suite(suite, given):
    class Suite(suite):
        @pytest.fixture
        def case(self):
            return given

    return Suite


globals().update({f"Test{name}": _suite(*each) for name, each in CASES.items()})
