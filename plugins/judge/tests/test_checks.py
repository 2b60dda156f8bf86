"""Where timed calls are checked, how many are, and what the judge's clock says of them."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_judge.integrity import Overhead
from fib_judge.timed import TimedCheck, number_of_checks, secret_places, secret_schedule
from flashinfer_bench.bench.executors.base import TimedCall

PLENTY = 2**40


@pytest.mark.parametrize(
    ("timed", "output_bytes", "free", "device", "expected"),
    [
        (150, 4, PLENTY, "cpu", 16),
        (150, 4, PLENTY, "cuda:0", 150),
        (10, 4, PLENTY, "cpu", 10),
        (1, 4, PLENTY, "cpu", 1),
        (150, 0, PLENTY, "cpu", 16),
        (150, 2**20, 16 * 2**20, "cpu", 4),  # a quarter of the free memory
        (150, 2**20, 16 * 2**20, "cuda:0", 4),
        (150, 2**26, PLENTY, "cpu", 4),  # 256 MiB
        (150, 2**26, PLENTY, "cuda:0", 150),
        (150, 2**30, 0, "cpu", 2),
    ],
)
def test_how_many_calls_are_checked(timed, output_bytes, free, device, expected):
    assert number_of_checks(timed, output_bytes, free, device) == expected


class TestPlaces:
    @given(st.data(), st.integers(1, 400), st.integers(0, 2**32))
    def test_different_ones_with_one_in_the_last_tenth(self, data, timed, seed):
        count = data.draw(st.integers(1, min(8, timed)))
        places = secret_places(timed, count, random.Random(seed))
        assert len(set(places)) == count
        assert places == sorted(places)
        assert 0 <= places[0] <= places[-1] < timed
        assert places[-1] >= timed - max(1, timed // 10)

    def test_one_says_nothing_about_the_next(self):
        """After a look the calls that follow are looked at as often as any others."""
        follows = looks = 0
        for seed in range(4000):
            places = set(secret_places(50, 8, random.Random(seed)))
            early = [place for place in places if place < 35]
            looks += len(early)
            follows += sum(place + 1 in places for place in early)
        # 6 or 7 others on 49 calls; one in each part would leave far fewer.
        assert follows / looks == pytest.approx(6.2 / 49, rel=0.1)


@pytest.mark.parametrize(("calls", "count", "made"), [(50, 16, 16), (5, 16, 5), (9, 0, 0)])
def test_each_check_comes_once(calls, count, made):
    checks = [TimedCheck(number, []) for number in range(count)]
    schedule = secret_schedule(calls, checks, random.Random(4))
    assert len({check.number for check in schedule.values()}) == len(schedule) == made
    assert set(schedule) <= set(range(calls))


class TestDisturbed:
    """Calls take 3 ms, an exchange 0.5, and a process usually 0.05 to go on."""

    @staticmethod
    def taken(waits, woken_ms=0.05):
        """Return an overhead, and calls that have waited for a core so long."""
        overhead = Overhead(0.5, woken_ms=0.05)
        calls = [TimedCall(9.0, 3.0, 3.0, 0.0, 0.05, "clock", "1", (), each) for each in waits]
        calls[-1] = replace(calls[-1], woken_ms=woken_ms)
        return overhead, [overhead.timed(call, into=False) for call in calls]

    @pytest.mark.parametrize(
        ("waits", "out", "least_ms"),
        [
            ([0, 1, 0.05, 1], [1, 3], None),
            ([0, 1, 1, 1], [1, 2, 3], None),
            ([0, 1, 1, 1, 1], [], 1.5),
            ([2, 2, 9], [], 0.5),
        ],
    )
    def test_calls_without_a_core_do_not_count_unless_nearly_all_are(self, waits, out, least_ms):
        overhead, calls = self.taken(waits)
        assert {call.sample_ms for call in calls} == {2.5}
        assert overhead.disturbed(calls) == out
        assert overhead.least_ms(calls) == least_ms

    @pytest.mark.parametrize(("woken_ms", "out"), [(0.01, []), (0.11, []), (0.12, [3])])
    def test_a_late_waking_counts_as_work_or_not_at_all(self, woken_ms, out):
        overhead, calls = self.taken([0] * 4, woken_ms)
        assert calls[-1].sample_ms == pytest.approx(2.5 + max(0.0, woken_ms - 0.05))
        assert overhead.disturbed(calls) == out
