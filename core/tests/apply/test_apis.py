"""What an API is, and how its calls find their way."""

from __future__ import annotations

import gc
import inspect
import logging
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.apply.apis import (
    Api,
    ApiRegistry,
    Bound,
    UnroutableError,
    apis,
    quick_binder,
    routed,
)
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.integration.slots import Slot, board


class Answers:
    """A runtime that answers every call of some definitions with what it was given."""

    def __init__(self, *names):
        self.known = names
        self.calls = []

    def names(self):
        return self.known

    def route(self, name, slot):
        def call(args, kwargs, fallback):
            self.calls.append((name, args, kwargs))
            return "answered"

        return call

    def stop(self):
        board.remove(self)


@pytest.fixture
def answers():
    runtime = Answers("norm_h8", "norm_h16")
    board.push(runtime)
    yield runtime
    runtime.stop()


def norm(x, weight, eps=1e-6, *, out=None):
    """Is what a library has."""
    return ("original", x, weight, eps, out)


def norm_api(name="library.norm", **fields):
    fields.setdefault("definition_of", lambda args, kwargs: f"norm_h{args[0]}")
    return Api.of_function(norm, name, **fields)


class TestApi:
    def test_a_function_gives_name_and_signature(self):
        api = Api.of_function(norm)
        assert api.name == f"{__name__}.norm"
        assert api.signature == inspect.signature(norm)

    def test_a_name_of_its_own_comes_first(self):
        assert norm_api().name == "library.norm"

    def test_a_function_that_tells_nothing_has_no_signature(self):
        class Silent:
            __module__, __qualname__ = "somewhere", "Silent"
            __signature__ = "none of this kind"

            def __call__(self):
                return None

        assert Api.of_function(Silent(), "silent").signature is None

    def test_it_may_be_of_any_definition_unless_it_says_otherwise(self):
        assert norm_api().may_be("anything")
        picky = norm_api(could_be=lambda name: name.startswith("norm_"))
        assert picky.may_be("norm_h8")
        assert not picky.may_be("gemm")

    def test_a_slot_with_a_name_is_of_that_definition_only(self):
        api = Api.of_slot(Slot("norm_h8", "mine.norm", inspect.signature(norm)))
        assert api.name == "mine.norm"
        assert api.signature == inspect.signature(norm)
        assert api.may_be("norm_h8")
        assert not api.may_be("norm_h16")

    def test_a_slot_without_a_name_is_of_any(self):
        assert Api.of_slot(Slot(None, "mine.norm")).may_be("norm_h16")

    def test_two_apis_are_never_the_same(self):
        assert norm_api() != norm_api()


class TestRegistry:
    def test_a_slot_has_the_api_that_was_registered(self):
        registry, slot, api = ApiRegistry(), Slot(None, "x"), norm_api()
        registry.register(api, slot)
        assert registry.api_of(slot) is api

    def test_registering_twice_changes_nothing(self):
        registry, slot, api = ApiRegistry(), Slot(None, "x"), norm_api()
        registry.register(api, slot)
        registry.register(api, slot)
        assert registry.api_of(slot) is api

    def test_two_apis_for_a_slot_are_refused(self):
        registry, slot = ApiRegistry(), Slot(None, "x")
        registry.register(norm_api(), slot)
        with pytest.raises(ConfigError, match=r"API other: the slot is that of library\.norm"):
            registry.register(Api("other", definition_of=lambda a, k: None), slot)

    def test_an_api_that_cannot_tell_a_definition_is_refused(self):
        with pytest.raises(ConfigError, match="nothing tells the definition") as caught:
            ApiRegistry().register(Api("mute"), Slot(None, "x"))
        assert "definition_of" in caught.value.hint

    def test_a_slot_with_a_name_tells_it_instead(self):
        registry, slot = ApiRegistry(), Slot("norm_h8", "x")
        registry.register(Api("mute"), slot)
        assert registry.api_of(slot).name == "mute"

    def test_something_else_is_refused(self):
        with pytest.raises(ConfigError, match="is no Api"):
            ApiRegistry().register("norm", Slot("norm_h8", "x"))

    def test_slots_that_are_gone_are_forgotten(self):
        registry, slot = ApiRegistry(), Slot(None, "x")
        registry.register(norm_api(), slot)
        del slot
        gc.collect()
        assert len(registry._apis) == 0

    def test_what_can_be_routed_to_some_definitions(self):
        registry = ApiRegistry()
        slots = {
            "fixed": Slot("norm_h8", "test_apis.fixed"),
            "other": Slot("gemm", "test_apis.other"),
            "any": Slot(None, "test_apis.any"),
            "picky": Slot(None, "test_apis.picky"),
        }
        picky = Api(
            "test_apis.picky", definition_of=lambda a, k: None, could_be=lambda name: name == "gemm"
        )
        registry.register(picky, slots["picky"])
        for slot in slots.values():
            board.connect(slot)

        def names(*definitions):
            found = registry.routable(set(definitions))
            return {api.name for api in found if api.name.startswith("test_apis.")}

        assert names("norm_h8") == {"test_apis.fixed", "test_apis.any"}
        assert names("gemm") == {"test_apis.other", "test_apis.any", "test_apis.picky"}
        assert names() == set()


