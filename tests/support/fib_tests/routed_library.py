"""A made-up library with an odd function or two, and the routes of an adapter for it.

Nothing here needs torch: "tensors" are lists of floats.
"""

from __future__ import annotations

from typing import ClassVar

from flashinfer_bench.routing.patch_points import router
from flashinfer_bench.routing.routes import (
    Route,
    RouteAdapter,
    Understood,
    UnroutableError,
    signature_of,
)


class Library:
    """One library: what its function was asked, and what it returned last."""

    def __init__(self):
        self.calls = []

    def function(self):
        """Return `scale(input, weight, eps=1e-6, out=None, *, enable_pdl=None)`."""

        def scale(input, weight, eps=1e-6, out=None, *, enable_pdl=None):
            """Multiply."""
            self.calls.append((input, weight, eps, out, enable_pdl))
            values = [each * weight for each in input]
            if out is None:
                return values
            out[:] = values
            return out

        return scale


class ScaleRoute(Route):
    label = "library.scale"
    parameters = signature_of("hidden_states", "weight", eps=1e-6)
    definitions = ("scale_h*", "Scale")

    def understand(self, input, weight, eps=1e-6, out=None, *, enable_pdl=None):
        if not isinstance(input, list):
            raise UnroutableError("no list")
        if out is not None and len(out) != len(input):
            raise UnroutableError("out of another size")
        return Understood(f"scale_h{len(input)}", (input, weight, eps), out)

    def deliver(self, understood, result):
        out = understood.rest
        if out is None:
            return result
        if len(result) != len(out):
            raise UnroutableError("outputs of another size")
        out[:] = result
        return out

    def outputs(self, original, understood, inputs):
        return original(*inputs)


class Scaling(RouteAdapter):
    routes: ClassVar = {"library.scale": ScaleRoute, "library.ops.Scaler.scale": ScaleRoute}


class Runtime:
    """Takes calls of some definitions by one function, `call(args, kwargs, fallback)`, or none."""

    def __init__(self, call, *names):
        self._call = call
        self._names = names

    def names(self):
        return self._names

    def route(self, name, point):
        return self._call

    def stop(self):
        router.remove(self)


def negative(args, kwargs, fallback):
    """Answer as no original would."""
    return [-each for each in args[0]]


def missing(args, kwargs, fallback):
    """Have the original answer."""
    return fallback(*args, **(kwargs or {}))
