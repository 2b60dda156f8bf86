from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.judge.deadline import Deadline
from flashinfer_bench.bench.judge.seeds import fresh_seed, trial_seed

seeds = st.integers(0, 2**63 - 1)


class TestSeeds:
    def test_fresh_ones_differ_and_survive_json_readers(self) -> None:
        drawn = {fresh_seed() for _ in range(100)}
        assert len(drawn) == 100
        assert all(0 <= seed < 2**53 for seed in drawn)

    @given(seeds, st.integers(0, 1000))
    def test_in_range_and_repeatable(self, seed: int, trial: int) -> None:
        derived = trial_seed(seed, trial)
        assert 0 <= derived < 2**63
        assert derived == trial_seed(seed, trial)

    @given(seeds)
    def test_trials_differ(self, seed: int) -> None:
        assert len({trial_seed(seed, trial) for trial in range(20)}) == 20

    def test_stay_the_same_for_ever(self) -> None:
        # A trace's seed must give the same inputs in every later release.
        assert trial_seed(0, 0) == 1576848291327681832
        assert trial_seed(2**53 - 1, 2) == 3918840776600264507


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def failing_after(self, seconds: float) -> KeyError:
        self.now += seconds
        return KeyError()


class TestDeadline:
    def test_runs_out(self) -> None:
        clock = Clock()
        deadline = Deadline(10.0, clock)
        clock.now += 4.0
        assert deadline.remaining() == 6.0
        clock.now += 7.0
        assert deadline.remaining() == -1.0

    def test_stands_still_while_stopped(self) -> None:
        clock = Clock()
        deadline = Deadline(10.0, clock)
        with deadline.stopped():
            clock.now += 100.0
        assert deadline.remaining() == 10.0

    def test_stands_still_even_if_the_body_raises(self) -> None:
        clock = Clock()
        deadline = Deadline(10.0, clock)
        with pytest.raises(KeyError), deadline.stopped():
            raise clock.failing_after(5.0)
        assert deadline.remaining() == 10.0

    def test_real_clock(self) -> None:
        assert 0.0 < Deadline(5.0).remaining() <= 5.0
