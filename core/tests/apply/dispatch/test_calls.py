"""Calls in both conventions, by position and by name, and what they count as."""

from __future__ import annotations

import logging

import pytest
import torch

from flashinfer_bench.apply.dispatch import Stats, Target
from flashinfer_bench.apply.keys import ApplyKey, AxesOnlyKeyBuilder
from flashinfer_bench.errors import DataError

pytestmark = pytest.mark.usefixtures("guards")

MATRIX = {"shape": ["n", "k"], "dtype": "float32"}
SCALAR = {"shape": None, "dtype": "float32"}


def add(x, y):
    return x + y


def add_into(x, y, z):
    z.copy_(x + y)


@pytest.fixture(params=["value", "destination"])
def adding(request, bench):
    """A solution in each convention."""
    function = add if request.param == "value" else add_into
    return bench(function, destination_passing=request.param == "destination")


def test_one_tensor_given_twice(adding, monkeypatch):
    x, y = torch.rand(3, 4), torch.rand(3, 4)
    for each in (x, y, x):
        assert torch.equal(adding(each, each), each + each)
    with monkeypatch.context() as patch:
        if adding.dispatcher._by is not None:  # such calls are learned like any other
            patch.setitem(adding.dispatcher.call.__globals__, "slow", None)
        for each in (x, y):
            assert torch.equal(adding(each, each), each + each)
    for left, right in ((x, y), (x, x), (y, x)):
        z = torch.empty(3, 4)
        assert torch.equal(adding(left, right), left + right)
        assert adding(left, right, z) is None
        assert torch.equal(z, left + right)
    assert adding.stats == Stats(hits=11)


def test_other_sizes_in_turn(adding):
    for n in (1, 2, 1, 2, 0, 1, 0, 5, 1):
        x, y = torch.rand(n, 4), torch.rand(n, 4)
        assert torch.equal(adding(x, y), x + y)
        z = torch.empty(n, 4)
        adding(x, y, z)
        assert torch.equal(z, x + y)
    assert adding.stats == Stats(hits=18)
    assert len(adding.resolver.asked) == 4


def test_arguments_by_name(adding, xy):
    x, y = xy
    for _ in range(3):
        assert torch.equal(adding(x=x, y=y), x + y)
        assert torch.equal(adding(y=y, x=x), x + y)
        assert torch.equal(adding(x, y=y), x + y)
        z = torch.empty(3, 4)
        assert adding(x, z=z, y=y) is None
        assert torch.equal(z, x + y)
        z = torch.empty(3, 4)
        assert adding(z=z, x=x, y=y) is None
        assert torch.equal(z, x + y)
    assert adding.stats == Stats(hits=15)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1,), {"x": 2}),
        ((1, 2), {"x": 2}),
        ((), {"x": 1}),
        ((), {"x": 1, "w": 2}),
        ((), {"x": 1, "y": 2, "w": 3}),
        ((1, 2, 3), {"w": 3}),
        ((), {"z": 1}),
    ],
)
def test_wrong_names_are_refused_each_time(adding, args, kwargs):
    for _ in range(2):
        with pytest.raises(DataError):
            adding(*args, **kwargs)
    assert adding.stats == Stats()


@pytest.mark.parametrize("count", [0, 1, 4, 5])
def test_wrong_counts_are_refused(adding, count):
    with pytest.raises(
        ValueError, match=f"got {count} arguments; a value-returning call takes 2, "
    ):
        adding(*[torch.zeros(3, 4)] * count)
    assert adding.stats == Stats()


def test_without_a_fallback_a_miss_says_why(bench, adding, xy):
    x, y = xy
    assert torch.equal(adding.alone(x, y), x + y)
    with pytest.raises(RuntimeError, match=r"'add_k4' can take this call \(dtype\).*no fallback"):
        adding.alone(x, y.double())
    made = bench(None)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no choice"):
            made.alone(x, y)
    assert made.stats == Stats(misses={"no choice": 2})


# ------------------------------------------------------------------------------------- keys


class Parity(AxesOnlyKeyBuilder):
    """With a feature: whether the scalar is even."""

    def features(self, args):
        return (("even", args[1] % 2 == 0),)


