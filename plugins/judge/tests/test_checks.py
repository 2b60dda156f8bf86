"""Where timed calls are checked, how many are, and what the judge's clock says of them."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_judge.integrity import Overhead
from fib_judge.timed import TimedCheck, number_of_checks, secret_schedule
from flashinfer_bench.bench.executors.base import TimedCall

PLENTY = 2**40


@pytest.mark.parametrize(
    ("timed", "output_bytes", "free", "device", "expected"),
    [
        (150, 4, PLENTY, "cpu", 32),
        (150, 4, PLENTY, "cuda:0", 150),
        (10, 4, PLENTY, "cpu", 10),
        (1, 4, PLENTY, "cpu", 1),
        (150, 0, PLENTY, "cpu", 32),
        (150, 2**20, 16 * 2**20, "cpu", 4),  # a quarter of the free memory
        (150, 2**20, 16 * 2**20, "cuda:0", 4),
        (150, 2**26, PLENTY, "cpu", 16),  # 1 GiB
        (150, 2**26, PLENTY, "cuda:0", 150),
        (150, 2**30, 0, "cpu", 2),
    ],
)
def test_how_many_calls_are_checked(timed, output_bytes, free, device, expected):
    assert number_of_checks(timed, output_bytes, free, device) == expected


class TestSchedule:
    @given(st.integers(1, 200), st.integers(1, 60), st.integers(0, 2**32))
    def test_each_check_comes_once_at_most(self, calls, count, seed):
        checks = [TimedCheck(number, []) for number in range(count)]
        schedule = secret_schedule(calls, checks, random.Random(seed))
        used = [check.number for check in schedule.values()]
        assert len(set(used)) == len(used) >= 1
        assert set(schedule) <= set(range(calls))
        assert len(schedule) == calls or count < calls

    def test_more_are_made_if_chance_wants_them(self):
        asked = []

        def more(count):
            asked.append(count)
            return range(100, 100 + count)

        for seed in range(300):
            schedule = secret_schedule(40, range(4), random.Random(seed), more)
            assert len(set(schedule.values())) == len(schedule)
        assert 5 < len(asked) < 60

    def test_without_checks(self):
        assert secret_schedule(9, [], random.Random(4)) == {}

    def test_those_seen_say_nothing_about_those_to_come(self):
        """Neither how many there were, nor how few calls are left."""
        left: dict[int, list[int]] = {}
        for seed in range(4000):
            places = secret_schedule(50, range(16), random.Random(seed))
            left.setdefault(min(9, sum(place < 40 for place in places)), []).append(
                sum(place >= 40 for place in places)
            )
        often = {seen: sum(some) / len(some) for seen, some in left.items() if len(some) > 300}
        assert len(often) > 3
        assert max(often.values()) < 1.25 * min(often.values())
        assert sum(some.count(0) for some in left.values()) > 300  # none among the last


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
            ([0, 0, 1, 1], [2, 3], None),
            ([0, 1, 1], [], 1.5),
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
