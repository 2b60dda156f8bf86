"""Targets: built solutions and functions of the user."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.apply.dispatch import Target
from flashinfer_bench.compile import Runnable, RunnableMetadata
from flashinfer_bench.errors import BuildError


def runnable(function, definition, *, destination_passing=False, **options):
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


def test_it_outlives_the_clean_up_of_its_build(bench, make_definition, xy):
    build = runnable(add, make_definition())
    target = Target.from_runnable(build, make_definition())
    build.cleanup()
    assert torch.equal(bench(target)(*xy), xy[0] + xy[1])
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
    build = runnable(add, make_definition(), explain=explain)
    target = Target.from_runnable(build, make_definition())
    assert str(target.explained(ValueError("mine"))) == wanted


def test_names_reach_the_function_in_any_order(bench, xy):
    made = bench(lambda *, y, x: x - y, by_keyword=True)
    assert torch.equal(made(*xy), xy[0] - xy[1])


@pytest.mark.parametrize("form", [tuple, list, lambda pair: {"b": pair[1], "a": pair[0]}])
def test_outputs_in_any_form(bench, make_definition, form):
    matrix = {"shape": ["n", "k"], "dtype": "float32"}
    definition = make_definition({"x": matrix}, {"a": matrix, "b": matrix})
    made = bench(lambda x: form([x + 1, x + 2]), definition)
    x = torch.zeros(1, 4)
    first, second = made(x)
    assert (first[0, 0], second[0, 0]) == (1, 2)
    places = torch.zeros(1, 4), torch.zeros(1, 4)
    made(x, *places)
    assert (places[0][0, 0], places[1][0, 0]) == (1, 2)
