"""The reference in between a solution's timed calls, and what is recorded of both."""

import builtins
import math
import random
from itertools import groupby

import pytest

from fib_judge.calibration import Ceilings
from fib_judge.paired_reference import (
    PairedSamples,
    as_of_any_process,
    interleaved_ratio,
    paired_speeds,
)
from flashinfer_bench.bench.calls import Measurement
from flashinfer_bench.data import EvaluationStatus
from flashinfer_bench.errors import DataError
from flashinfer_bench.stats.intervals import ratio_interval

DOUBLES = "OVERHEAD_MS = 0.01\ndef run(x): return x * 2\n"
HONEST = DOUBLES + "SAMPLES = [2.0, 2.2, 1.8]\n"
REFERENCE = DOUBLES + "SAMPLES = [4.0, 4.4, 3.6]\n"


@pytest.fixture
def judge(judging):
    """Evaluate a solution, given as source, with 1 x (3 + 50) calls by default."""
    config = {"warmup_runs": 3, "iterations": 50, "num_trials": 1, "interleave_reference": True}
    run = judging(n=200, reference=REFERENCE, config=config)
    return lambda source=HONEST, **options: run(source, **options)


def turns_of(executor):
    """Return the timed calls as (process, how many in a row)."""
    fired = [pid for pid, *_ in executor.of("fire")]
    return [(pid, len(list(row))) for pid, row in groupby(fired)]


class TestTurns:
    @pytest.mark.parametrize("trust", ["full", "off"])
    def test_each_has_its_turn(self, judge, executor, trust):
        found = judge(trust=trust)
        assert found.status is EvaluationStatus.PASSED
        rows = turns_of(executor)
        assert [pid for pid, _ in rows] == [1000, 1001] * 6 + [1000]
        assert [count for pid, count in rows if pid == 1001] == [2 + 2] * 6
        assert sum(count for pid, count in rows if pid == 1000) >= 3 + 50
        assert found.performance.reference_samples_ms is not None
        assert len(found.performance.reference_samples_ms) == 12
        assert len(found.performance.samples_ms) == 50
        assert found.provenance.timing["reference"] == "beside"

    def test_slow_calls_are_few_and_have_as_many_turns(self, judge, executor):
        slow = "import time\ndef run(x):\n    time.sleep(0.07)\n    return x * 2\n"
        found = judge(slow, config={"num_trials": 3})
        assert 30 <= len(found.performance.samples_ms) <= 40
        assert found.log.count("fewer than 150 timed calls") == 1
        assert sum(pid == 1001 for pid, _ in turns_of(executor)) >= 6

    def test_who_has_no_turn_stands_still(self, judge, executor):
        judge(trust="off")
        events = [event for event in executor.events if event[0] in ("fire", "rest")]
        rows = [kind for kind, _ in groupby((event[0], event[1]) for event in events)]
        turn = [("fire", 1000), ("rest", 1000), ("fire", 1001), ("rest", 1001)]
        assert rows == turn * 6 + turn[:1] + turn[3:]

    @pytest.mark.parametrize(
        ("config", "options", "reference"),
        [
            ({"interleave_reference": False}, {}, REFERENCE),
            ({}, {"profile_baseline": False}, REFERENCE),
            ({}, {}, "def run(x): return x * 2\nSAMPLES = [200.0, 201.0]\n"),  # too slow for that
        ],
    )
    def test_not_where_it_is_not_wanted_or_not_worth_it(
        self, judge, executor, config, options, reference
    ):
        found = judge(config=config, reference=reference, **options)
        assert found.status is EvaluationStatus.PASSED
        assert {pid for pid, *_ in executor.of("fire")} == {1000}
        timed = options.get("profile_baseline", True)
        assert found.provenance.timing["reference"] == ("before" if timed else "not")
        assert (found.performance.reference_samples_ms is not None) is timed
        assert (found.performance.speedup_interval is not None) is timed

    def test_not_for_a_solution_that_is_wrong(self, judge, executor):
        assert judge("def run(x): return x * 3").status is EvaluationStatus.INCORRECT_NUMERICAL
        assert len(executor.of("spawn")) == 1

    @pytest.mark.parametrize("what", ["raise Crash", "raise ValueError('no')", "raise Hang"])
    def test_a_reference_that_fails_there_blames_nobody(self, judge, monkeypatch, what):
        source = HONEST + "import os\ndef on_time(): os.environ['FIB_TEST_SOLUTION_RAN'] = '1'\n"
        reference = (
            f"{REFERENCE}import os\n"
            f"def on_time():\n    if 'FIB_TEST_SOLUTION_RAN' in os.environ: {what}\n"
        )
        monkeypatch.setenv("FIB_TEST_SOLUTION_RAN", "")
        monkeypatch.delenv("FIB_TEST_SOLUTION_RAN")
        found = judge(source, reference=reference)
        assert found.status is EvaluationStatus.PASSED
        assert found.provenance.timing["reference"] == "before"
        assert found.performance.speedup_factor == pytest.approx(2.0)


