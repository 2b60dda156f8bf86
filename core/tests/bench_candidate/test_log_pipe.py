from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.executors.log import LogPipe, printable


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
