"""Arguments by name, a memory for each object, and views of caches: which hold, and how long."""

import contextlib
import gc
import inspect
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fib_adapters_flashinfer.attention import Views
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


# -------------------------------------------------------------------------------------- views


def halves(tensor):
    return tensor.unbind(1)


def turned(tensor):
    return (tensor.transpose(0, 1),)


def cache(**options):
    return torch.arange(24.0, **options).view(3, 2, 4).clone()


def same(found, expected):
    """Say whether these are the same views: of the same memory, in the same form."""
    return len(found) == len(expected) and all(
        (a.data_ptr(), a.shape, a.stride(), a.dtype) == (b.data_ptr(), b.shape, b.stride(), b.dtype)
        for a, b in zip(found, expected, strict=True)
    )


def test_the_same_object_has_its_views_made_twice_at_most():
    views, x, made = Views(), cache(), []

    def make(tensor):
        made.append(tensor)
        return halves(tensor)

    for _ in range(5):
        assert same(views.of(x, make), halves(x))
    assert len(made) == 2
    x += 1  # what is in it is not kept
    assert torch.equal(views.of(x, make)[1], x[:, 1])


def storage_given_back(x):
    storage = x.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)


def with_data(x, data):
    x.data = data


CHANGES = [
    lambda x: x.set_(cache()),
    lambda x: x.resize_(5, 2, 9),
    lambda x: x.resize_(2, 2, 4),
    lambda x: x.transpose_(0, 2),
    lambda x: x.resize_(4, 2, 4).transpose_(0, 2),  # equal sizes
    lambda x: with_data(x, cache() + 1),
    lambda x: with_data(x, x.data.view(torch.int32)),  # another type in the same memory
    storage_given_back,
    lambda x: x.as_strided_((2, 2, 3), (8, 1, 2), 1),
]


@given(
    st.lists(st.sampled_from([None, None, None, *CHANGES]), max_size=12),
    st.sampled_from([torch.enable_grad, torch.inference_mode]),
)
def test_an_object_with_other_memory_or_another_form_has_other_views(changes, mode):
    with mode():
        views, x = Views(), cache()
        for change in changes:
            if change is not None:
                with contextlib.suppress(RuntimeError):  # some cannot be after what came before
                    change(x)
            assert same(views.of(x, turned), turned(x))


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_neither_tensor_nor_memory_is_kept_alive(mode):
    with mode():
        views, x = Views(), cache()
        for _ in range(3):
            views.of(x, halves)
        assert len(views) == 1
        gone, storage = weakref.ref(x), weakref.ref(x.untyped_storage())
        del x
    gc.collect()
    assert gone() is None
    assert storage() is None
    assert len(views) == 0


def test_another_tensor_with_the_same_id_has_its_own_views():
    views = Views()
    for _ in range(300):  # ids come again at once
        x = cache()
        for _ in range(2):
            assert same(views.of(x, halves), halves(x))
        del x
    assert len(views) <= 1


def test_gradients_and_subclasses_are_not_kept_from():
    views, x = Views(), cache().requires_grad_()
    for _ in range(3):
        assert views.of(x, halves)[0].requires_grad
    plain = cache()
    for _ in range(3):
        views.of(plain, halves)
    plain.requires_grad_()
    assert views.of(plain, halves)[0].requires_grad
    own = cache().as_subclass(type("Own", (torch.Tensor,), {}))
    for _ in range(3):
        assert type(views.of(own, halves)[0]) is type(own)
