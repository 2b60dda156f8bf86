"""A patched function: what is offered to what is enabled, and what the caller gets."""

from __future__ import annotations

import gc
import importlib.util
import inspect
import logging
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from flashinfer_bench.integration import routed
from flashinfer_bench.integration.routing import (
    Understood,
    UnroutableError,
    route_calls,
)
from flashinfer_bench.integration.slots import board

spec = importlib.util.spec_from_file_location(
    "routed_use", Path(__file__).with_name("routed_use.py")
)
routed_use = importlib.util.module_from_spec(spec)
spec.loader.exec_module(routed_use)
Library, Runtime = routed_use.Library, routed_use.Runtime
ScaleRoute, Scaling = routed_use.ScaleRoute, routed_use.Scaling
missing, negative = routed_use.missing, routed_use.negative
nothing_enabled, library = routed_use.nothing_enabled, routed_use.library
wrap, enable = routed_use.wrap, routed_use.enable
counts, watch = routed_use.counts, routed_use.watch


class TestNothingEnabled:
    def test_original_gets_the_very_arguments(self, library):
        wrapper, rows, out = wrap(library), [1.0, 2.0], [0.0, 0.0]
        assert wrapper(rows, 3, out=out) is out
        assert library.calls[0][0] is rows
        assert library.calls[0][3] is out

    def test_nothing_is_counted(self, library):
        wrap(library)([1.0], 2)
        assert counts() == {"calls": 0, "routed": 0, "refused": {}}

    def test_wrapper_looks_like_the_original(self, library):
        original = library.function()
        wrapper = route_calls(ScaleRoute(), original)
        assert wrapper.__wrapped__ is original
        assert (wrapper.__name__, wrapper.__doc__) == ("scale", "Multiply.")
        assert inspect.signature(wrapper) == inspect.signature(original)

    def test_wrapper_of_a_callable_object(self):
        class Kernel:
            def __call__(self, input, weight):
                return "kernel"

        assert route_calls(ScaleRoute(), Kernel())([1.0], 2) == "kernel"

    def test_route_is_not_asked(self, library):
        class Never(ScaleRoute):
            def understand(self, *args, **kwargs):
                raise AssertionError("asked")

        assert wrap(library, Never())([1.0], 2) == [2.0]

    def test_wrapper_and_slot_go_with_the_last_reference(self, library):
        wrapper = wrap(library)
        slot = weakref.ref(wrapper.__apply_slot__)
        del wrapper
        gc.collect()
        assert slot() is None

    def test_importing_is_light(self):
        code = (
            "import sys, flashinfer_bench.integration.routing; "
            "print([m for m in ('torch', 'pydantic', 'numpy') if m in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout.strip() == "[]", done.stderr


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

    def test_a_fallback_that_returns_none_is_not_asked_again(self):
        calls = []
        wrapper = route_calls(ScaleRoute(), lambda input, weight: calls.append(input))
        enable(missing)
        assert wrapper([1.0, 2.0], 3) is None
        assert len(calls) == 1

    def test_what_the_fallback_returned_counts(self, library):
        """A runtime may hand on something else than it got."""
        wrapper = wrap(library)
        enable(lambda args, kwargs, fallback: fallback(*args) and "changed")
        assert wrapper([1.0, 2.0], 3) == [3.0, 6.0]

    def test_none_as_a_result_is_delivered(self, library):
        class Silent(ScaleRoute):
            def deliver(self, understood, result):
                return ("delivered", result)

        wrapper = wrap(library, Silent())
        enable(lambda args, kwargs, fallback: None)
        assert wrapper([1.0, 2.0], 3) == ("delivered", None)

    def test_definitions_that_nobody_has(self, library):
        wrapper = wrap(library)
        enable()
        assert wrapper([1.0], 3) == [3.0]
        assert counts() == {"calls": 1, "routed": 0, "refused": {routed.NOT_WANTED: 1}}

    def test_disabled_again(self, library):
        wrapper = wrap(library)
        runtime = enable()
        board.remove(runtime)
        assert wrapper([1.0, 2.0], 3) == [3.0, 6.0]
        assert counts()["calls"] == 0

    def test_could_be(self):
        route = ScaleRoute()
        assert [route.could_be(name) for name in ("scale_h8", "Scale", "scale", "x_scale_h8")] == [
            *(True, True, False, False)
        ]

    def test_patterns_tell_case_apart(self):
        assert not ScaleRoute().could_be("SCALE_H8")


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

    def test_a_parameter_that_the_route_does_not_know(self, library):
        """A later release may have more of them."""

        class Older(ScaleRoute):
            def understand(self, input, weight, eps=1e-6):
                return Understood(f"scale_h{len(input)}", (input, weight, eps))

        wrapper = wrap(library, Older())
        enable()
        assert wrapper([1.0, 2.0], 3, enable_pdl=True) == [3.0, 6.0]
        assert wrapper([1.0, 2.0], 3) == [-1.0, -2.0]
        assert counts() == {"calls": 2, "routed": 1, "refused": {routed.ARGUMENTS: 1}}

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

    @pytest.mark.parametrize("name", [None, 3, ["list"], {}])
    def test_names_that_are_none(self, library, name):
        class Nameless(ScaleRoute):
            def understand(self, input, weight):
                return Understood(name, (input, weight, 1e-6))

        wrapper = wrap(library, Nameless())
        enable()
        assert wrapper([1.0, 2.0], 3) == [3.0, 6.0]
        assert sum(counts()["refused"].values()) == 1
        assert routed.ARGUMENTS not in counts()["refused"]

    def test_what_the_original_raises_goes_on(self, library):
        wrapper = wrap(library)
        enable(missing)
        with pytest.raises(TypeError, match=r"can't multiply|unsupported operand"):
            wrapper([None, None], 2.0)
        assert len(library.calls) == 1

    def test_unroutable_of_the_original_is_not_ours(self):
        def original(input, weight):
            raise UnroutableError("somebody else's")

        wrapper = route_calls(ScaleRoute(), original)
        enable(missing)
        with pytest.raises(UnroutableError, match="somebody else's"):
            wrapper([1.0, 2.0], 3)
        assert counts()["refused"] == {}

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

    def test_original_that_raises_after_a_failed_delivery(self):
        def original(input, weight):
            raise KeyError("the program's own")

        class Failing(ScaleRoute):
            def deliver(self, understood, result):
                raise AttributeError("no such thing")

        wrapper = route_calls(Failing(), original)
        enable()
        with pytest.raises(KeyError) as caught:
            wrapper([1.0, 2.0], 3)
        assert caught.value.__context__ is None

    def test_what_a_strict_runtime_raises_goes_on(self, library):
        def strict(args, kwargs, fallback):
            raise ZeroDivisionError("of a solution")

        wrapper = wrap(library)
        runtime = enable(strict)
        with pytest.raises(ZeroDivisionError):
            wrapper([1.0, 2.0], 3)
        board.remove(runtime)
        enable()
        assert wrapper([1.0, 2.0], 3) == [-1.0, -2.0]  # it is not inside of a call any more


class TestAccepts:
    class Choosy(ScaleRoute):
        def __init__(self):
            self.asked = []

        def facts(self, understood):
            return understood.inputs[2]

        def accepts(self, definition, understood):
            self.asked.append((definition, understood.inputs[2]))
            return None if understood.inputs[2] == definition else "another eps"

    def test_a_call_that_is_none_of_the_definition(self, library):
        wrapper = wrap(library, self.Choosy())
        enable(negative, definitions={"scale_h2": 1e-5})
        assert wrapper([1.0, 2.0], 3) == [3.0, 6.0]
        assert wrapper([1.0, 2.0], 3, 1e-5) == [-1.0, -2.0]
        assert counts() == {"calls": 2, "routed": 1, "refused": {"another eps": 1}}

    def test_asked_once_for_the_same(self, library):
        route = self.Choosy()
        wrapper = wrap(library, route)
        enable(negative, definitions={"scale_h2": 1e-5})
        for _ in range(5):
            wrapper([1.0, 2.0], 3)
            wrapper([1.0, 2.0], 3, 1e-5)
        assert route.asked == [(1e-5, 1e-6), (1e-5, 1e-5)]

    def test_asked_anew_for_another_definition_of_that_name(self, library):
        wrapper = wrap(library, self.Choosy())
        enable(negative, definitions={"scale_h2": 1e-5})
        assert wrapper([1.0, 2.0], 3) == [3.0, 6.0]
        enable(negative, definitions={"scale_h2": 1e-6})
        assert wrapper([1.0, 2.0], 3) == [-1.0, -2.0]

    def test_without_the_definition_the_name_decides(self, library):
        wrapper = wrap(library, self.Choosy())
        enable()
        assert wrapper([1.0, 2.0], 3, 7.0) == [-1.0, -2.0]

    def test_watchers_are_not_told_of_what_is_not_accepted(self, library):
        wrapper = wrap(library, self.Choosy())
        enable(negative, definitions={"scale_h2": 1e-5})
        notes, end = watch("scale_h2")
        wrapper([1.0, 2.0], 3)
        end()
        assert notes == []

    def test_verdicts_are_bounded(self, library):
        route = self.Choosy()
        wrapper = wrap(library, route)
        enable(negative, definitions={"scale_h2": 1e-5})
        for number in range(1200):
            wrapper([1.0, 2.0], 3, float(number + 1))
        assert len(route.asked) == 1200
        assert wrapper([1.0, 2.0], 3, 1e-5) == [-1.0, -2.0]

    @pytest.mark.parametrize("broken", ["facts", "accepts"])
    def test_failures_go_to_the_original(self, library, broken):
        def fail(*args):
            raise TypeError("no")

        route = self.Choosy()
        setattr(route, broken, fail)
        wrapper = wrap(library, route)
        enable(negative, definitions={"scale_h2": 1e-5})
        assert wrapper([1.0, 2.0], 3) == [3.0, 6.0]
        assert counts()["refused"] == {routed.FAILED: 1}
