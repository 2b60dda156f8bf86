from __future__ import annotations

from pathlib import Path

import pytest

from flashinfer_bench import errors
from flashinfer_bench.errors import DataError, FibError


def all_errors():
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, FibError)
    ]


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_every_error_carries_its_message_and_hint(kind):
    error = kind("the disk is full", hint="free some space")
    assert error.message == "the disk is full"
    assert error.hint == "free some space"
    assert str(error) == "the disk is full\n  hint: free some space"
    assert str(kind("no")) == "no"
    assert kind.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ({}, "bad"),
        ({"line": 3}, "line 3: bad"),
        ({"path": Path("a.jsonl"), "line": 3, "field": "axes.M"}, "a.jsonl:3: axes.M: bad"),
        ({"path": Path("a.json"), "field": "axes.M"}, "a.json: axes.M: bad"),
    ],
)
def test_a_data_error_begins_with_its_place(place, text):
    assert str(DataError("bad", **place)) == text


def test_a_build_that_lacks_something_is_both_and_keeps_the_log_out_of_its_message():
    error = errors.BuildCapabilityError("no nvcc", hint="install it", log="line\n" * 1000)
    assert isinstance(error, errors.BuildError)
    assert isinstance(error, errors.CapabilityError)
    assert str(error) == "no nvcc\n  hint: install it"
    assert error.log.count("\n") == 1000
