"""Adapters with one defect each: the conformance kit is checked against them."""

import functools
import os

from flashinfer_bench.routing import (
    Adapter,
    PatchSpec,
    Route,
    RouteAdapter,
    Understood,
    UnroutableError,
    signature_of,
)

SPECS = (
    PatchSpec("broken_library.scale", "function", "scale"),
    PatchSpec("broken_library.Wrapper.plan", "method", "plan", ctx_key="wrapper"),
    PatchSpec("broken_library.Wrapper.run", "method", "run", ctx_key="wrapper"),
)


class Good(Adapter):
    def targets(self):
        return SPECS

    def make_wrapper(self, spec, orig):
        @functools.wraps(orig)
        def wrapper(*args, **kwargs):
            return self.call(spec, orig, args, kwargs)

        return wrapper

    def call(self, spec, orig, args, kwargs):
        return orig(*args, **kwargs)


class WantsLibrary(Good):
    def __init__(self, library):
        super().__init__()


class ImportsTorch(Good):
    def __init__(self):
        import torch  # noqa: F401


class TargetsRaise(Good):
    def targets(self):
        raise RuntimeError("ask later")


class Missing(Good):
    def targets(self):
        return (*SPECS, PatchSpec("broken_library.no_such_function", "function", "gone"))


class DropsNames(Good):
    def call(self, spec, orig, args, kwargs):
        return orig(*args)


class LooksAtArguments(Good):
    def call(self, spec, orig, args, kwargs):
        if spec.name == "run" and args[1].shape[0] > 8:
            return orig(*args, **kwargs)
        return orig(*args, **kwargs)


class Patches(Good):
    """Does the work of the PatchManager."""

    def __init__(self):
        import broken_library

        broken_library.scale = functools.wraps(broken_library.scale)(lambda *args: None)


class CannotWrap(Good):
    def make_wrapper(self, spec, orig):
        if spec.name == "plan":
            raise NotImplementedError(spec.name)
        return super().make_wrapper(spec, orig)


class Careless(Good):
    """Passes calls on as it should; whatever else can be wrong is wrong."""

    def __init__(self):
        os.environ["TOY_PATCHED"] = "1"
        self.originals = {}  # of each target the last one

    def make_wrapper(self, spec, orig):
        self.originals[spec.path] = orig

        def wrapper(*args, **kwargs):
            try:
                return self.originals[spec.path](*args, **kwargs)
            except ValueError:
                return None

        return wrapper


class Activate(Route):
    label = "broken_library.activate"
    parameters = signature_of("x")
    definitions = ("toy_double_*",)

    def understand(self, x, mode="none", *, out=None, flag=False):
        if mode != "none" or flag:
            raise UnroutableError("not a plain call")
        return Understood(f"toy_double_k{x.shape[1]}", (x,), out)

    def deliver(self, understood, result):
        out = understood.rest
        return result if out is None else out.copy_(result)

    def outputs(self, original, understood, inputs):
        return original(*inputs)


class AddInto(Route):
    label = "broken_library.add_into"
    parameters = signature_of("x", "residual")
    definitions = ("toy_add_*",)

    def understand(self, x, *, residual):
        return Understood(f"toy_add_k{x.shape[1]}", (x, residual), residual)

    def deliver(self, understood, result):
        understood.rest.copy_(result)


def routes(activate=Activate, add_into=AddInto):
    """Return an adapter for these routes."""
    table = {"broken_library.activate": activate, "broken_library.add_into": add_into}
    return type("Routes", (RouteAdapter,), {"routes": table})


def changed(route, **methods):
    """Return a route with other methods."""
    return type(route.__name__, (route,), methods)


def any_call(self, x, mode="none", *, out=None, flag=False):
    return Understood(f"toy_double_k{x.shape[1]}", (x,), out)


def any_argument(self, x, mode="none", *, out=None, flag=False, **others):
    return Activate.understand(self, x, mode, out=out, flag=flag)


def no_buffer(self, x, mode="none", *, out=None, flag=False):
    return Activate.understand(self, x, mode, flag=flag)


def swapped(self, x, *, residual):
    return Understood(f"toy_add_k{x.shape[1]}", (x, x), residual)


RouteGood = routes()
RouteWrongArgument = routes(add_into=changed(AddInto, understand=swapped))
RouteAnswersAll = routes(changed(Activate, understand=any_call))
RouteTakesAnything = routes(changed(Activate, understand=any_argument))
RouteForgetsBuffer = routes(changed(Activate, understand=no_buffer))
RouteOtherBuffer = routes(changed(Activate, deliver=lambda self, call, result: result.clone()))
RouteTuple = routes(changed(Activate, deliver=lambda self, call, result: (result,)))
RouteNone = routes(changed(Activate, deliver=lambda self, call, result: None))
RouteReturns = routes(add_into=changed(AddInto, deliver=lambda self, call, result: result))
RouteNever = routes(changed(Activate, definitions=("no_such_definition",)))
RouteInputsChanged = routes(
    changed(Activate, deliver=lambda self, call, result: call.inputs[0].copy_(result))
)
