"""A patched function: what is offered to what is enabled, and what the caller gets."""

from __future__ import annotations

import gc
import inspect
import logging
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import ClassVar

import pytest

import fib_tests
from fib_tests.routed_library import Library, Runtime, ScaleRoute, Scaling, missing, negative
from fib_tests.threads import at_once
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.routing import routes as routed
from flashinfer_bench.routing.binding import reordered, signature_of
from flashinfer_bench.routing.patch_points import router
from flashinfer_bench.routing.routes import route_calls, route_stats


@pytest.fixture(autouse=True)
def nothing_enabled(monkeypatch):
    monkeypatch.setattr(routed, "_counters", {})
    router.clear()
    yield
    router.clear()
    gc.collect()


@pytest.fixture
def library():
    return Library()


def wrap(library, route=None):
    return route_calls(route or ScaleRoute(), library.function())


def enable(call=negative):
    router.push(made := Runtime(call, "scale_h2"))
    return made


def counts():
    return route_stats()["library.scale"]


class TestNothingEnabled:
    def test_original_gets_the_very_arguments(self, library):
        wrapper, rows, out = wrap(library), [1.0, 2.0], [0.0, 0.0]
        assert wrapper(rows, 3, out=out) is out
        assert library.calls[0][0] is rows
        assert library.calls[0][3] is out

    def test_wrapper_looks_like_the_original(self, library):
        original = library.function()
        wrapper = route_calls(ScaleRoute(), original)
        assert wrapper.__wrapped__ is original
        assert (wrapper.__name__, wrapper.__doc__) == ("scale", "Multiply.")
        assert inspect.signature(wrapper) == inspect.signature(original)


class TestTaken:
    def test_runtime_gets_canonical_inputs(self, library):
        seen = []
        wrapper = wrap(library)
        enable(lambda args, kwargs, fallback: seen.append((args, kwargs)) or [0.0, 0.0])
        wrapper([1.0, 2.0], weight=3)
        wrapper(weight=3, input=[1.0, 2.0], eps=1e-5)
        assert seen == [(([1.0, 2.0], 3, 1e-6), None), (([1.0, 2.0], 3, 1e-5), None)]

    def test_result_is_delivered(self, library):
        wrapper, out = wrap(library), [0.0, 0.0]
        enable()
        assert wrapper([1.0, 2.0], 3) == [-1.0, -2.0]
        assert wrapper([1.0, 2.0], 3, out=out) is out
        assert out == [-1.0, -2.0]
        assert library.calls == []
        assert counts() == {"calls": 2, "routed": 2, "refused": {}}

    def test_fallback_is_the_call_as_it_came(self, library):
        wrapper, out, rows = wrap(library), [0.0, 0.0], [1.0, 2.0]
        enable(missing)
        assert wrapper(rows, 3, out=out, enable_pdl=True) is out
        assert len(library.calls) == 1
        assert library.calls[0][0] is rows
        assert library.calls[0][3:] == (out, True)


class TestRefused:
    def test_unroutable(self, library):
        wrapper = wrap(library)
        enable()
        assert wrapper((1.0, 2.0), 3) == [3.0, 6.0]
        assert wrapper((1.0, 2.0), 3) == [3.0, 6.0]
        assert counts() == {"calls": 2, "routed": 0, "refused": {"no list": 2}}

    def test_wrong_arguments_raise_what_the_original_raises(self, library):
        wrapper = wrap(library)
        enable()
        with pytest.raises(TypeError, match=r"scale\(\) missing 1 required positional") as caught:
            wrapper([1.0, 2.0])
        assert caught.value.__context__ is None
        assert counts()["refused"] == {routed.ARGUMENTS: 1}

    @pytest.mark.parametrize("error", [ValueError("inside"), TypeError("inside"), KeyError("k")])
    def test_adapter_that_fails(self, library, caplog, error):
        class Failing(ScaleRoute):
            def understand(self, input, weight):
                raise error

        wrapper = wrap(library, Failing())
        enable()
        with caplog.at_level(logging.WARNING):
            assert wrapper([1.0, 2.0], 3) == [3.0, 6.0]
            assert wrapper([1.0, 2.0], 3) == [3.0, 6.0]
        assert counts()["refused"] == {routed.FAILED: 2}
        assert [each.getMessage() for each in caplog.records] == [
            "library.scale: adapter failed; such calls go to the original"
        ]
        assert caplog.records[0].exc_info[1] is error

    def test_what_the_original_raises_goes_on(self, library):
        wrapper = wrap(library)
        enable(missing)
        with pytest.raises(TypeError, match=r"can't multiply|unsupported operand"):
            wrapper([None, None], 2.0)
        assert len(library.calls) == 1

    def test_undeliverable(self, library):
        wrapper, out = wrap(library), [0.0, 0.0]
        enable(lambda args, kwargs, fallback: [1.0, 2.0, 3.0])
        assert wrapper([1.0, 2.0], 3, out=out) is out
        assert out == [3.0, 6.0]
        assert counts() == {"calls": 1, "routed": 0, "refused": {"outputs of another size": 1}}

    def test_delivery_that_fails(self, library, caplog):
        class Failing(ScaleRoute):
            def deliver(self, understood, result):
                raise AttributeError("no such thing")

        wrapper = wrap(library, Failing())
        enable()
        assert wrapper([1.0, 2.0], 3) == [3.0, 6.0]
        assert counts()["refused"] == {routed.DELIVERY: 1}
        assert "outputs not delivered" in caplog.text

    def test_what_a_strict_runtime_raises_goes_on(self, library):
        def strict(args, kwargs, fallback):
            raise ZeroDivisionError("of a solution")

        wrapper = wrap(library)
        runtime = enable(strict)
        with pytest.raises(ZeroDivisionError):
            wrapper([1.0, 2.0], 3)
        router.remove(runtime)
        enable()
        assert wrapper([1.0, 2.0], 3) == [-1.0, -2.0]  # it is not inside of a call any more


