"""The ratio of runs that took turns."""

from __future__ import annotations

import math
import random

import pytest

from fib_judge.paired_reference import interleaved_ratio
from flashinfer_bench.errors import DataError
from flashinfer_bench.stats.intervals import ratio_interval


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
