"""Arithmetic on records."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_timing_cuda.cupti import Activity, span_of, split_at_hold
from flashinfer_bench.errors import TimingError


def kernel(start, end, *, order=1, name="kernel", **fields):
    return Activity("kernel", name, start, end, order, **fields)


HOLD = kernel(10, 100, order=5, name="hold")
TIMES = st.integers(1, 1000)
PARTS = st.lists(st.tuples(TIMES, TIMES).map(sorted), min_size=1, max_size=12)


NAMES = ["hold", "_ZN2at4cuda59_GLOBAL__N__4a_8_Sleep_cu_b83d50f9_11spin_kernelEl"]


class TestHold:
    @pytest.mark.parametrize("name", NAMES, ids=["own", "torch's"])
    def test_what_was_enqueued_after_it_is_the_call_s(self, name):
        before, after = kernel(1, 9, order=4), kernel(101, 120, order=6)
        assert split_at_hold([after, replace(HOLD, name=name), before]) == (100, [after])

    def test_a_solution_s_kernel_of_that_name_is_the_solution_s(self):
        own = kernel(150, 900, order=7, name="hold")
        assert split_at_hold([own, HOLD]) == (100, [own])

    @pytest.mark.parametrize("name", ["uphold", "hold_on", "threshold_kernel", ""])
    def test_other_names_are_not_it(self, name):
        with pytest.raises(TimingError, match=r"own kernel: .* \(2 other records\)") as caught:
            split_at_hold([replace(HOLD, name=name), replace(HOLD, what="memcpy")])
        assert "--timer cuda_event" in str(caught.value.hint)


class TestSpan:
    @pytest.mark.parametrize(("start", "end"), [(0, 5), (0, 0), (7, 6), (5, 0), (-3, 4)])
    def test_times_that_make_no_sense(self, start, end):
        with pytest.raises(TimingError, match=f"'bad' from {start} to {end} ns"):
            span_of([kernel(10, 20), kernel(start, end, name="bad")])

    @given(PARTS, st.integers(0, 1000))
    def test_it_is_what_counting_each_nanosecond_gives(self, parts, not_before):
        found = span_of([kernel(*part) for part in parts], not_before=not_before)
        clipped = [(max(a, not_before), max(b, not_before)) for a, b in parts]
        busy = {at for start, end in clipped for at in range(start, end)}
        assert found.busy_ns == len(busy)
        assert found.start == min(start for start, _ in clipped)
        assert found.end == max(end for _, end in clipped)
        assert 0.0 <= found.idle_share <= 1.0
