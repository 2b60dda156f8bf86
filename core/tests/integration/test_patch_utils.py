"""Arguments by name, and a memory for each object."""

from __future__ import annotations

import gc
import inspect
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.integration.utils import ArgBinder, ContextStore


def plan(self, indptr, page_size, *legacy, window=-1, **options):
    """Plan."""


def flat(a, /, b, c=3, *, d=4):
    """Take some."""


class TestArgBinder:
    def test_defaults_are_filled_in(self):
        assert ArgBinder(flat).bind((1,), {"b": 2}) == {"a": 1, "b": 2, "c": 3, "d": 4}

    def test_options_stand_beside_the_others(self):
        """Of FlashInfer's plan: declared in one release, in ``**kwargs`` in the next."""
        bound = ArgBinder(plan).bind(("me", [0], 16, "NONE"), {"sm_scale": 0.5, "window": 3})
        assert bound == {
            "self": "me",
            "indptr": [0],
            "page_size": 16,
            "legacy": ("NONE",),
            "window": 3,
            "sm_scale": 0.5,
        }

    def test_what_does_not_fit(self):
        with pytest.raises(TypeError, match="missing a required argument: 'b'"):
            ArgBinder(flat).bind((1,), {})

    def test_what_has_no_signature(self):
        with pytest.raises(ValueError, match="signature"):
            ArgBinder(min)
        with pytest.raises(TypeError):
            ArgBinder.from_callable(3)

    def test_one_binder_per_function(self):
        assert ArgBinder.from_callable(flat) is ArgBinder.from_callable(flat)

        class Mine(ArgBinder):
            pass

        class Unhashable:
            __hash__ = None

            def __call__(self, x):
                return x

        assert type(Mine.from_callable(flat)) is Mine
        assert ArgBinder.from_callable(Unhashable()).bind((1,), {}) == {"x": 1}

    @given(
        st.lists(st.integers(), max_size=5),
        st.dictionaries(st.sampled_from(["a", "b", "c", "d", "e"]), st.integers(), max_size=4),
    )
    def test_it_agrees_with_a_call(self, args, kwargs):
        seen = {}

        def target(a, b=2, *rest, c=3, **others):
            seen.update({"a": a, "b": b, "rest": rest, "c": c, **others})

        try:
            target(*args, **kwargs)
        except TypeError:
            with pytest.raises(TypeError):
                ArgBinder(target).bind(tuple(args), kwargs)
        else:
            assert ArgBinder(target).bind(tuple(args), kwargs) == seen
            assert inspect.signature(target).bind(*args, **kwargs)


class Thing:
    def __eq__(self, other):
        return True

    __hash__ = None


class TestContextStore:
    def test_each_object_has_its_own(self):
        store, one, two = ContextStore(), Thing(), Thing()
        store.get(one)["x"] = 1
        assert store.get(one) is store.get(one)
        assert store.get(one) == {"x": 1}
        assert store.get(two) == {}
        store.discard(one)
        store.discard(one)
        assert store.get(one) == {}

    def test_it_goes_with_the_object(self):
        store = ContextStore()
        things = [Thing() for _ in range(100)]
        for number, thing in enumerate(things):
            store.get(thing)["n"] = number
        assert len(store) == 100
        del things, thing
        gc.collect()
        assert len(store) == 0

    def test_an_identity_that_is_used_again(self):
        store = ContextStore()
        for _ in range(1000):
            thing = Thing()
            assert store.get(thing) == {}
            store.get(thing)["used"] = True

    def test_what_cannot_be_referred_to_weakly(self):
        store = ContextStore()
        store.get(3)["x"] = 1
        assert store.get(3) == {}
        assert len(store) == 0

    def test_threads(self):
        store, things, found = ContextStore(), [Thing() for _ in range(50)], []

        def ask():
            found.append([id(store.get(thing)) for thing in things])

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert all(each == found[0] for each in found)

    def test_threads_that_ask_for_a_new_object_at_once(self):
        for _ in range(200):
            store, thing, found = ContextStore(), Thing(), []
            start = threading.Barrier(4)

            def ask(store=store, thing=thing, found=found, start=start):
                start.wait()
                found.append(store.get(thing))

            threads = [threading.Thread(target=ask) for _ in range(4)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            assert all(each is found[0] for each in found)
            assert store.get(thing) is found[0]

    def test_a_finalizer_that_asks_in_between(self):
        """The garbage collector may run while an entry is made."""
        store, asked = ContextStore(), []

        class Asking:
            def __init__(self):
                self.itself = self

            def __del__(self):
                asked.append(store.get(Thing()))

        before = gc.get_threshold()
        gc.set_threshold(1)
        try:
            for _ in range(200):
                Asking()
                assert store.get(Thing()) == {}
        finally:
            gc.set_threshold(*before)
        gc.collect()
        assert len(asked) == 200
        assert len(store) == 0
