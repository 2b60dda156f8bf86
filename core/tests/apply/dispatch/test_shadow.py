"""Comparing solutions with the original: the first calls, and a share of the later ones."""

from __future__ import annotations

import logging

import pytest
import torch

from fib_tests.pairs import pairwise
from flashinfer_bench.apply.dispatch import Stats
from flashinfer_bench.apply.dispatch import hot_path as entries_module
from flashinfer_bench.data import Tolerance

pytestmark = pytest.mark.usefixtures("guards")

MATRIX = {"shape": ["n", "k"], "dtype": "float32"}


def add(x, y, z=None):
    result = x + y
    return result if z is None else z.copy_(result)


@pytest.fixture
def shadowed(bench):
    """Make a bench whose original adds as well."""

    def make(solution, *args, original=add, **config):
        return bench(solution, *args, original=original, **config)

    return make


@pairwise(first=[1, 2, 5], dps=[False, True], into=[False, True])
def test_the_first_calls_are_compared(shadowed, xy, first, into, dps):
    x, y = xy
    made = shadowed(
        (lambda x, y, z: z.copy_(x + y)) if dps else (lambda x, y: x + y),
        destination_passing=dps,
        shadow_calls=first,
    )
    for call in range(first + 4):
        assert made.state == ([] if not call else ["shadow"] if call < first else ["plain"])
        z = torch.full((3, 4), -1.0)
        result = made(x, y, z) if into else made(x, y)
        assert torch.equal(z if into else result, x + y)
    assert made.stats == Stats(hits=4, fallbacks=first)
    assert made.solution.calls == first + 4
    assert len(made.original.calls) == first


@pytest.mark.parametrize("into", [False, True])
@pytest.mark.parametrize("bad_call", [1, 3])
def test_a_solution_that_disagrees_is_used_no_more(shadowed, xy, bad_call, into, caplog):
    x, y = xy

    def solution(x, y):
        return x + y + (made.solution.calls >= bad_call)

    made = shadowed(solution, shadow_calls=5)
    with caplog.at_level(logging.WARNING):
        for _ in range(8):
            z = torch.full((3, 4), -1.0)
            result = made(x, y, z) if into else made(x, y)
            assert torch.equal(z if into else result, x + y)
    assert made.solution.calls == bad_call
    assert made.stats == Stats(0, 8, 1, {"taken out": 8 - bad_call})
    assert made.state == ["out"]
    assert caplog.text.count("disagrees with the original: output 'z' differs") == 1
    (view,) = made.dispatcher.entries()
    assert view.checked == bad_call - 1
    assert "by up to 1 " in view.problem


DISAGREE = {
    "one element": lambda z: z.index_fill(0, torch.tensor([2]), 0.0),
    "one NaN": lambda z: torch.where(z == z[1, 1], torch.tensor(float("nan")), z),
    "infinity": lambda z: z + float("inf"),
    "another shape": lambda z: z[:1],
    "another dtype": lambda z: z.double(),
}


@pytest.mark.parametrize("how", sorted(DISAGREE))
def test_what_counts_as_disagreement(shadowed, xy, how):
    made = shadowed(lambda x, y: DISAGREE[how](x + y), shadow_calls=1, max_failures=1)
    for _ in range(2):
        assert torch.equal(made(*xy), xy[0] + xy[1])
    assert made.state == ["out"]
    assert made.stats.errors == 1


def test_nan_and_infinity_in_the_same_places_agree(shadowed):
    x = torch.tensor([[1.0, float("nan"), float("inf"), -float("inf")]])
    made = shadowed(lambda x, y: x + y, shadow_calls=1)
    made(x, x.clone())
    assert made.state == ["plain"]


