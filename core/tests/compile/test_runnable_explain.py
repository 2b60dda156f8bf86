"""Errors of a call that are really errors of a compiler."""

from __future__ import annotations

import gc
import logging
import traceback
import weakref

import pytest
import torch

from flashinfer_bench.compile import BuildError, Runnable, RunnableMetadata

X = torch.ones(2, 4)


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


@pytest.fixture
def make(definition):
    """Return a function that makes a runnable that explains its errors."""

    def build(function, *, dps=False, of=definition, explain=explain):
        metadata = RunnableMetadata(
            build_type="test",
            definition_name="d",
            solution_name="my_kernel",
            destination_passing_style=dps,
            definition=of,
        )
        return Runnable(function, metadata, explain=explain)

    return build


WAYS = {
    "by position": lambda r: r(X, X),
    "by name": lambda r: r(x=X, y=X),
    "with destinations by name": lambda r: r(x=X, y=X, z=X.clone()),
    "call_kwargs": lambda r: r.call_kwargs(x=X, y=X),
    "call_value_returning": lambda r: r.call_value_returning(X, X),
    "call_destination_passing": lambda r: r.call_destination_passing(X, X, X.clone()),
}


@pytest.mark.parametrize("dps", [True, False])
@pytest.mark.parametrize("way", WAYS)
class TestEveryWayToCall:
    def test_what_is_explained_is_raised_instead(self, make, way, dps):
        with pytest.raises(BuildError, match="line 3") as caught:
            WAYS[way](make(failing, dps=dps))
        assert caught.value.log == "the whole output"
        assert isinstance(caught.value.__cause__, Compiling)

    def test_other_errors_come_through(self, make, way, dps):
        with pytest.raises(ZeroDivisionError, match="inside") as caught:
            WAYS[way](make(broken, dps=dps))
        assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "broken"
        assert caught.value.__cause__ is None

    def test_a_success_asks_nothing(self, make, way, dps):
        def refuse(error):
            raise AssertionError("asked")

        WAYS[way](make(lambda x, y, z=None: x, dps=dps, explain=refuse))


def test_without_a_definition_too(make):
    with pytest.raises(BuildError, match="line 3"):
        make(failing, of=None)(left=1)


def test_without_an_explanation_everything_comes_through(make):
    with pytest.raises(Compiling):
        make(failing, explain=None)(X, X)


@pytest.mark.parametrize("raised", [RuntimeError("broken, too"), RecursionError(), SystemExit(3)])
def test_an_explanation_that_fails_does_not_hide_the_error(make, caplog, raised):
    def fails(error):
        raise raised

    with (
        caplog.at_level(logging.WARNING, "flashinfer_bench"),
        pytest.raises(Compiling, match="line 3") as caught,
    ):
        make(failing, explain=fails)(X, X)
    assert caught.value.__cause__ is None
    assert "explaining an error of <Runnable 'my_kernel': test> failed" in caplog.text
    assert type(raised).__name__ in caplog.text


@pytest.mark.parametrize("answer", ["text", ValueError("not a BuildError"), BuildError, 0])
def test_an_explanation_of_another_type_is_none(make, answer):
    with pytest.raises(Compiling):
        make(failing, explain=lambda error: answer)(X, X)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_error_is_not_explained(make, error):
    def leave(x, y):
        raise error

    with pytest.raises(error):
        make(leave, explain=lambda error: BuildError("asked"))(X, X)


def test_the_call_after_a_failed_one_is_asked_about_anew(make):
    outcomes = iter([Compiling("first"), None, Compiling("second")])

    def run(x, y):
        outcome = next(outcomes)
        if outcome is not None:
            raise outcome
        return x

    runnable = make(run)
    with pytest.raises(BuildError, match="first"):
        runnable(X, X)
    assert runnable(X, X) is X
    with pytest.raises(BuildError, match="second"):
        runnable(X, X)


def test_the_arguments_are_let_go_with_the_error(make):
    runnable = make(failing)

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


def test_a_runnable_that_is_cleaned_up_explains_nothing(make):
    asked = []
    runnable = make(failing, explain=asked.append)
    runnable.cleanup()
    with pytest.raises(RuntimeError, match="cleaned up"):
        runnable(X, X)
    assert asked == []


def test_what_explains_is_let_go_with_the_function(make):
    def local(error):
        return None

    runnable, reference = make(failing, explain=local), weakref.ref(local)
    runnable.cleanup()
    del local
    gc.collect()
    assert reference() is None
