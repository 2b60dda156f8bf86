from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.candidate.failures import clip, describe_failure
from flashinfer_bench.bench.transport import messages as wire


def failure_of(function) -> wire.Failed:
    """What the judge receives when `function` raises."""
    try:
        function()
    except BaseException as error:  # noqa: BLE001
        return wire.REPLIES.decode(wire.encode(describe_failure(7, error)))
    raise AssertionError("it did not raise")


def raising(error):
    def function():
        raise error

    return function


class Unspeakable(Exception):
    def __str__(self):
        raise SystemExit("not a word")

    __repr__ = __str__


class Endless(Exception):
    def __str__(self):
        return str(self)


class WrongType(Exception):
    def __str__(self):
        return 42


@pytest.mark.parametrize("kind", [Unspeakable, Endless, WrongType])
def test_exceptions_that_cannot_be_printed(kind):
    failed = failure_of(raising(kind()))
    assert failed.kind == kind.__name__
    assert failed.message == "the exception cannot be turned into text"
    assert failed.traceback


@given(st.text(), st.integers(64, 300))
def test_clip_keeps_the_limit_and_both_ends(text, limit):
    result = clip(text, limit)
    assert len(result) <= limit
    result.encode("utf-8")
    if len(text) <= limit:
        assert result == text.encode("utf-8", "replace").decode()
    else:
        assert "left out" in result
