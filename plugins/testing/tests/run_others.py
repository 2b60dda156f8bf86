"""The suites for timers, evaluators, key builders and adapters on broken ones of each."""

import inspect
from types import SimpleNamespace

import broken_adapters
import broken_evaluators
import broken_keys
import broken_timers
from suites import suites_of

from fib_testing import (
    AdapterConformance,
    EvaluatorConformance,
    KeyBuilderConformance,
    SampleCall,
    TimerCase,
    TimerConformance,
    sample_definition,
)
from flashinfer_bench.data import Definition
from flashinfer_bench.plugins import AdapterSpec, EvaluatorSpec, KeyBuilderSpec, TimerSpec

COMMON = {"name": "toy", "summary": "A toy", "probe": "broken_probes:good"}
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


def a_constant(trial, call):
    return [t.mean().expand(t.shape) for t in trial.expected]


SUITES = {
    "Timer": (TimerConformance, TimerSpec, broken_timers),
    "Evaluator": (EvaluatorConformance, EvaluatorSpec, broken_evaluators),
    "Keys": (KeyBuilderConformance, KeyBuilderSpec, broken_keys),
    "Adapter": (AdapterConformance, AdapterSpec, broken_adapters),
}
# What records and cases are given unless a test says otherwise.
RECORDS = {
    "Timer": {"devices": ["cpu"]},
    "Evaluator": {"op_types": ["sample"]},
    "Keys": {"op_types": ["toy"]},
    "Adapter": {"targets": TARGETS},
}
GIVEN = {
    "Evaluator": {"definition": sample_definition(), "wrong": {"a constant": a_constant}},
    "Keys": {"definition": TWO_AXES},
}


def broken(kind, name, given=None, **fields):
    """Return a suite, and a case with `given` of a record with `fields`."""
    suite, spec, module = SUITES[kind]
    factory = {"factory": f"{module.__name__}:{name}"}
    record = spec(**COMMON | factory | RECORDS[kind] | fields)
    given = GIVEN.get(kind, {}) | (given or {})
    return suite, suite.case_type(record=record, plugin="broken_probes", **given)


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


ROUTED = ["broken_library.activate", "broken_library.add_into"]
CASES = {
    f"{kind}{name}": broken(kind, name)
    for kind, (_, _, module) in SUITES.items()
    for name, found in inspect.getmembers(module, inspect.isclass)
    if found.__module__ == module.__name__
    and name not in ("Changed", "Naps", "Activate", "AddInto")
    and not name.startswith("Route")
}
CASES |= {
    name: broken("Adapter", name, {"calls": CALLS}, targets=ROUTED)
    for name in vars(broken_adapters)
    if name.startswith("Route") and name not in ("Route", "RouteAdapter")
}
CASES |= {
    "TimerForOthers": broken("Timer", "Good", devices=["cuda"]),
    "TimerHeavyProbe": broken("Timer", "Good", probe="broken_probes:heavy"),
    "TimerRepeats": broken("Timer", "Repeats", repeats=True),
    "TimerRepeatsWithOthers": broken("Timer", "RepeatsWithOthers", repeats=True),
    "TimerRepeatsUntold": broken("Timer", "Repeats"),
    "TimerCareless": broken("Timer", "Careless", resolution_ms=1e-3),
    "TimerFactory": (TimerConformance, TimerCase(record="broken_timers:Good")),
    "EvaluatorForOthers": broken("Evaluator", "Good", op_types=["gemm"]),
    "EvaluatorFallback": broken("Evaluator", "Good", op_types=[]),
    "KeysForOthers": broken("Keys", "Good", op_types=["gemm"]),
    "KeysLoud": broken("Keys", "Good", op_types=["Toy"]),
    "AdapterMissing": broken(
        "Adapter", "Missing", targets=[*TARGETS, "broken_library.no_such_function"]
    ),
    "AdapterProbeImports": broken("Adapter", "Good", probe="broken_probes:imports_library"),
    "AdapterNoLibrary": broken("Adapter", "Good", probe="broken_probes:unavailable"),
    "AdapterArguments": broken(
        "Adapter",
        "LooksAtArguments",
        {"arguments": {"broken_library.Wrapper.run": run_arguments}},
    ),
}
globals().update(suites_of(CASES))