class TestSpeeds:
    def test_who_slows_the_reference_down_gains_nothing(self, judge, monkeypatch):
        monkeypatch.setattr(builtins, "fib_test_factor", 1, raising=False)
        source = HONEST + "import builtins\nbuiltins.fib_test_factor = 2\n"
        reference = DOUBLES + "import builtins\nSAMPLES = [4.0 * builtins.fib_test_factor]\n"
        found = judge(source, reference=reference)
        assert found.performance.reference_latency_ms == pytest.approx(4.0)
        assert found.performance.speedup_factor == pytest.approx(2.0)
        assert "took 8 ms beside this solution and 4 ms alone" in found.log
        assert found.provenance.timing["reference"] == "before"

    def test_dropped_samples_do_not_count(self):
        taken = Measurement((9.0, 9.0, 1.0, 2.0, 3.0), "clock", "1", dropped=((0, 2),))
        alone = Measurement((4.0, 4.0, 4.0), "clock", "1")
        times = paired_speeds(taken, alone, None).performance
        assert times.latency_ms == 2.0
        assert times.speedup_factor == 2.0
        assert times.samples_ms == [9.0, 9.0, 1.0, 2.0, 3.0]
        assert times.dropped == [(0, 2)]
        assert times.counted_ms == [1.0, 2.0, 3.0]
        assert times.interval_ms[1] <= 3.0

    @pytest.mark.parametrize(
        ("beside_ms", "apart", "reach"),
        [(5.0, False, 0.8), (3.2, False, 1.25), (9.0, True, 4 / 9), (9.0, False, 1.0)],
    )
    def test_what_happened_to_the_reference_may_have_happened_to_the_solution(
        self, beside_ms, apart, reach
    ):
        """Not if the solution could have slowed it down."""
        taken = Measurement((2.0,) * 20, "clock", "1")
        alone = Measurement((4.0,) * 20, "clock", "1")
        turns = PairedSamples((((beside_ms,) * 5, 10),), apart)
        found = paired_speeds(taken, alone, turns).performance
        assert found.latency_ms == 2.0
        assert found.interval_ms == pytest.approx(sorted((2.0, 2.0 * reach)))

    def test_another_process_might_have_had_another_latency(self):
        """By 1 us and 10 % in one standard deviation each, 1.96 of which hold 95 %."""
        taken = Measurement((0.01,) * 20, "clock", "1")
        beside = PairedSamples((((0.02,) * 20, 20),))
        speeds = paired_speeds(taken, Measurement((0.02,), "clock", "1"), beside)
        known = Ceilings("cuda:0", "A GPU", process_ms=0.001, process_share=0.1)
        found = as_of_any_process(speeds, known).performance
        reach = 1.96 * 2**0.5 * 0.001
        assert found.interval_ms == pytest.approx((0.01 - reach, 0.01 + reach))
        assert (found.latency_ms, found.speedup_factor) == (0.01, 2.0)
        of_both = 2.0 * 1.96 * (0.02 + 0.01 + 0.0025) ** 0.5
        assert found.speedup_interval == pytest.approx((2.0 - of_both, 2.0 + of_both))

    def test_no_turn_left(self):
        taken = Measurement((9.0, 9.0, 1.0), "clock", "1", dropped=((0, 2),))
        beside = PairedSamples((((4.0, 4.0), 2),))
        found = paired_speeds(taken, Measurement((4.0,), "clock", "1"), beside)
        assert found.performance.speedup_factor == 4.0


# -------------------------------------------------------------- the ratio of runs that took turns


def noise(seed, count, level):
    rng = random.Random(seed)
    return [level * math.exp(rng.gauss(0, 0.02)) for _ in range(count)]


class TestInterleavedRatio:
    @staticmethod
    def blocks(seed, count, size, steps=0.05):
        """Both sides go up and down together by `steps` from block to block."""
        rng = random.Random(seed)
        found = []
        for _ in range(count):
            level = math.exp(rng.gauss(0, steps))
            top = noise(rng.randrange(10**9), size, 20 * level)
            found.append((top, noise(rng.randrange(10**9), size, 10 * level)))
        return found

    def test_what_both_sides_share_does_not_count(self):
        blocks = self.blocks(1, 12, 20)
        apart = ratio_interval(
            [x for block in blocks for x in block[0]], [x for block in blocks for x in block[1]]
        )
        together = interleaved_ratio(blocks)
        assert together.high - together.low < 0.5 * (apart.high - apart.low)
        assert together.estimate == apart.estimate

    def test_few_blocks_are_two_runs(self):
        blocks = self.blocks(2, 3, 30)
        tops = [x for block in blocks for x in block[0]]
        bottoms = [x for block in blocks for x in block[1]]
        assert interleaved_ratio(blocks) == ratio_interval(tops, bottoms)

    @pytest.mark.parametrize(
        ("count", "size", "steps"), [(6, 20, 0.05), (12, 4, 0.0), (60, 1, 0.05)]
    )
    def test_coverage(self, count, size, steps):
        runs = 150
        found = [interleaved_ratio(self.blocks(seed, count, size, steps)) for seed in range(runs)]
        held = sum(one.low <= 2.0 <= one.high for one in found)
        assert 0.88 <= held / runs <= 0.995

    def test_no_blocks(self):
        with pytest.raises(DataError, match="no samples"):
            interleaved_ratio([])
