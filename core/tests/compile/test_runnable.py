import gc
import logging
import traceback
import weakref
from collections import OrderedDict, namedtuple

import pytest
import torch

from flashinfer_bench.compile import BuildError, list_outputs

MATRIX = {"shape": ["n", "k"], "dtype": "float32"}
X = torch.arange(8.0).reshape(2, 4)
Y = torch.ones(2, 4)


def add(x, y):
    return x + y


def add_into(x, y, z):
    z.copy_(x + y)


class TestCall:
    def test_a_destination_passing_function_by_name_with_outputs(self, make):
        z = torch.empty(2, 4)
        assert make(add_into, dps=True)(x=X, y=Y, z=z) is None
        assert torch.equal(z, X + Y)

    @pytest.mark.parametrize(
        ("returned", "expected"),
        [
            ((5,), 5),
            ((), None),
            (None, None),
            ((1, 2), (1, 2)),
            ([1], [1]),
            (7, 7),
            ({"z": 3}, 3),
            (OrderedDict(z=3), 3),
            (namedtuple("One", "z")(4), 4),
        ],
        ids=repr,
    )
    def test_outputs_are_unpacked(self, make, returned, expected):
        runnable = make(lambda x, y: returned)
        for _ in range(2):  # the second call goes another way
            assert runnable(X, Y) == expected
            assert runnable(x=X, y=Y) == expected


class TestValueReturning:
    def test_several_outputs_of_several_types(self, make, make_definition):
        definition = make_definition(
            outputs={
                "a": {"shape": ["k", "n", "3"], "dtype": "bfloat16"},
                "b": {"shape": ["n"], "dtype": "bool"},
                "c": {"shape": None, "dtype": "int64"},
            }
        )

        def fill(x, y, a, b, c):
            a.fill_(1)
            b.fill_(True)
            c.fill_(9)

        a, b, c = make(fill, of=definition, dps=True).call_value_returning(X, Y)
        assert (tuple(a.shape), a.dtype) == ((4, 2, 3), torch.bfloat16)
        assert b.tolist() == [True, True]
        assert c.item() == 9
        assert c.shape == ()

    @pytest.mark.parametrize("dps", [True, False])
    @pytest.mark.parametrize("count", [0, 1, 3, 5])
    def test_a_wrong_number_of_arguments_names_both_right_ones(self, make, dps, count):
        with pytest.raises(ValueError, match=f"got {count} arguments; .* takes 2, .* call 3"):
            make(add, dps=dps).call_value_returning(*[X] * count)

    def test_outputs_are_contiguous_whatever_the_inputs_are(self, make):
        turned = torch.arange(8.0).reshape(4, 2).t()
        seen = []
        make(lambda x, y, z: seen.append(z), dps=True).call_value_returning(turned, Y)
        assert tuple(seen[0].shape) == (2, 4)
        assert seen[0].is_contiguous()


class TestDestinationPassing:
    @pytest.mark.parametrize(
        "returned",
        [lambda a, b: (a, b), lambda a, b: [a, b], lambda a, b: {"b": b, "a": a}],
        ids=["tuple", "list", "dict"],
    )
    def test_several_outputs_however_they_are_returned(self, make, make_definition, returned):
        definition = make_definition(outputs={"a": MATRIX, "b": MATRIX})
        runnable = make(lambda x, y: returned(x + y, x - y), of=definition)
        a, b = torch.empty(2, 4), torch.empty(2, 4)
        runnable.call_destination_passing(X, Y, a, b)
        assert torch.equal(a, X + Y)
        assert torch.equal(b, X - Y)

    def test_into_a_view(self, make):
        base = torch.zeros(4, 2)
        make(add).call_destination_passing(X, Y, base.t())
        assert torch.equal(base, (X + Y).t())

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (torch.t, r"'z': returned \[4, 2\] .* destination is \[2, 4\]"),
            (torch.Tensor.double, r"float64, but the destination .* torch.float32"),
        ],
    )
    def test_another_shape_or_type_is_refused_with_both(self, make, change, message):
        with pytest.raises(ValueError, match=message):
            make(lambda x, y: change(x)).call_destination_passing(X, Y, torch.empty(2, 4))

    @pytest.mark.parametrize("returned", [(), (X, X), None])
    def test_another_number_is_refused(self, make, returned):
        with pytest.raises(ValueError, match="outputs for 1 destinations: z"):
            make(lambda x, y: returned).call_destination_passing(X, Y, torch.empty(2, 4))