class Rounded(AxesOnlyKeyBuilder):
    """Makes keys in its own way."""

    def build_from_args(self, args):
        return ApplyKey((("n", args[0].shape[0] // 10),))


class Reader(Parity):
    """Reads data."""

    reads_data = True


@pytest.fixture
def repeat(make_definition):
    """A matrix times an integer."""
    return make_definition(
        {"x": MATRIX, "times": {"shape": None, "dtype": "int32"}}, name="repeat_k4"
    )


@pytest.mark.parametrize("builder", [Parity, Reader])
def test_features_are_part_of_keys(bench, repeat, builder):
    even, odd = (
        Target(lambda x, times, by=by: x * times + by, repeat, "solution") for by in (0, 100)
    )
    made = bench(None, repeat, key_builder=builder)
    made.resolver.answer = lambda key: even if dict(key.feats)["even"] else odd
    x = torch.ones(2, 4)
    for _ in range(3):
        assert made(x, 2)[0, 0] == 2
        assert made(x, 3)[0, 0] == 103
        assert made(x, 5)[0, 0] == 105
    assert len(made.resolver.asked) == 2


def test_a_builder_may_make_keys_in_its_own_way(bench):
    made = bench(add, key_builder=Rounded)
    for n in (1, 9, 10, 19, 1):
        x = torch.rand(n, 4)
        assert torch.equal(made(x, x.clone()), x + x)
    assert [key.axes for key in made.resolver.asked] == [(("n", 0),), (("n", 1),)]


class Breaking(AxesOnlyKeyBuilder):
    """Fails for one row."""

    def features(self, args):
        if args[0].shape[0] == 1:
            raise DataError("one row")
        return ()


def test_a_builder_that_fails_costs_its_calls_only(bench, xy, caplog):
    made = bench(add, key_builder=Breaking)
    one = torch.ones(1, 4)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert made(one, one.clone()) == "original"
    assert torch.equal(made(*xy), xy[0] + xy[1])
    assert made.stats == Stats(hits=1, fallbacks=3, misses={"key": 3})
    assert caplog.text.count("no key for a call of 'add_k4'") == 1


# ---------------------------------------------------------------------------------- outputs


def test_scalar_outputs(bench, make_definition):
    definition = make_definition({"x": MATRIX}, {"total": SCALAR})
    number, tensor = (
        bench(function, definition) for function in (lambda x: float(x.sum()), lambda x: x.sum())
    )
    x = torch.ones(2, 4)
    for _ in range(3):
        assert number(x) == 8.0
        assert type(number(x)) is float
        assert type(tensor(x)) is torch.Tensor
        place = torch.zeros(())
        number(x, place)
        assert place == 8
    allocated = bench(lambda x, out: out.copy_(x.sum()), definition, destination_passing=True)
    assert allocated(x).shape == ()


def test_no_output(bench, make_definition):
    definition = make_definition({"x": MATRIX}, {})
    made = bench(lambda x: x.fill_(3.0), definition)
    for _ in range(3):
        x = torch.zeros(2, 4)
        assert made(x) is None
        assert x[0, 0] == 3.0
    with pytest.raises(ValueError, match="got 2 arguments"):
        made(x, x)


def test_an_output_with_an_axis_that_no_input_shows(bench, make_definition):
    definition = make_definition({"x": MATRIX}, {"z": {"shape": ["m"], "dtype": "float32"}})
    free = bench(lambda x: torch.ones(int(x.sum())), definition)
    for size in (2, 3, 2):
        x = torch.full((1, 4), size / 4)
        assert free(x).shape == (size,)
        place = torch.zeros(size)
        free(x, place)
        assert place.sum() == size
    x = torch.full((1, 4), 0.5)
    assert free(x, torch.zeros(5)) == "original"  # what was returned does not fit
    given = bench(lambda x, z: z.fill_(1), definition, destination_passing=True)
    assert given(x) == "original"
    assert given.stats.misses == {"outputs": 1}
    place = torch.zeros(2)
    assert given(x, place) is None
    assert place.sum() == 2


# ----------------------------------------------------------------------------------- inputs


def test_names_that_are_no_identifiers(bench, make_definition):
    odd = {"class": MATRIX, "a'b\n": MATRIX, "call": MATRIX, "0": MATRIX}
    definition = make_definition(odd, {"def ": MATRIX}, name="odd'\n\"name")
    made = bench(lambda *args: sum(args), definition)
    values = [torch.full((1, 4), float(2**index)) for index in range(4)]
    by_name = bench(lambda **named: sum(named.values()), definition, by_keyword=True)
    for each in (made, by_name):
        for _ in range(2):
            assert each(*values)[0, 0] == 15
            assert each(**dict(zip(odd, values, strict=True)))[0, 0] == 15
