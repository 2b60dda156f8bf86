"""A made-up library with functions on torch tensors, their routes, and datasets for them."""

from __future__ import annotations

import json

import torch

from fib_tests import runtime_dataset
from fib_tests.runtime_dataset import Dataset
from flashinfer_bench.apply.api import enable_apply
from flashinfer_bench.apply.config import ApplyConfig
from flashinfer_bench.routing.routes import (
    Route,
    Understood,
    UnroutableError,
    route_calls,
    signature_of,
)

ROWS = {"shape": ["n", "k"], "dtype": "float32"}
ROW = {"shape": ["k"], "dtype": "float32"}
SCALAR = {"shape": None, "dtype": "float32"}


class NormRoute(Route):
    """``norm(input, weight, eps=1e-6, out=None)``, which multiplies rows by a weight."""

    label = "library.norm"
    parameters = signature_of("hidden_states", "weight", eps=1e-6)
    definitions = ("norm_k*",)

    def understand(self, input, weight, eps=1e-6, out=None):
        return Understood(f"norm_k{input.shape[-1]}", (input, weight, eps), out)

    def deliver(self, understood, result):
        out = understood.rest
        if out is None:
            return result
        if result.shape != out.shape:
            raise UnroutableError("outputs of another shape")
        return out.copy_(result)

    def outputs(self, original, understood, inputs):
        return original(*inputs)


class Library:
    """Counts calls of the original."""

    def __init__(self, route=NormRoute, factor=1.0):
        self.calls = 0
        self.factor = factor
        self.norm = route_calls(route(), self._original)

    def _original(self, input, weight, eps=1e-6, out=None):
        self.calls += 1
        result = input * weight * self.factor
        return result if out is None else out.copy_(result)


def definition(name="norm_k4", **changes):
    return {
        "name": name,
        "op_type": "norm",
        "axes": {"n": {"type": "var"}, "k": {"type": "const", "value": 4}},
        "inputs": {"hidden_states": ROWS, "weight": ROW},
        "outputs": {"output": ROWS},
        "reference": "def run(hidden_states, weight):\n    return hidden_states * weight\n",
        **changes,
    }


WITH_EPS = {
    # In another order than that of the function.
    "inputs": {"eps": SCALAR, "weight": ROW, "hidden_states": ROWS},
    "reference": "def run(eps, weight, hidden_states):\n    return hidden_states * weight\n",
}


def dataset(tmp_path, code, name="norm_k4", sizes=(2,), **changes):
    """Return a dataset with one winner for some sizes."""
    made = Dataset(tmp_path / "dataset")
    made.put(f"definitions/{name}.json", json.dumps(definition(name, **changes)))
    solution = runtime_dataset.solution("best", name, source="{tag}", tag=code)
    made.put(f"solutions/{name}/best.json", json.dumps(solution))
    inputs = {each: {"type": "random"} for each in definition(name, **changes)["inputs"]}
    if "eps" in inputs:
        inputs["eps"] = {"type": "scalar", "value": 1e-6}
    for size in sizes:
        record = runtime_dataset.trace("best", size, of=name)
        record["workload"]["inputs"] = inputs
        made.put(f"traces/norm/{name}.{size}.jsonl", json.dumps(record) + "\n")
    return made


TIMES = "def run(hidden_states, weight):\n    return hidden_states * weight\n"
MINUS = "def run(hidden_states, weight):\n    return -hidden_states * weight\n"
MINUS_EPS = "def run(eps, weight, hidden_states):\n    return -hidden_states * weight + eps\n"
FAILS = "def run(hidden_states, weight):\n    raise ZeroDivisionError('inside')\n"


def rows(count=2, k=4, value=3.0, **options):
    return torch.full((count, k), value, **options)


W = torch.full((4,), 2.0)


def enabled(where, **settings):
    return enable_apply(str(where), apply_config=ApplyConfig(**settings))


class AddRoute(Route):
    """``add_(input, residual)``: adds the one to the other, in place."""

    label = "library.add_"
    parameters = signature_of("input", "residual")
    definitions = ("add_k*",)

    def understand(self, input, residual):
        return Understood(f"add_k{input.shape[-1]}", (input, residual))

    def deliver(self, understood, result):
        residual = understood.inputs[1]
        if result.shape != residual.shape:
            raise UnroutableError("outputs of another shape")
        residual.copy_(result)

    def outputs(self, original, understood, inputs):
        original(*inputs)
        return inputs[1]


IN_PLACE = {
    "axes": {"n": {"type": "var"}, "k": {"type": "const", "value": 4}},
    "inputs": {"input": ROWS, "residual": ROWS},
    "outputs": {"sum": {**ROWS, "param": "residual"}},
    "reference": "def run(input, residual):\n    return residual + input\n",
}