class TestListOutputs:
    @pytest.mark.parametrize("held", [(1, 2), [1, 2], {"z": 1}, {"z": 1, "y": 2}])
    @pytest.mark.parametrize("with_definition", [True, False])
    def test_methods_of_a_subclass_are_not_called(self, definition, held, with_definition):
        def late(self, *rest):
            raise AssertionError("it was asked")

        names = ("__iter__", "__len__", "__getitem__", "keys", "values", "items", "__contains__")
        kind = type("Late", (type(held),), dict.fromkeys(names, late))
        if with_definition and isinstance(held, dict) and len(held) > 1:
            with pytest.raises(ValueError, match="returned outputs z, y"):
                list_outputs(kind(held), definition)
            return
        expected = [*held.values()] if isinstance(held, dict) else [*held]
        assert list_outputs(kind(held), definition if with_definition else None) == expected

    def test_names_are_plain(self, definition):
        class Late(str):
            def __eq__(self, other):
                raise AssertionError("it was asked")

            def __hash__(self):
                return hash(str(self))

        with pytest.raises(ValueError, match="'add_k4' declares z"):
            list_outputs({Late("z"): 1}, definition)


# ------------------------------------- errors of a call that are really errors of a compiler


class Compiling(Exception):
    """What a compiler raises when the kernel is first called."""


def failing(*args, **kwargs):
    raise Compiling("line 3: unexpected token")


def broken(*args, **kwargs):
    raise ZeroDivisionError("inside")


def explain(error):
    if isinstance(error, Compiling):
        return BuildError(f"solution 'my_kernel': {error}", log="the whole output")
    return None


WAYS = {
    "by position": lambda r: r(X, Y),
    "by name": lambda r: r(x=X, y=Y),
    "with destinations by name": lambda r: r(x=X, y=Y, z=X.clone()),
    "call_kwargs": lambda r: r.call_kwargs(x=X, y=Y),
    "call_value_returning": lambda r: r.call_value_returning(X, Y),
    "call_destination_passing": lambda r: r.call_destination_passing(X, Y, X.clone()),
}


@pytest.mark.parametrize("dps", [True, False])
@pytest.mark.parametrize("way", WAYS)
class TestEveryWayToCall:
    def test_what_is_explained_is_raised_instead(self, make, way, dps):
        with pytest.raises(BuildError, match="line 3") as caught:
            WAYS[way](make(failing, dps=dps, explain=explain))
        assert caught.value.log == "the whole output"
        assert isinstance(caught.value.__cause__, Compiling)

    def test_other_errors_come_through(self, make, way, dps):
        with pytest.raises(ZeroDivisionError, match="inside") as caught:
            WAYS[way](make(broken, dps=dps, explain=explain))
        assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "broken"
        assert caught.value.__cause__ is None


@pytest.mark.parametrize("way", WAYS)
def test_after_its_cleanup_every_call_says_so(make, way):
    runnable = make(add)
    assert not runnable.closed
    runnable.cleanup()
    assert runnable.closed
    with pytest.raises(RuntimeError, match="'my_kernel' has been cleaned up; build it again"):
        WAYS[way](runnable)


@pytest.mark.parametrize("raised", [RuntimeError("broken, too"), RecursionError(), SystemExit(3)])
def test_an_explanation_that_fails_does_not_hide_the_error(make, caplog, raised):
    def fails(error):
        raise raised

    with (
        caplog.at_level(logging.WARNING, "flashinfer_bench"),
        pytest.raises(Compiling, match="line 3") as caught,
    ):
        make(failing, explain=fails)(X, Y)
    assert caught.value.__cause__ is None
    assert "explaining an error of <Runnable 'my_kernel': test> failed" in caplog.text
    assert type(raised).__name__ in caplog.text


def test_the_arguments_are_let_go_with_the_error(make):
    runnable = make(failing, explain=explain)

    def call():
        tensor = torch.ones(2, 4)
        with pytest.raises(BuildError):
            runnable(tensor, X)
        return weakref.ref(tensor)

    gc.collect()
    gc.disable()
    try:
        assert call()() is None
    finally:
        gc.enable()
