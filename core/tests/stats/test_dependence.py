import math
import random
from statistics import median

import pytest

from flashinfer_bench.stats.dependence import Spread, count_variance


def typical(take, count, runs=60):
    """Return the median factor over runs of a timer."""
    rng = random.Random(8)
    return median(count_variance(Spread.of(take(rng, count)))[0] for _ in range(runs))


def independent(rng, count):
    return [rng.lognormvariate(0, 0.1) for _ in range(count)]


def wandering(rho):
    def take(rng, count):
        state, run = rng.gauss(0, 1), []
        for _ in range(count):
            run.append(math.exp(0.02 * state))
            state = rho * state + math.sqrt(1 - rho * rho) * rng.gauss(0, 1)
        return run

    return take


def drifting(rng, count):
    return [math.exp(rng.gauss(0, 0.01) + 0.06 * i / count) for i in range(count)]


class TestFactor:
    @pytest.mark.parametrize("count", [60, 300])
    def test_independent_samples_count_fully(self, count):
        assert typical(independent, count) == pytest.approx(1.0, abs=0.15)

    def test_wandering_ones_count_less(self):
        """Signs of an AR(1) correlate as 2 / pi * asin(rho^k), so the factor is known."""
        rho = 0.5
        true = 1 + 2 * sum(2 / math.pi * math.asin(rho**k) for k in range(1, 60))
        assert typical(wandering(rho), 600) == pytest.approx(true, rel=0.15)

    def test_drifting_ones_count_more(self):
        """Mean of 4 p (1 - p), with p the chance to lie below along the drift."""
        from statistics import NormalDist

        chances = [NormalDist().cdf(6 * (i - 200) / 400) for i in range(400)]
        true = 4 * sum(p * (1 - p) for p in chances) / len(chances)
        assert true < 0.6
        assert typical(drifting, 400) == pytest.approx(true, rel=0.2)


class TestSpread:
    def test_a_tick_is_filled_evenly_around_the_middle(self):
        spread = Spread.of([5.0] * 9, resolution=1.0)
        assert spread.median == 5.0
        gaps = [b - a for a, b in zip(spread.ordered, spread.ordered[1:], strict=False)]
        assert gaps == pytest.approx(gaps[::-1])
        assert 4.5 <= spread.ordered[0] < spread.ordered[-1] <= 5.5
        assert spread.slack == (4.5, 5.5)

    def test_normal_noise_on_ticks_keeps_its_median(self):
        """With a straight line over the tick this is off by several standard errors."""
        from statistics import NormalDist

        true = NormalDist(10.15, 0.4)
        shares = [(i + 0.5) / 20000 for i in range(20000)]
        run = [0.5 * round(true.inv_cdf(share) / 0.5) for share in shares]
        assert Spread.of(run, resolution=0.5).median == pytest.approx(10.15, abs=1e-3)
