import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.candidate.failures import describe_failure
from flashinfer_bench.bench.executors.log import LogPipe, printable
from flashinfer_bench.bench.transport import messages as wire
from flashinfer_bench.bench.transport.messages import clip


def failure_of(function):
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


# -------------------------------------------------------------------------------- what is printed


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[H", ""),
        ("progress 1\rprogress 2\r\n", "progress 1\nprogress 2\n"),
        ("bell\a null\0 del\x7f", "bell null del"),
        ("\x1b]0;title\x07", "]0;title"),
        ("c1 \x9b31m csi", "c1 31m csi"),
        ("déjà vu ✓", "déjà vu ✓"),
    ],
)
def test_control_characters_do_not_reach_a_terminal(raw, shown):
    assert printable(raw) == shown


@given(st.lists(st.binary(min_size=1, max_size=400), max_size=20))
def test_whatever_is_printed_stays_within_the_limits(chunks):
    reader, writer = os.pipe()
    log = LogPipe(reader, head=100, tail=50)
    try:
        for chunk in chunks:
            os.write(writer, chunk)
            log.drain()
        total = sum(map(len, chunks))
        assert len(log.text()) <= 100 + 50 + 40
        assert ("left out" in log.text()) == (total > 150) or b"left out" in b"".join(chunks)
    finally:
        os.close(writer)
        log.close()
