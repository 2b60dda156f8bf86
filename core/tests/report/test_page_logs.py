"""Logs in a page: each once, both ends of long ones, and never too much of all."""

from __future__ import annotations

import random
import zlib

from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.report.page.logs import FULL_BYTES, MOST_BYTES, LogBook, excerpt


def noise(rng, length=4_000):
    text = "".join(map(chr, rng.choices(range(33, 999), k=length)))
    return "\n".join(text[start : start + 100] for start in range(0, length, 100))


def test_each_log_is_kept_once_and_empty_ones_not_at_all():
    book = LogBook()
    assert [book.add(log) for log in ("a", "b", "a\n", " ", "", "b")] == [0, 1, 0, -1, -1, 1]
    assert book.texts == ["a", "b"]


def test_a_short_log_is_kept_as_it_is_without_colours():
    assert excerpt("\x1b[1;31mred\x1b[0m\ttext\nmore") == "red\ttext\nmore"


def test_both_ends_of_a_long_log_are_kept_and_the_rest_is_told():
    log = "first line\n" + "middle\n" * 5000 + "last line"
    short = excerpt(log, 4_000)
    assert short.startswith("first line\n")
    assert short.endswith("\nlast line")
    assert f"… {len(log) - 4_000:,} characters left out …" in short
    assert len(short) < 4_100


def test_of_what_has_little_room_the_end_is_kept():
    assert excerpt("a" * 500 + "the end", 100).splitlines() == [
        "… 407 characters left out …",
        "a" * 93 + "the end",
    ]


def test_endless_lines_are_cut_in_the_middle():
    short = excerpt("x" * 3_000)
    assert short == "x" * 200 + " … 2,600 characters left out … " + "x" * 200


def test_first_all_then_ends_then_nothing():
    rng = random.Random(0)
    book = LogBook(full_bytes=20_000, most_bytes=25_000)
    places = [book.add(noise(rng)) for _ in range(60)]
    lengths = [len(text) for text in book.texts]
    assert max(lengths[:2]) <= 4_100
    assert min(lengths) < 300
    assert -1 in places
    assert places == sorted(places[: len(lengths)]) + [-1] * (60 - len(lengths))


def test_repeated_logs_cost_next_to_nothing():
    book = LogBook(full_bytes=60_000, most_bytes=60_000)
    text = noise(random.Random(0), 900)
    assert -1 not in [book.add(f"{text} {n}") for n in range(1_000)]


def test_all_logs_together_stay_within_the_bound():
    rng = random.Random(0)
    book = LogBook()
    for _ in range(2_000):
        book.add(noise(rng, 1_000))
    size = len(zlib.compress("".join(book.texts).encode(), 9))
    assert FULL_BYTES * 0.8 < size < MOST_BYTES * 1.1


@given(st.lists(st.text()))
def test_any_logs_can_be_kept(logs):
    book = LogBook()
    for log in logs:
        place = book.add(log)
        assert (place >= 0) == bool(log.strip())
