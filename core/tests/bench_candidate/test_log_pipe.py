from __future__ import annotations

import os
import threading

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


def test_nothing_printed(log):
    pipe, _ = log
    pipe.drain()
    assert pipe.text() == ""


def test_short_output_is_kept_whole(log):
    pipe, writer = log
    os.write(writer, b"first\n")
    pipe.drain()
    os.write(writer, "zweite Zeile: größer\n".encode())
    pipe.drain()
    assert pipe.text() == "first\nzweite Zeile: größer\n"


def test_output_as_long_as_the_limits_is_kept_whole(log):
    pipe, writer = log
    text = "0123456789" * 15
    os.write(writer, text.encode())
    pipe.drain()
    assert pipe.text() == text


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


def test_a_character_cut_in_two_at_the_limit(log):
    pipe, writer = log
    os.write(writer, b"x" * 99 + "é".encode() + b"y" * 10)
    pipe.drain()
    assert pipe.text() == "x" * 99 + "é" + "y" * 10


def test_a_flood_is_read_in_portions(pipe):
    """One look must end although the other side never stops."""
    reader, writer = pipe
    log = LogPipe(os.dup(reader))
    stop = threading.Event()

    def flood():
        os.set_blocking(writer, False)
        while not stop.is_set():
            try:
                os.write(writer, b"x" * 4096)
            except BlockingIOError:
                continue

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        for _ in range(3):
            log.drain()
    finally:
        stop.set()
        thread.join()
    assert len(log.text()) < 2**17
    log.close()


def test_the_end_of_the_pipe_closes_it(log):
    pipe, writer = log
    os.write(writer, b"last words")
    os.close(writer)
    pipe.drain()
    assert pipe.fileno() == -1
    assert pipe.text() == "last words"
    pipe.drain()
    pipe.close()


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
