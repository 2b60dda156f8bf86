"""Samples as text: exact, compact, and refused where they make no sense."""

from __future__ import annotations

import base64
import json
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flashinfer_bench.data import Performance
from flashinfer_bench.data.trace import packed, rounded, unpacked

SINGLE = st.floats(min_value=0, max_value=2.0**127, width=32)
DOUBLE = st.floats(min_value=0, allow_infinity=False, allow_nan=False)
TIMES = {"latency_ms": 1.0, "reference_latency_ms": 2.0, "speedup_factor": 2.0}


def text_of(raw: bytes) -> str:
    return "f32:" + base64.b64encode(raw).decode()


@given(st.lists(SINGLE))
def test_single_precision_numbers_come_back_from_a_text(values: list[float]) -> None:
    text = packed(values)
    assert isinstance(text, str)
    assert unpacked(text) == values


@given(st.lists(DOUBLE))
def test_a_record_comes_back_exactly_whatever_its_numbers_are(values: list[float]) -> None:
    before = Performance(**TIMES, samples_ms=values, reference_samples_ms=values[:3])
    assert Performance.model_validate_json(before.model_dump_json()) == before


def test_what_is_too_large_is_written_as_a_list() -> None:
    assert packed([1e39]) == [1e39]
    with pytest.raises(OverflowError):
        rounded([1e39])


def test_lists_of_earlier_traces_are_read() -> None:
    text = json.dumps({**TIMES, "samples_ms": [0.1, 2]})
    assert Performance.model_validate_json(text).samples_ms == [0.1, 2.0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0.5, 0.6", "begins with 'f32:'"),
        ("f64:AAAAPw==", "begins with 'f32:'"),
        ("f32:AAAAPw=", "Base64"),
        ("f32:AAAA Pw==", "Base64"),
        ("f32:é", "Base64"),
        ("f32:AAA=", "2 bytes"),
        (text_of(struct.pack("<f", math.nan)), "finite and not negative"),
        (text_of(struct.pack("<f", math.inf)), "finite and not negative"),
        (text_of(struct.pack("<2f", 1.0, -1.0)), "finite and not negative"),
    ],
)
def test_other_texts_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        unpacked(text)
    with pytest.raises(ValidationError, match=problem):
        Performance.model_validate_json(json.dumps({**TIMES, "samples_ms": text}))


@given(st.text(), st.binary(max_size=40))
def test_no_text_ends_in_anything_but_samples_or_a_named_error(text: str, raw: bytes) -> None:
    for one in (text, "f32:" + text, text_of(raw)):
        try:
            values = unpacked(one)
        except ValueError:
            continue
        assert all(0.0 <= value < math.inf for value in values)


@pytest.mark.parametrize(
    ("dropped", "counted"),
    [
        (None, [1.0, 2.0, 3.0, 4.0]),
        ([], [1.0, 2.0, 3.0, 4.0]),
        ([(0, 1)], [2.0, 3.0, 4.0]),
        ([(1, 3)], [1.0, 4.0]),
        ([(0, 2), (1, 3)], [4.0]),
        ([(3, 10**15)], [1.0, 2.0, 3.0]),
        ([(10**15, 10**18)], [1.0, 2.0, 3.0, 4.0]),
        ([(3, 1)], [1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_dropped_samples_do_not_count(
    dropped: list[tuple[int, int]] | None, counted: list[float]
) -> None:
    record = Performance(**TIMES, samples_ms=[1.0, 2.0, 3.0, 4.0], dropped=dropped)
    assert record.counted_ms == counted


@pytest.mark.parametrize("field", ["interval_ms", "speedup_interval"])
@pytest.mark.parametrize("value", [[2.0, 1.0], [1.0], [1.0, 2.0, 3.0], [-1.0, 1.0], ["a", 1.0], 3])
def test_intervals_have_two_ends_in_order(field: str, value: object) -> None:
    with pytest.raises(ValidationError):
        Performance.model_validate_json(json.dumps({**TIMES, field: value}))