@pytest.mark.parametrize(
    ("config", "tolerance", "state"),
    [
        ({}, None, "out"),
        ({"max_atol": 0.02}, None, "plain"),
        ({"max_rtol": 0.5}, None, "plain"),
        ({}, Tolerance(atol=0.02), "plain"),
        ({"max_atol": 1e-6, "max_rtol": 1e-6}, Tolerance(atol=0.02), "out"),
        ({}, Tolerance(required_matched_ratio=0.1), "plain"),
        ({}, Tolerance(required_matched_ratio=0.1, max_error_cap=1e-3), "out"),
    ],
)
def test_tolerances(shadowed, make_definition, config, tolerance, state):
    definition = make_definition().model_copy(update={"tolerance": tolerance})
    x = torch.full((4, 4), 0.5)

    def solution(x, y):
        z = x + y
        z[0] += 0.01
        return z

    made = shadowed(solution, definition, shadow_calls=1, **config)
    made(x, x.clone())
    assert made.state == [state]


def test_an_original_that_returns_something_else_is_believed(shadowed, xy):
    for answer in ((1, 2), None, "text", torch.zeros(1), (torch.zeros(3, 4),) * 2, {"w": 1}):
        made = shadowed(
            lambda x, y: x + y, shadow_calls=2, original=lambda x, y, answer=answer: answer
        )
        assert made(*xy) is answer
        assert made.state == ["out"]


def test_a_solution_that_changes_an_input_is_out(shadowed, xy):
    x, y = xy

    def changes(x, y):
        z = x + y
        x.add_(1)
        return z

    made = shadowed(changes, shadow_calls=2)
    wanted = x + y
    assert torch.equal(made(x.clone(), y), wanted)
    assert made.state == ["out"]
    assert "changed an input" in made.dispatcher.entries()[0].problem


def test_outputs_nobody_wrote_do_not_look_like_the_original_s(shadowed, xy):
    made = shadowed(lambda x, y, z: None, destination_passing=True, shadow_calls=2)
    z = torch.zeros(3, 4)
    made(*xy, z)
    assert torch.equal(z, xy[0] + xy[1])
    assert made.state == ["out"]


def test_inputs_that_are_written_to_are_copied(shadowed, make_definition):
    definition = make_definition({"x": MATRIX}, {"z": {**MATRIX, "param": "x"}})

    def double(x):
        x.mul_(2)
        return x + 1

    def wrong(x):
        x.mul_(3)
        return x / 3 * 2 + 1

    good, bad = (
        shadowed(each, definition, original=double, shadow_calls=1) for each in (double, wrong)
    )
    for made, state in ((good, "plain"), (bad, "out")):
        x = torch.ones(2, 4)
        assert torch.equal(made(x), torch.full((2, 4), 3.0))
        assert torch.equal(x, torch.full((2, 4), 2.0))
        assert made.state == [state]
    x = torch.ones(2, 4)
    assert good(x)[0, 0] == 3.0
    assert x[0, 0] == 2.0
    assert good.stats.hits == 1
    assert "input 'x'" in bad.dispatcher.entries()[0].problem


def test_what_is_drawn_at_random_is_not_compared(shadowed, make_definition, xy):
    definition = make_definition(op_type="Sampling")
    made = shadowed(lambda x, y: torch.rand(x.shape), definition, shadow_calls=3, shadow_share=1.0)
    for _ in range(3):
        made(*xy)
    assert made.stats == Stats(hits=3)


def test_without_a_fallback_there_is_nothing_to_compare_with(shadowed, xy):
    made = shadowed(lambda x, y: x + y, shadow_calls=2, shadow_share=1.0)
    for _ in range(5):
        assert torch.equal(made.alone(*xy), xy[0] + xy[1])
    assert made.state == ["shadow"]
    made(*xy)
    made(*xy)
    assert made.state == ["plain"]
    for _ in range(3):
        made.alone(*xy)
    assert made.stats == Stats(hits=8, fallbacks=2)


# -------------------------------------------------------------------------------- a share


def test_a_known_pattern_is_sampled_too(shadowed, xy, monkeypatch):
    draws = iter([0.9] * 5 + [0.0] + [0.9] * 5)
    monkeypatch.setattr(entries_module.random, "random", draws.__next__)
    made = shadowed(lambda x, y: x + y, shadow_share=0.5)
    counts = []
    for _ in range(10):
        made(*xy)
        counts.append(made.stats.fallbacks)
    assert counts[-1] == 1
    assert made.stats.hits == 9
