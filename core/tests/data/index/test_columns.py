"""Columns and digests: kept as they are, and joined as if all lines had been read at once."""

from __future__ import annotations

import math
from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.data.index.columns import (
    CLOCK,
    NO_RUN,
    PASSED,
    STATUSES,
    TYPES,
    Columns,
    Head,
)
from flashinfer_bench.data.index.digest import (
    Digest,
    decode_digests,
    digest_columns,
    encode_digests,
    merged,
)
from flashinfer_bench.data.run_source import Clock

HARDWARE = ("H200", "B200", "CPU")
heads = st.builds(
    Head,
    st.sampled_from(["gemm", "norm"]),
    st.sampled_from([None, "alice", "bob"]),
    st.sampled_from(["w1", "w2"]),
    st.dictionaries(st.sampled_from(["M", "N"]), st.integers(0, 2)),
)
CLOCKS = [Clock(), Clock("cpu", "cold", "rse", "beside"), Clock("cpu", "warm", "rse", "before")]
UNTIMED = (math.nan, math.nan, math.nan, math.nan, 0)
latencies = st.sampled_from([0.5, 1.0, 2.0, 1e-9])


@st.composite
def lines(draw):
    """One line: its head, hardware, and the numbers of a row."""
    head = draw(heads)
    if head.solution is None:
        return head, None, (NO_RUN, *[math.nan] * 5, 0, 1, 0, None, *UNTIMED), ""
    status = draw(st.integers(0, len(STATUSES) - 1))
    times = [draw(latencies)] * 3 if status == PASSED else [math.nan] * 3
    row = (status, *times, 0.0, 0.0, draw(st.integers(0, 2**40)), 7, draw(st.integers(0, 9)))
    ends = draw(st.sampled_from([(math.nan,) * 4, (0.4, 0.6, 1.0, 1.5)]))
    row = (*row, draw(st.sampled_from(CLOCKS)), *ends, draw(st.integers(0, 3)))
    return head, draw(st.sampled_from(HARDWARE)), row, "2026-01-01"


def columns_of(some):
    known, devices, clocks, rows, stamps = [], [], [], [], []
    for head, hardware, row, stamp in some:
        if head not in known:
            known.append(head)
        if hardware is not None and hardware not in devices:
            devices.append(hardware)
        place = NO_RUN if hardware is None else devices.index(hardware)
        clock = row[CLOCK - 2] if len(row) > CLOCK - 2 else Clock()
        if clock is not None and clock not in clocks:
            clocks.append(clock)
        which = NO_RUN if clock is None else clocks.index(clock)
        rest = row[CLOCK - 1 :] or UNTIMED
        rows.append((known.index(head), place, *row[: CLOCK - 2], which, *rest))
        stamps.append(stamp)
    fields = list(zip(*rows, strict=True)) or [()] * len(TYPES)
    arrays = [array(code, field) for code, field in zip(TYPES, fields, strict=True)]
    return Columns(known, devices, arrays, msgspec.msgpack.encode(stamps), clocks)


def spelled(columns):
    """Return what columns say, without the numbers that stand for heads and hardware."""
    return [
        (
            columns.heads[row.head],
            None if row.hardware == NO_RUN else columns.hardware[row.hardware],
            *map(str, row[2:CLOCK]),
            None if row.clock == NO_RUN else columns.clocks[row.clock],
            *map(str, row[CLOCK + 1 :]),
            stamp,
        )
        for row, stamp in zip(columns.rows(), columns.timestamps(), strict=True)
    ]


@given(st.lists(lines(), max_size=12))
def test_columns_come_back_from_their_bytes(some):
    columns = columns_of(some)
    again = Columns.from_bytes(columns.to_bytes())
    assert spelled(again) == spelled(columns)
    assert len(again) == len(some)


@given(st.lists(lines(), max_size=10), st.lists(lines(), max_size=10))
def test_joined_columns_say_what_both_say(first, second):
    joined = columns_of(first).joined(columns_of(second))
    assert spelled(joined) == spelled(columns_of(first + second))
    identities = [head.identity for head in joined.heads]
    assert len(set(identities)) == len(identities)
    for place in range(len(joined.heads)):
        assert all(joined.arrays[0][number] == place for number in joined.rows_of({place}))
    assert sum(len(joined.rows_of({place})) for place in range(len(joined.heads))) == len(joined)


@given(st.lists(st.lists(lines(), max_size=8), min_size=1, max_size=4))
def test_digests_of_files_add_up_to_that_of_all_lines(files):
    whole = digest_columns(columns_of([line for file in files for line in file]))
    parts = [decode_digests(encode_digests(digest_columns(columns_of(file)))) for file in files]
    assert list(dict.fromkeys(name for part in parts for name in part)) == list(whole)
    for name, digest in whole.items():
        assert merged(part[name] for part in parts if name in part) == digest


@given(st.lists(lines(), max_size=12))
def test_a_digest_counts_what_is_there(some):
    for name, digest in digest_columns(columns_of(some)).items():
        runs = [(head, row) for head, _, row, _ in some if head.definition == name]
        runs = [(head, row) for head, row in runs if head.solution is not None]
        assert digest.total == len(runs)
        assert digest.passed == sum(row[0] == PASSED for _, row in runs)
        assert digest.failed == {head.solution for head, row in runs if row[0] != PASSED}
        for solution, times in digest.best_ms.items():
            for uuid, latency in times.items():
                assert latency == min(
                    row[1]
                    for head, row in runs
                    if (head.solution, head.workload, row[0]) == (solution, uuid, PASSED)
                )


@pytest.mark.parametrize("latency", [0.0, -0.0, -1.0])
def test_the_first_latency_that_is_not_positive_is_named(latency):
    head = Head("gemm", "alice", "w1", {})
    rows = [
        (head, "CPU", (PASSED, one, one, one, 0.0, 0.0, 0, 1, 0), "")
        for one in (1.0, latency, 0.5, latency)
    ]
    digest = digest_columns(columns_of(rows))["gemm"]
    assert digest.unusable == ("alice", latency)
    assert digest.best_ms == {"alice": {"w1": 0.5}}
    assert merged([Digest(), digest]).unusable == ("alice", latency)


def test_merging_does_not_change_what_is_merged():
    head = Head("gemm", "alice", "w1", {})
    one, two = (
        digest_columns(columns_of([(head, "CPU", (PASSED, ms, ms, ms, 0.0, 0.0, 0, 1, 0), "")]))
        for ms in (2.0, 1.0)
    )
    assert merged([one["gemm"], two["gemm"]]).best_ms == {"alice": {"w1": 1.0}}
    assert one["gemm"].best_ms == {"alice": {"w1": 2.0}}
