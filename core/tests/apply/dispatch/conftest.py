"""Definitions, solutions that record their calls, and dispatchers of them."""

from __future__ import annotations

from importlib import import_module

import pytest

torch = pytest.importorskip("torch")

from fib_tests.builds import helper_cache as helper_cache  # noqa: E402
from fib_tests.definitions import definition  # noqa: E402
from flashinfer_bench.apply.config import ApplyConfig  # noqa: E402
from flashinfer_bench.apply.dispatch import Dispatcher, Target, recognition  # noqa: E402
from flashinfer_bench.apply.dispatch import dispatcher as dispatcher_module  # noqa: E402
from flashinfer_bench.apply.dispatch.recognition import by_torch, tensor_guards  # noqa: E402
from flashinfer_bench.apply.dispatch.target import by_names  # noqa: E402
from flashinfer_bench.apply.keys import AxesOnlyKeyBuilder  # noqa: E402

MATRIX = {"shape": ["n", "k"], "dtype": "float32"}


def define(inputs=None, outputs=None, *, name="add_k4", op_type="op"):
    """Return a definition; by default two matrices in, one out."""
    inputs = inputs or {"x": MATRIX, "y": MATRIX}
    outputs = {"z": MATRIX} if outputs is None else outputs
    return definition(name, inputs, outputs, op_type=op_type, k=4)


class Solution:
    """A function that counts its calls, and does as it is told."""

    def __init__(self, function):
        self.function = function
        self.calls = 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self.function(*args, **kwargs)


class Resolver:
    """Gives the same target for all keys, or what a function says."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = []

    def resolve(self, key):
        self.asked.append(key)
        return self.answer if isinstance(self.answer, (Target, type(None))) else self.answer(key)


class Original:
    """A fallback that counts its calls; what it returns can be told from any solution's result."""

    def __init__(self, function=None):
        self.function = function
        self.calls = []

    def __call__(self, *args, **kwargs):
        self.calls.append((args, kwargs))
        return "original" if self.function is None else self.function(*args, **kwargs)


class Bench:
    """A dispatcher with all that belongs to it."""

    def __init__(self, solution, definition=None, *, original=None, **options):
        self.definition = definition or define()
        by_keyword = options.pop("by_keyword", False)
        takes_outputs = options.pop("destination_passing", False)
        self.solution = solution
        if callable(solution) and not isinstance(solution, Target):
            self.solution = solution if isinstance(solution, Solution) else Solution(solution)
            function = self.solution
            if by_keyword:
                function = by_names(function, [*self.definition.inputs])
            solution = Target(function, self.definition, "best", takes_outputs)
        self.resolver = options.pop("resolver", None) or Resolver(solution)
        self.original = Original(original)
        builder = options.pop("key_builder", AxesOnlyKeyBuilder)
        made = {name: options.pop(name) for name in ("stats",) if name in options}
        self.dispatcher = Dispatcher(
            self.definition,
            self.resolver,
            ApplyConfig(**{name: options.pop(name) for name in list(options) if name != "device"}),
            key_builder=builder(self.definition) if builder is not None else None,
            device=options.pop("device", "cpu"),
            **made,
        )

    def __call__(self, *args, **kwargs):
        return self.dispatcher.call(args, kwargs or None, self.original)

    def alone(self, *args, **kwargs):
        """Call without a fallback."""
        return self.dispatcher.call(args, kwargs or None, None)

    @property
    def stats(self):
        return self.dispatcher.stats

    @property
    def state(self):
        return [entry.state for entry in self.dispatcher.entries()]


@pytest.fixture
def helper(helper_cache, monkeypatch):
    """What makes recognisers with the helper."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(helper_cache))
    import_module("fib_apply_helper").helper.cache_clear()
    made = recognition.by_helper()
    assert made is not None
    return made


@pytest.fixture(params=["helper", "torch", "python"])
def guards(request, monkeypatch):
    """Run a test with each way to recognise calls."""
    if request.param == "helper":
        by = request.getfixturevalue("helper")
    else:
        by = by_torch(tensor_guards()) if request.param == "torch" else None
    monkeypatch.setattr(dispatcher_module, "recognition", lambda: by)
    return request.param


@pytest.fixture
def bench():
    """Make a `Bench`."""
    return Bench


@pytest.fixture
def make_definition():
    """Make a definition."""
    return define


@pytest.fixture
def xy():
    """Two inputs of the default definition."""
    return torch.arange(12.0).view(3, 4), torch.ones(3, 4)
