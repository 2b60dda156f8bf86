"""A patched function of a small library, with one solution enabled; and definitions."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from fib_adapters_flashinfer.templates.route import TemplateRoute
from flashinfer_bench.apply import enable_apply
from flashinfer_bench.integration.routing import route_calls, route_stats


class Counted:
    """A function that counts its calls."""

    def __init__(self, function):
        self.function = function
        self.calls = 0
        self.__name__ = function.__name__
        self.__wrapped__ = function

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self.function(*args, **kwargs)


class World:
    """A patched function, with one solution enabled for one definition."""

    def __init__(self, described, name, solution, folder=None):
        self.original = Counted(described.function)
        self.solution = Counted(solution)
        self.route = TemplateRoute(described)
        self.wrapper = route_calls(self.route, self.original)
        self.name = name
        self.folder = folder

    def __call__(self, *args, **kwargs):
        before = self._refused()
        with enable_apply({self.name: self.solution}, dataset=self.folder):
            result = self.wrapper(*args, **kwargs)
            after = self._refused()
        self.reasons = [why for why, count in after.items() if count > before.get(why, 0)]
        return result

    def _refused(self):
        return route_stats().get(self.route.label, {}).get("refused", {})


def definition(folder, name, inputs, outputs, sizes, *, eps=None, op_type="fake"):
    """Write a definition of bfloat16 tensors; None stands for a scalar."""
    shapes = {**inputs, **outputs}
    free = {axis for shape in shapes.values() for axis in shape or () if axis not in sizes}
    spec = {
        each: {"shape": shape, "dtype": "float32" if shape is None else "bfloat16"}
        for each, shape in shapes.items()
    }
    made = {
        "name": name,
        "op_type": op_type,
        "axes": {
            **{axis: {"type": "var"} for axis in sorted(free)},
            **{axis: {"type": "const", "value": size} for axis, size in sizes.items()},
        },
        "inputs": {each: spec[each] for each in inputs},
        "outputs": {each: spec[each] for each in outputs},
        "reference": f"def run({', '.join(inputs)}):\n    EPS = {eps}\n    return x\n",
    }
    file = Path(folder) / "definitions" / op_type / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(made), encoding="utf-8")
    return str(folder)


def rows(n=3, h=8, fill=1.0, dtype=torch.bfloat16):
    return torch.full((n, h), fill, dtype=dtype)
