from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.executors.base import CandidateMisbehaved, CandidateTimeout, Timing
from flashinfer_bench.bench.judge.deadline import Deadline
from flashinfer_bench.bench.judge.measure import Rounds, find_timing_problem, measure, time_left
from flashinfer_bench.bench.locks import lock_path

if TYPE_CHECKING:
    from collections.abc import Sequence


def timing(samples: Sequence[float]) -> Timing:
    return Timing(tuple(samples), "clock", "1", 1.0)


class TestTimingProblem:
    def test_none(self) -> None:
        assert find_timing_problem(timing([1.0, 0.0, 2.5]), 3) is None

    @pytest.mark.parametrize(
        ("samples", "iterations", "text"),
        [
            ([1.0], 2, "1 samples instead of 2"),
            ([1.0, 1.0], 1, "2 samples instead of 1"),
            ([1.0, math.nan], 2, "a sample of nan ms is not a duration"),
            ([math.inf, 1.0], 2, "a sample of inf ms"),
            ([1.0, -0.001], 2, "a sample of -0.001 ms"),
            ([1102.0, 1.0], 2, "a sample of 1102 ms in a request that took 1000 ms"),
            ([1.7e308, 1.7e308], 2, "in a request"),
            ([5e-324], 1, "cannot tell"),
            ([0.0, 0.0, 1.0], 3, "the timer 'clock' cannot tell the latency from zero"),
        ],
    )
    def test_each(self, samples: list[float], iterations: int, text: str) -> None:
        problem = find_timing_problem(timing(samples), iterations)
        assert problem is not None
        assert text in problem

    @given(st.lists(st.one_of(st.floats(), st.floats(0, 1e3)), min_size=1, max_size=20))
    def test_what_passes_is_usable(self, samples: list[float]) -> None:
        if find_timing_problem(timing(samples), len(samples)) is None:
            latency = median(samples)
            assert 0 < latency < math.inf
            assert math.isfinite(1e4 / latency)


class TestRounds:
    def test_enough_time(self) -> None:
        rounds = Rounds(3, 10, 50)
        assert rounds.within(18.0, 0.1) is rounds

    def test_slow_calls_are_fewer(self) -> None:
        assert Rounds(3, 10, 50).within(18.0, 1.0) == Rounds(3, 1, 5)

    @given(
        st.integers(1, 5),
        st.integers(0, 50),
        st.integers(1, 100),
        st.floats(-1, 1e4),
        st.floats(1e-6, 1e4),
    )
    def test_fits_or_is_as_short_as_can_be(
        self, count: int, warmup: int, iterations: int, budget: float, call: float
    ) -> None:
        found = Rounds(count, warmup, iterations).within(budget, call)
        assert found.count == count
        assert 0 <= found.warmup <= warmup
        assert 1 <= found.iterations <= iterations
        cost = count * (found.warmup + found.iterations) * call
        assert cost <= budget * (1 + 1e-9) or found.iterations == 1


class TestTimeLeft:
    def test_some(self, executor: Any) -> None:
        candidate = executor.spawn()
        assert 0 < time_left(Deadline(9.0), candidate, "call") <= 9.0
        assert candidate.alive

    def test_none(self, executor: Any) -> None:
        candidate = executor.spawn()
        with pytest.raises(CandidateTimeout, match="no time left of -1 s") as caught:
            time_left(Deadline(-1.0), candidate, "call")
        assert caught.value.stage == "call"
        assert not candidate.alive


class TestMeasure:
    def take(self, source: str, executor: Any, problems: Any, session: Any, **rounds: Any) -> Any:
        candidate = executor.spawn()
        candidate.load(problems.definition(), problems.solution(source), timeout_s=1.0)
        wanted = Rounds(**{"count": 2, "warmup": 1, "iterations": 3, **rounds})
        return measure(session(), candidate, 2, wanted, Deadline(9.0))

    def test_rounds_go_over_all_sets(self, executor: Any, problems: Any, session: Any) -> None:
        self.take("pass", executor, problems, session)
        assert executor.of("time") == [(1000, (0, 1), "clock", 1, 3)] * 2

    def test_latency_is_the_median_of_all_samples(
        self, executor: Any, problems: Any, session: Any
    ) -> None:
        source = "NOTES = ['warm', 'warm']\nSAMPLES = [1.0, 2.0, 30.0]"
        found = self.take(source, executor, problems, session)
        assert found.samples_ms == (1.0, 2.0, 30.0) * 2
        assert found.latency_ms == 2.0
        assert (found.timer, found.timer_version, found.notes) == ("clock", "7", ("warm",))

    def test_samples_are_stored_as_they_count(
        self, executor: Any, problems: Any, session: Any
    ) -> None:
        found = self.take("SAMPLES = [0.123456789012]", executor, problems, session)
        assert found.samples_ms[0] == 0.1234568
        assert found.latency_ms == median(found.samples_ms)

    @pytest.mark.parametrize("samples", ["[0.0]", "[float('nan')]", "[-1.0]"])
    def test_nonsense_is_misbehaviour(
        self, samples: str, executor: Any, problems: Any, session: Any
    ) -> None:
        with pytest.raises(CandidateMisbehaved) as caught:
            self.take(f"SAMPLES = {samples}", executor, problems, session)
        assert caught.value.stage == "time"
        assert executor.of("close") == [(1000,)]

    def test_too_few_samples(self, executor: Any, problems: Any, session: Any) -> None:
        with pytest.raises(CandidateMisbehaved, match="1 samples instead of 3"):
            self.take("SHORT = True\nSAMPLES = [1.0]", executor, problems, session)

    def test_device_is_locked_meanwhile(
        self, executor: Any, problems: Any, session: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from filelock import FileLock, Timeout

        seen = []

        def look(*args: Any, **options: Any) -> Timing:
            with pytest.raises(Timeout):
                FileLock(lock_path("cpu")).acquire(timeout=0)
            seen.append(options["timer"])
            return timing([1.0] * options["iterations"])

        candidate = executor.spawn()
        monkeypatch.setattr(candidate, "time", look)
        measure(session(), candidate, 1, Rounds(2, 0, 1), Deadline(9.0))
        assert seen == ["clock", "clock"]
