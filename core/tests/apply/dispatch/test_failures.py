"""Solutions that raise, return something else, or cannot be built."""

from __future__ import annotations

import gc
import logging
import weakref

import pytest
import torch

from fib_tests.pairs import pairwise
from flashinfer_bench.apply.dispatch import Stats
from flashinfer_bench.errors import BuildError

pytestmark = pytest.mark.usefixtures("guards")

MATRIX = {"shape": ["n", "k"], "dtype": "float32"}


class Sometimes:
    """Adds; but calls for which `wrong` says so go wrong."""

    def __init__(self, wrong, how):
        self.wrong = wrong
        self.how = how
        self.calls = 0

    def __call__(self, x, y):
        self.calls += 1
        return self.how(x, y) if self.wrong(self.calls) else x + y


def raises(x, y):
    raise ValueError("it does not work")


def exits(x, y):
    raise SystemExit(3)


WRONG = {
    "another dtype": lambda x, y: (x + y).double(),
    "another shape": lambda x, y: (x + y)[:1],
    "a flat tensor": lambda x, y: (x + y).view(-1),
    "another rank": lambda x, y: (x + y).unsqueeze(0),
    "nothing": lambda x, y: None,
    "two outputs": lambda x, y: (x, y),
    "no output": lambda x, y: (),
    "a list": lambda x, y: (x + y).tolist(),
    "numpy": lambda x, y: (x + y).numpy(),
    "a number": lambda x, y: 1.0,
    "another name": lambda x, y: {"w": x + y},
    "another device": lambda x, y: (x + y).to("meta"),
    "a sparse tensor": lambda x, y: (x + y).to_sparse(),
    "a subclass": lambda x, y: (x + y).as_subclass(type("Own", (torch.Tensor,), {})),
    "raises": raises,
    "exits": exits,
}


@pairwise(how=sorted(WRONG), after=[0, 1, 5], into=[False, True])
def test_what_goes_wrong_is_answered_by_the_original(bench, xy, how, after, into, caplog):
    x, y = xy
    solution = Sometimes(lambda call: call > after, WRONG[how])
    made = bench(solution, original=lambda x, y, z=None: "original")
    outputs = [torch.empty(3, 4) for _ in range(after + 6)] if into else [None] * (after + 6)
    args = [(x, y) if place is None else (x, y, place) for place in outputs]
    with caplog.at_level(logging.WARNING):
        results = [made(*each) for each in args]
    for result, place in zip(results[:after], outputs, strict=False):
        assert torch.equal(result if place is None else place, x + y)
    assert results[after:] == ["original"] * 6
    # Three failures, and it is not used any more.
    assert solution.calls == after + 3
    assert made.stats == Stats(after, 6, 3, {"taken out": 3})
    assert made.state == ["out"]
    assert caplog.text.count("is no longer used for n=3: it has failed 3 times") == 1


def test_without_a_fallback_a_failure_raises(bench, xy):
    made = bench(raises)
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"'best' of 'add_k4' failed.*no fallback") as caught:
            made.alone(*xy)
        assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(RuntimeError, match="taken out"):
        made.alone(*xy)


def test_interrupts_are_not_held_up(bench, xy):
    def interrupted(x, y):
        raise KeyboardInterrupt

    made = bench(Sometimes(lambda call: call > 1, interrupted))
    made(*xy)
    with pytest.raises(KeyboardInterrupt):
        made(*xy)
    assert made.stats == Stats(hits=1)


def test_a_solution_that_cannot_be_built(bench, xy, caplog):
    def broken(key):
        raise BuildError("no compiler")

    made = bench(None)
    made.resolver.answer = broken
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            assert made(*xy) == "original"
    assert len(made.resolver.asked) == 1
    assert made.stats == Stats(fallbacks=4, misses={"build": 4})
    assert caplog.text.count("no compiler") == 1


def test_inputs_that_may_have_been_changed_are_not_given_to_the_original(bench, make_definition):
    def spoils(x):
        x.zero_()
        raise ValueError("half way")

    definition = make_definition({"x": MATRIX}, {"z": {**MATRIX, "param": "x"}})
    made = bench(spoils, definition)
    with pytest.raises(RuntimeError, match="may have changed its inputs") as caught:
        made(torch.ones(2, 4))
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_error_keeps_no_argument_alive(bench):
    made = bench(Sometimes(lambda call: call > 1, raises), max_failures=10)
    x = torch.ones(2, 4)
    made(x, x.clone())
    gone = []
    gc.disable()  # reference counts alone must do
    try:
        for _ in range(2):
            argument = torch.ones(2, 4)
            gone.append(weakref.ref(argument))
            made(argument, x)
            del argument
        made.original.calls.clear()
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()


# -------------------------------------------------------------------------- calling itself


def test_a_solution_that_calls_what_it_stands_for_gets_the_original(bench, xy):
    made = bench(lambda x, y: made(x, y) + 1, original=lambda x, y: x + y)
    for _ in range(5):
        assert torch.equal(made(*xy), xy[0] + xy[1] + 1)
    assert made.stats == Stats(hits=5, fallbacks=5, misses={"reentrant": 5})


def test_a_solution_that_begins_to_call_itself_later(bench, xy):
    def solution(x, y):
        return x + y if made.solution.calls <= 3 else made(x, y)

    made = bench(solution, original=lambda x, y: x + y)
    for _ in range(10):
        assert torch.equal(made(*xy), xy[0] + xy[1])
