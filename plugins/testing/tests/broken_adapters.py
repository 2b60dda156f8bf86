"""Adapters with one defect each: the conformance kit is checked against them."""

import functools
import os

from flashinfer_bench.routing import Adapter, PatchSpec

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
