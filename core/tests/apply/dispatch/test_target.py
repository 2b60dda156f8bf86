"""Targets: built solutions and functions of the user, in both conventions."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.apply.dispatch import Target
from flashinfer_bench.compile import Runnable, RunnableMetadata
from flashinfer_bench.errors import BuildError


def runnable(function, definition, *, destination_passing, **options):
    metadata = RunnableMetadata(
        build_type="python",
        definition_name=definition.name,
        solution_name="built",
        destination_passing_style=destination_passing,
        definition=definition,
    )
    return Runnable(function, metadata, **options)


def add(x, y):
    return x + y


def add_into(x, y, z):
    z.copy_(x + y)
    return z


@pytest.fixture(params=["value", "destination", "value by name", "destination by name"])
def target(request, make_definition):
    """The same sum in each style."""
    style, by_name = request.param.split()[0], request.param.endswith("name")
    function = add if style == "value" else add_into
    return Target.from_callable(
        function,
        make_definition(),
        by_keyword=by_name,
        destination_passing=style == "destination",
    )


def test_both_conventions(target, xy):
    x, y = xy
    assert torch.equal(target.value(x, y), x + y)
    z = torch.zeros(3, 4)
    assert target.into(x, y, z) is None
    assert torch.equal(z, x + y)


def test_what_is_copied_must_fit(make_definition, xy):
    target = Target.from_callable(add, make_definition())
    for wrong in (torch.zeros(2, 4), torch.zeros(3, 4, dtype=torch.float64)):
        with pytest.raises(ValueError, match="output 'z'"):
            target.into(*xy, wrong)


def test_of_a_build(make_definition, xy):
    definition = make_definition()
    for function, style in ((add, "value"), (add_into, "destination")):
        build = runnable(function, definition, destination_passing=style == "destination")
        target = Target.from_runnable(build, definition)
        assert (target.native_style, target.solution) == (style, "built")
        assert target.function is function
        assert target.owner is build
        assert Target.from_runnable(build, definition, "other").solution == "other"
        assert torch.equal(target.value(*xy), xy[0] + xy[1])
        assert repr(target) == f"<Target 'built' of 'add_k4', {style}>"


def test_it_outlives_the_clean_up_of_its_build(make_definition, xy):
    build = runnable(add, make_definition(), destination_passing=False)
    target = Target.from_runnable(build, make_definition())
    build.cleanup()
    assert torch.equal(target.value(*xy), xy[0] + xy[1])
    error = ValueError("x")
    assert target.explained(error) is error


@pytest.mark.parametrize(
    ("explain", "wanted"),
    [
        (lambda error: BuildError("does not compile"), "does not compile"),
        (lambda error: None, "mine"),
        (lambda error: 1 / 0, "mine"),
    ],
)
def test_errors_are_explained_by_the_builder(make_definition, explain, wanted):
    build = runnable(add, make_definition(), destination_passing=False, explain=explain)
    target = Target.from_runnable(build, make_definition())
    assert str(target.explained(ValueError("mine"))) == wanted


def test_functions_have_their_own_name(make_definition):
    class Callable:
        def __call__(self, x, y):
            return x

    definition = make_definition()
    assert Target.from_callable(add, definition).solution == "add"
    assert Target.from_callable(Callable(), definition).solution == "Callable"
    assert Target.from_callable(add, definition, solution="best").solution == "best"


def test_names_reach_the_function_in_any_order(make_definition):
    definition = make_definition()
    target = Target.from_callable(lambda *, y, x: x - y, definition, by_keyword=True)
    assert target.value(torch.ones(1, 4) * 3, torch.ones(1, 4))[0, 0] == 2


@pytest.mark.parametrize("form", [tuple, list, lambda pair: {"b": pair[1], "a": pair[0]}])
def test_outputs_in_any_form(make_definition, form):
    matrix = {"shape": ["n", "k"], "dtype": "float32"}
    definition = make_definition({"x": matrix}, {"a": matrix, "b": matrix})
    target = Target.from_callable(lambda x: form([x + 1, x + 2]), definition)
    x = torch.zeros(1, 4)
    first, second = target.value(x)
    assert (first[0, 0], second[0, 0]) == (1, 2)
    places = torch.zeros(1, 4), torch.zeros(1, 4)
    target.into(x, *places)
    assert (places[0][0, 0], places[1][0, 0]) == (1, 2)


def test_no_output(make_definition):
    definition = make_definition({"x": {"shape": ["n"], "dtype": "float32"}}, {})
    target = Target.from_callable(lambda x: (), definition)
    assert target.value(torch.zeros(1)) is None
