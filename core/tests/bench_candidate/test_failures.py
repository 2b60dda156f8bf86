from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.candidate.failures import clip, describe_failure
from flashinfer_bench.bench.transport import messages as wire
from flashinfer_bench.errors import (
    BuildCapabilityError,
    BuildError,
    CapabilityError,
    StorageError,
)


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


def test_an_ordinary_exception():
    failed = failure_of(lambda: {}["missing"])
    assert failed.token == 7
    assert (failed.kind, failed.message, failed.fatal) == ("KeyError", "'missing'", False)
    assert failed.traceback.startswith("Traceback (most recent call last)")
    assert failed.traceback.rstrip().endswith("KeyError: 'missing'")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (SystemExit(3), "SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_exceptions_that_are_not_exception(error, kind):
    assert failure_of(raising(error)).kind == kind


def test_causes_are_told():
    def function():
        try:
            raise ValueError("deep down")
        except ValueError as error:
            raise RuntimeError("on top") from error

    failed = failure_of(function)
    assert failed.message == "on top"
    assert "deep down" in failed.traceback


def test_a_failed_build_tells_what_the_compiler_said():
    failed = failure_of(raising(BuildError("no way", hint="try harder", log="line 3: error")))
    assert failed.traceback == "line 3: error"
    assert failed.message == "no way\n  hint: try harder"


def test_a_failed_build_without_output_has_a_traceback():
    assert "BuildError" in failure_of(raising(BuildError("no way"))).traceback


@pytest.mark.parametrize(
    ("error", "about"),
    [
        (ValueError("no"), "raised"),
        (OSError(28, "No space left on device"), "raised"),
        (BuildError("no"), "build"),
        (CapabilityError("no nvcc"), "capability"),
        (BuildCapabilityError("no nvcc"), "capability"),
        (StorageError("full"), "storage"),
    ],
)
def test_what_it_is_about(error, about):
    assert failure_of(raising(error)).about == about


def test_a_huge_message():
    failed = failure_of(raising(ValueError("x" * 50_000_000)))
    assert len(failed.message) < 10_000
    assert len(failed.traceback) <= wire.MAX_TEXT
    assert "characters left out" in failed.message


def test_endless_recursion():
    def function():
        function()

    failed = failure_of(function)
    assert failed.kind == "RecursionError"
    assert len(failed.traceback) <= wire.MAX_TEXT


def test_a_long_chain_of_causes():
    def function():
        error: BaseException = ValueError("first")
        for index in range(20_000):
            following = ValueError(str(index))
            following.__cause__ = error
            error = following
        raise error

    failed = failure_of(function)
    assert failed.kind == "ValueError"
    assert len(failed.traceback) <= wire.MAX_TEXT


class HostileMeta(type):
    @property
    def __name__(cls):
        raise SystemExit("no name for you")


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


def test_an_exception_whose_class_has_no_name():
    hostile = HostileMeta("Hostile", (Exception,), {})
    assert failure_of(raising(hostile())).kind == "an exception without a name"


def test_a_name_that_is_very_long():
    kind = type("E" * 10_000, (Exception,), {})
    assert len(failure_of(raising(kind())).kind) <= 256


def test_text_that_is_no_unicode():
    failed = failure_of(raising(ValueError("half a pair: \ud800")))
    assert failed.message == "half a pair: ?"


@given(st.text(), st.integers(64, 300))
def test_clip_keeps_the_limit_and_both_ends(text, limit):
    result = clip(text, limit)
    assert len(result) <= limit
    result.encode("utf-8")
    if len(text) <= limit:
        assert result == text.encode("utf-8", "replace").decode()
    else:
        assert "left out" in result


@given(st.integers(300, 10_000))
def test_clip_of_long_text_shows_beginning_and_end(length):
    text = "".join(chr(97 + index % 26) for index in range(length))
    result = clip(text, 200)
    assert text.startswith(result[:60])
    assert text.endswith(result[-60:])
