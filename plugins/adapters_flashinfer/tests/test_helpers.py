"""Arguments by name, and a memory for each object."""

import gc
import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.integration.utils import ArgBinder, ContextStore


@given(
    st.lists(st.integers(), max_size=5),
    st.dictionaries(st.sampled_from(["a", "b", "c", "d", "e"]), st.integers(), max_size=4),
)
def test_binding_agrees_with_a_call(args, kwargs):
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


def test_each_object_has_a_memory_that_goes_with_it():
    store = ContextStore()
    things = [Thing() for _ in range(100)]
    for number, thing in enumerate(things):
        assert store.get(thing) == {}
        store.get(thing)["n"] = number
    assert store.get(things[0]) is store.get(things[0])
    assert [store.get(thing)["n"] for thing in things] == [*range(100)]
    store.discard(things[0])
    store.discard(things[0])
    assert store.get(things[0]) == {}
    assert len(store) == 100
    del things, thing
    gc.collect()
    assert len(store) == 0
