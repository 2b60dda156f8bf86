"""The columns that a page carries."""

from __future__ import annotations

import base64
import json
import math
import random
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flashinfer_bench.report.page.payload import Extras, pack, page_data


def unpacked(data):
    return json.loads(zlib.decompress(base64.b64decode(pack(data))))


def test_names_stand_once(make_result):
    results = [make_result(name, workload=w) for name in ("a_1", "b_1") for w in ("w1", "w2")]
    data = page_data(results)
    assert data["definitions"] == [("double", "op")]
    assert data["devices"] == ["Test CPU"]
    assert [row[:2] for row in data["solutions"]] == [[0, "a_1"], [0, "b_1"]]
    assert [row[1] for row in data["workloads"]] == ["w1", "w2"]
    assert data["runs"]["solution"] == [0, 0, 1, 1]
    assert data["runs"]["workload"] == [0, 1, 0, 1]


def test_the_middle_half_of_the_samples(make_result):
    samples = tuple(float(n) for n in range(101))
    runs = page_data([make_result(samples_ms=samples), make_result("b_1")])["runs"]
    assert (runs["low"], runs["high"], runs["samples"]) == ([25.0, None], [75.0, None], [101, 0])


def test_logs_of_failures_come_first(make_result):
    extras = Extras()
    results = [make_result(log="fine"), make_result("z_1", status="TIMEOUT", log="wrong")]
    runs = page_data(results, (), extras)["runs"]
    assert extras.logs.texts == ["wrong", "fine"]
    assert (runs["log"], runs["length"]) == ([1, 0], [4, 5])


def test_causes_are_of_failures_only(make_result):
    results = [make_result(log="ValueError: 1")]
    results += [make_result(f"b_{n}", status="TIMEOUT", log=f"ValueError: {n}") for n in range(3)]
    data = page_data(results)
    assert data["causes"] == ["ValueError: #"]
    assert data["runs"]["cause"] == [-1, 0, 0, 0]


def test_the_best_are_marked(make_result):
    data = page_data([make_result("a_1", latency_ms=2.0), make_result("b_1", latency_ms=1.0)])
    assert {one["solution"]: one["best"] for one in data["scores"]} == {"a_1": False, "b_1": True}


def test_long_curves_are_thinned_and_keep_what_matters(make_result):
    rng = random.Random(0)
    results = [
        make_result(workload=f"w{n}", latency_ms=rng.uniform(0.5, 8.0)) for n in range(3_000)
    ]
    (curve,) = page_data(results)["curves"].values()
    assert len(curve) < 300
    assert curve == sorted(curve)
    solved = sum(result.speedup > 1.0 for result in results) / len(results)
    assert [share for p, share in curve if p <= 1.0][-1] == pytest.approx(solved)
    assert curve[0] == (0.0, 1.0)
    assert curve[-1][1] == 0.0


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(PLAIN)
def test_what_is_packed_can_be_unpacked(data):
    assert unpacked(data) == data


@example(1.7976931348623157e308)
@given(st.floats())
def test_numbers_keep_five_digits(value):
    (read,) = unpacked([value])
    if math.isfinite(value):
        assert read == pytest.approx(value, rel=1e-4)
    else:
        assert read == str(value)


def test_half_characters_are_replaced():
    assert unpacked(["a\ud800b", {"\udfff": 1}]) == ["a\ufffdb", {"\ufffd": 1}]


@given(PLAIN)
def test_packed_text_is_no_markup(data):
    assert set(pack(data)) <= set(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
    )
