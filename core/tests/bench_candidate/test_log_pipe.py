from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.executors.log import LogPipe, printable


@pytest.fixture
def log(pipe):
    reader, writer = pipe
    log = LogPipe(os.dup(reader), head=100, tail=50)
    yield log, writer
    log.close()


def test_long_output_keeps_head_and_tail(log):
    pipe, writer = log
    for index in range(1000):
        os.write(writer, f"{index:09d}\n".encode())
        pipe.drain()
    text = pipe.text()
    assert text.startswith("000000000\n")
    assert text.endswith("000000999\n")
    assert "9850 bytes left out" in text
    assert len(text) < 250


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


@given(st.text())
def test_printable_keeps_no_control_character(text):
    result = printable(text)
    assert all(character in "\n\t" or ord(character) >= 32 for character in result)
    assert "\x1b" not in result
    assert printable(result) == result


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
