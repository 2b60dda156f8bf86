"""A patched function: what is offered to what is enabled, and what the caller gets."""

from __future__ import annotations

import inspect
import logging

import pytest

from fib_tests.routed_use import (
    ScaleRoute,
    counts,
    enable,
    missing,
    nothing_enabled,  # noqa: F401 - a fixture for each test
    wrap,
)
from flashinfer_bench.routing import routes as routed
from flashinfer_bench.routing.patch_points import router
from flashinfer_bench.routing.routes import (
    route_calls,
)


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
        assert counts()["refused"] == {"outputs of another size": 1}

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
