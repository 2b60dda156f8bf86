"""Adapters with one defect each: the conformance kit is checked against them."""

from __future__ import annotations

import contextlib
import functools

from flashinfer_bench.integration import Adapter, PatchSpec

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


class Plain:
    targets, make_wrapper, call = Good.targets, Good.make_wrapper, Good.call


class WantsLibrary(Good):
    def __init__(self, library):
        super().__init__()


class Imports(Good):
    def __init__(self):
        import broken_library

        self.library = broken_library


class SetsVariable(Good):
    def __init__(self):
        import os

        os.environ["TOY_PATCHED"] = "1"


class OtherTargets(Good):
    def targets(self):
        return SPECS[:2]


class TargetsRaise(Good):
    def targets(self):
        raise RuntimeError("ask later")


class Paths(Good):
    def targets(self):
        return [spec.path for spec in SPECS]


class TwiceTheSame(Good):
    def targets(self):
        return (*SPECS, SPECS[0])


class Iterator(Good):
    def __init__(self):
        self.left = list(SPECS)

    def targets(self):
        left, self.left = self.left, self.left[1:]
        return left


class WrongKind(Good):
    def targets(self):
        return (PatchSpec("broken_library.scale", "method", "scale"), *SPECS[1:])


class Missing(Good):
    def targets(self):
        return (*SPECS, PatchSpec("broken_library.no_such_function", "function", "gone"))


class NoWraps(Good):
    def make_wrapper(self, spec, orig):
        def wrapper(*args, **kwargs):
            return orig(*args, **kwargs)

        return wrapper


class NoSignature(Good):
    def make_wrapper(self, spec, orig):
        wrapper = super().make_wrapper(spec, orig)
        del wrapper.__wrapped__
        return wrapper


class CallsTwice(Good):
    def call(self, spec, orig, args, kwargs):
        orig(*args, **kwargs)
        return orig(*args, **kwargs)


class NeverCalls(Good):
    def call(self, spec, orig, args, kwargs):
        return None


class DropsNames(Good):
    def call(self, spec, orig, args, kwargs):
        return orig(*args)


class Copies(Good):
    def call(self, spec, orig, args, kwargs):
        return [orig(*args, **kwargs)]


class LooksAtArguments(Good):
    def call(self, spec, orig, args, kwargs):
        if spec.name == "run" and args[1].shape[0] > 8:
            return orig(*args, **kwargs)
        return orig(*args, **kwargs)


class CallsAtOnce(Good):
    def make_wrapper(self, spec, orig):
        with contextlib.suppress(TypeError):
            orig()
        return super().make_wrapper(spec, orig)


class Swallows(Good):
    def call(self, spec, orig, args, kwargs):
        try:
            return orig(*args, **kwargs)
        except ValueError:
            return None


class Retries(Good):
    def call(self, spec, orig, args, kwargs):
        try:
            return orig(*args, **kwargs)
        except ValueError:
            return orig(*args, **kwargs)


class KeepsOriginals(Good):
    """One original for each target, that of the last wrapper."""

    def __init__(self):
        self.originals = {}

    def make_wrapper(self, spec, orig):
        self.originals[spec.path] = orig
        return super().make_wrapper(spec, orig)

    def call(self, spec, orig, args, kwargs):
        return self.originals[spec.path](*args, **kwargs)


class ReturnsOriginal(Good):
    def make_wrapper(self, spec, orig):
        return orig


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
