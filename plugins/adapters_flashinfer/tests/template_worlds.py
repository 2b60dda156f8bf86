"""A patched function of a small library, with one solution enabled; and definitions."""

import torch
from making import SCALAR, dataset, define, tensor

from fib_adapters_flashinfer.templates import TemplateRoute
from flashinfer_bench.apply import enable_apply
from flashinfer_bench.routing.routes import route_calls, route_stats


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
    inputs, outputs = (
        {name: SCALAR if axes is None else tensor(*axes) for name, axes in each.items()}
        for each in (inputs, outputs)
    )
    reference = f"def run({', '.join(inputs)}):\n    EPS = {eps}\n    return x\n"
    return dataset(folder, define(name, op_type, sizes, inputs, outputs, reference))


def rows(n=3, h=8, fill=1.0, dtype=torch.bfloat16):
    return torch.full((n, h), fill, dtype=dtype)