# --------------------------------------------------------- within one another, in threads, watched


def test_calls_inside_of_a_solution_are_its_own(library):
    wrapper = wrap(library)
    enable(lambda args, kwargs, fallback: [*wrapper(args[0], args[1])])
    notes = []
    end = router.observe(lambda *call: notes.append(call), "scale_h2")
    assert wrapper([1.0, 2.0], 3) == [3.0, 6.0]
    end()
    assert len(notes) == 1
    assert counts()["calls"] == 1


def test_counts_of_threads_add_up(library):
    wrapper = wrap(library)
    enable()

    def work():
        for _ in range(500):
            wrapper([1.0, 2.0], 3)
            wrapper((1.0, 2.0), 3)

    at_once(4, work)
    assert counts() == {"calls": 4000, "routed": 2000, "refused": {"no list": 2000}}


class TestAdapter:
    def test_targets(self):
        function, method = Scaling().targets()
        assert (function.path, function.kind, function.name) == (
            *("library.scale", "function", "scale"),
        )
        assert (method.kind, method.name) == ("method", "scale")
        assert function.definitions == ("scale_h*", "Scale")

    def test_kind_that_the_route_says_itself(self):
        class Private(ScaleRoute):
            kind = "method"

        class Adapter(Scaling):
            routes: ClassVar = {"library.lower.scale": Private, "library._Hidden.scale": ScaleRoute}

        assert [each.kind for each in Adapter().targets()] == ["method", "method"]


# -------------------------------------------------------------- while the interpreter is torn down


ADAPTER = """
    import sys
    sys.path.insert(0, {folder!r})
    from flashinfer_bench.routing.routes import Understood, UnroutableError, route_calls
    from flashinfer_bench.routing.patch_points import router
    from fib_tests.routed_library import Library, Runtime, ScaleRoute, negative

    def fail(ending=sys.is_finalizing):
        return ending() and 1 // 0

    def refuse(ending=sys.is_finalizing, error=UnroutableError):
        if ending():
            raise error("no more")

    class Forgetful(ScaleRoute):
        def understand(self, input, weight):
            return Understood({understand}, (input, weight, 1e-6))

        def deliver(self, understood, result):
            return {deliver}

    class Late:
        '''Calls a patched function when it goes: after everything else has gone.'''

        def __init__(self):
            self.function = route_calls(Forgetful(), Library().function())
            self.ending, self.write = sys.is_finalizing, sys.__stdout__.write
            self.flush = sys.__stdout__.flush

        def __del__(self):
            self.write(f"{{self.ending()}} {{self.function([1.0, 2.0], 3)}}")
            self.flush()

    {enable}
    late = Late()
    print(late.function([1.0, 2.0], 3))
    import builtins
    # What is still held in the end loses its globals before this does.
    builtins.held = [*sys.modules.values()]
    builtins.late = late
"""

WORKS = {"understand": '"scale_h2"', "deliver": "result"}
ENABLE = 'router.push(Runtime(negative, "scale_h2"))'


def run(**code: str) -> subprocess.CompletedProcess[str]:
    folder = str(Path(fib_tests.__file__).parents[1])
    text = dedent(ADAPTER).format(**{"folder": folder, "enable": ENABLE, **WORKS, **code})
    command = [sys.executable, "-c", text]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "code",
    [
        {"understand": 'fail() or "scale_h2"'},
        {"understand": 'refuse() or "scale_h2"'},
        {"deliver": "fail() or result"},
        {"deliver": "refuse() or result"},
    ],
)
def test_an_adapter_that_is_gone_is_not_told_of(code):
    done = run(**code)
    assert done.stdout == "[-1.0, -2.0]\nTrue [3.0, 6.0]", done.stderr
    assert done.stderr == ""


def test_a_watcher_that_is_gone_is_not_told_of():
    watching = "router.observe(lambda *_: fail()) and router.clear()"
    done = run(deliver="result", understand='"scale_h2"', enable=watching)
    assert done.stdout == "[3.0, 6.0]\nTrue [3.0, 6.0]", done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["x"], "parameter 'y' is neither"),
        (["x", "y", "eps", "bias"], "no parameter is input 'bias'"),
        (["x", "y", "bias"], "no parameter is input 'bias'"),  # though it is the third, as eps
        (["y", "other"], "no parameter is input 'other'"),
        (["a", "b", "c"], "no parameter is input 'a'"),
    ],
)
def test_inputs_of_a_definition_are_found_by_name_alone(inputs, message):
    with pytest.raises(ConfigError, match=message):
        reordered(None, signature_of("x", "y", eps=1.0), inputs)