class TestRouted:
    def test_without_a_runtime_the_original_is_called(self):
        wrapped = routed(norm_api(), norm)
        assert wrapped(8, "w", out="o") == ("original", 8, "w", 1e-6, "o")

    def test_it_keeps_the_clothes_of_the_original(self):
        wrapped = routed(norm_api(), norm)
        assert (wrapped.__name__, wrapped.__doc__) == ("norm", norm.__doc__)
        assert inspect.signature(wrapped) == inspect.signature(norm)

    def test_a_runtime_gets_the_call(self, answers):
        wrapped = routed(norm_api(), norm)
        assert wrapped(8, "w", out="o") == "answered"
        assert wrapped(16, weight="w") == "answered"
        assert wrapped(8, "w") == "answered"
        assert answers.calls == [
            ("norm_h8", (8, "w"), {"out": "o"}),
            ("norm_h16", (16,), {"weight": "w"}),
            ("norm_h8", (8, "w"), None),
        ]

    def test_another_definition_goes_to_the_original(self, answers):
        assert routed(norm_api(), norm)(32, "w")[0] == "original"
        assert answers.calls == []

    def test_no_definition_goes_to_the_original(self, answers):
        wrapped = routed(norm_api(definition_of=lambda args, kwargs: None), norm)
        assert wrapped(8, "w")[0] == "original"

    def test_a_failure_to_tell_is_logged_once(self, answers, caplog):
        def broken(args, kwargs):
            raise AttributeError("no attribute _kv_layout")

        wrapped = routed(norm_api(name="library.broken", definition_of=broken), norm)
        with caplog.at_level(logging.WARNING):
            assert wrapped(8, "w")[0] == "original"
            assert wrapped(8, "w")[0] == "original"
        told = [record for record in caplog.records if "library.broken" in record.getMessage()]
        assert len(told) == 1

    def test_an_api_without_definition_of_is_refused(self):
        with pytest.raises(ConfigError):
            routed(Api("mute"), norm)

    def test_the_process_knows_what_is_behind_it(self):
        api = norm_api()
        wrapped = routed(api, norm)
        assert apis.api_of(wrapped.__apply_slot__) is api


def plain(a, b=2, *, c=3):
    pass


def odd(a, /, b=2, *rest, c=3, **more):
    pass


class TestBinder:
    @pytest.mark.parametrize("function", [plain, odd])
    def test_defaults_are_filled_in(self, function):
        values = quick_binder(inspect.signature(function))((1,), None)
        assert {name: values[name] for name in "abc"} == {"a": 1, "b": 2, "c": 3}

    def test_further_arguments_have_the_names_of_their_parameters(self):
        values = quick_binder(inspect.signature(odd))((1, 2, 3, 4), {"d": 5})
        assert (values["rest"], values["more"]) == ((3, 4), {"d": 5})

    @pytest.mark.parametrize(
        ("args", "kwargs"),
        [
            ((), {}),  # a is missing
            ((1, 2, 3), {}),  # c is by keyword alone
            ((1,), {"a": 1}),  # twice
            ((1,), {"d": 4}),  # unknown
            ((), {"d": 4}),  # as many as there should be, but others
        ],
    )
    def test_arguments_that_do_not_fit_are_left_to_the_original(self, args, kwargs):
        with pytest.raises(UnroutableError) as caught:
            quick_binder(inspect.signature(plain))(args, kwargs)
        assert caught.value.reason == "arguments"

    def test_so_they_are_where_the_signature_is_odd(self):
        with pytest.raises(UnroutableError):
            quick_binder(inspect.signature(odd))((), {"a": 1})


KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@st.composite
def signatures(draw):
    """Draw a signature of parameters a, b, … without stars."""
    count = draw(st.integers(0, 5))
    by_position = draw(st.integers(0, count))
    required = draw(st.integers(0, by_position))
    parameters = []
    for index in range(count):
        kind = KINDS[index >= by_position]
        needed = index < required if index < by_position else draw(st.booleans())
        default = inspect.Parameter.empty if needed else f"default {index}"
        parameters.append(inspect.Parameter("abcde"[index], kind, default=default))
    return inspect.Signature(parameters)


@given(
    signatures(),
    st.lists(st.integers(), max_size=6),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(), max_size=4),
)
def test_binding_is_that_of_python(signature, args, kwargs):
    try:
        expected = signature.bind(*args, **kwargs)
    except TypeError:
        with pytest.raises(UnroutableError):
            quick_binder(signature)(tuple(args), kwargs)
        return
    expected.apply_defaults()
    assert quick_binder(signature)(tuple(args), kwargs) == expected.arguments


def test_a_bound_call_returns_all_outputs_unless_it_says_otherwise():
    assert Bound({"x": 1}) == Bound({"x": 1}, {}, None)


def test_the_module_is_light():
    code = (
        "import sys; import flashinfer_bench.apply.apis, flashinfer_bench.apply.returns; "
        "print([name for name in ('torch', 'pydantic', 'numpy') if name in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.strip() == "[]"
