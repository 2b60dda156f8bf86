"""Errors of a call that are really errors of a compiler."""

from __future__ import annotations

import gc
import logging
import traceback
import weakref

import pytest
import torch

from flashinfer_bench.compile import BuildError

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
            WAYS[way](make(failing, dps=dps, explain=explain))
        assert caught.value.log == "the whole output"
        assert isinstance(caught.value.__cause__, Compiling)

    def test_other_errors_come_through(self, make, way, dps):
        with pytest.raises(ZeroDivisionError, match="inside") as caught:
            WAYS[way](make(broken, dps=dps, explain=explain))
        assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "broken"
        assert caught.value.__cause__ is None


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
