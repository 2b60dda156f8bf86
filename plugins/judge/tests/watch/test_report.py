"""Which samples count."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fib_judge.watch.report import WatchReport, joined, keep, remark

RANGES = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda pair: tuple(sorted(pair)))
)


def report(*ranges):
    return WatchReport(throttled=ranges, samples=100)


class TestKeep:
    def test_throttled_samples_go_and_are_counted(self):
        kept, dropped = keep([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], report((1, 2), (5, 9)))
        assert kept == (0.0, 3.0, 4.0)
        assert dropped == (1, 2, 5)

    def test_more_than_that_may_not(self):
        samples = tuple(map(float, range(9)))
        assert keep(samples, report((0, 6))) == (samples, ())

    @given(st.lists(st.floats(0.1, 9.0), min_size=1, max_size=60), RANGES)
    def test_never_ends_empty_and_loses_nothing(self, samples, ranges):
        found = keep(samples, report(*ranges))
        assert len(found.kept) >= len(samples) / 4
        left = dict(enumerate(samples))
        for index in found.dropped:
            del left[index]
            assert any(first <= index <= last for first, last in ranges)
        assert tuple(left.values()) == found.kept


class TestRanges:
    @given(RANGES)
    def test_hold_the_same_numbers(self, ranges):
        def numbers(some):
            return {n for first, last in some for n in range(first, last + 1)}

        found = joined(ranges)
        assert numbers(found) == numbers(ranges)
        ends = [end for first, last in found for end in (first, last)]
        assert ends == sorted(ends)
        assert all(b[0] > a[1] + 1 for a, b in pairwise(found))


class TestRemark:
    def test_says_how_many_and_why(self):
        (text,) = remark([(0, 2)], 10, ["sw_thermal", "low_clock"])
        assert text == (
            "3 of 10 samples were taken while the device was throttled "
            "(low_clock, sw_thermal): they do not count"
        )
