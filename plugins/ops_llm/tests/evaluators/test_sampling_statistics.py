"""The bounds of the sampling tests hold for honest samplers, and are not so wide as to say nothing.

They are simulated at a false-alarm rate that can be seen in a simulation, and with fixed seeds.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_ops_llm import sampling_rows as statistics

ROUNDS = 400


@pytest.fixture
def frequent(monkeypatch):
    """Let one honest sampler in ten fail."""
    monkeypatch.setattr(statistics, "FALSE_ALARM", 0.1)
    return 0.1


def distributions():
    generator = np.random.default_rng(0)
    yield "even", np.full(10, 0.1)
    yield "pair", np.array([0.5, 0.5])
    yield "nearly one", np.array([0.97, 0.02, 0.01])
    yield "one", np.array([1.0])
    yield "wide", np.sort(generator.lognormal(size=3000))[::-1]
    yield "power law", 1.0 / np.arange(1, 200)


CASES = {name: falling / falling.sum() for name, falling in distributions()}
every_case = pytest.mark.parametrize("falling", CASES.values(), ids=CASES)


def tvd(counts, falling):
    return np.abs(counts / counts.sum() - falling).sum() / 2


@given(st.integers(1, 8), st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_the_mean_distance_is_that_of_all_outcomes(count, weights):
    falling = np.sort(np.array(weights))[::-1] / sum(weights)
    total = 0.0
    for outcome in itertools.product(range(len(falling)), repeat=count):
        counts = np.bincount(outcome, minlength=len(falling))
        total += math.prod(falling[token] for token in outcome) * tvd(counts, falling)
    assert statistics.expected_tvd(falling, count) == pytest.approx(total, abs=1e-9)


@every_case
@pytest.mark.parametrize("count", [5, 100])
def test_an_honest_sampler_keeps_to_the_distance(falling, count, frequent):
    generator = np.random.default_rng(2)
    limit = statistics.expected_tvd(falling, count) + statistics.tvd_margin(count)
    beyond = [tvd(generator.multinomial(count, falling), falling) > limit for _ in range(ROUNDS)]
    assert np.mean(beyond) <= frequent


@every_case
@pytest.mark.parametrize("count", [2, 10, 100])
def test_an_honest_sampler_does_not_repeat_itself(falling, count, frequent):
    generator = np.random.default_rng(4)

    def repeats():
        counts = generator.multinomial(count, falling)
        drawn = counts > 0
        return statistics.is_repeated(counts[drawn], falling[drawn]).any()

    # Chernoff's bound is exact for two draws: of 400 rounds 40 are expected to, and not 63
    assert np.mean([repeats() for _ in range(ROUNDS)]) <= frequent * 1.5


def test_the_same_token_again_and_again_is_found():
    for probability in (1e-5, 0.01, 0.3, 0.5, 0.7):
        assert statistics.is_repeated(np.array([100]), np.array([probability])).all()
    assert not statistics.is_repeated(np.array([100]), np.array([1.0])).any()
    assert not statistics.is_repeated(np.array([1]), np.array([1e-9])).any()


def standard(uniforms):
    return (uniforms - 0.5) * math.sqrt(12.0)


@pytest.mark.parametrize(("calls", "rows"), [(100, 2), (20, 8), (10, 64)])
def test_copies_of_a_row_are_found(calls, rows):
    generator = np.random.default_rng(6)
    for _ in range(50):
        copies = np.tile(generator.random((calls, 1)), rows)
        found, limit = statistics.dependence(standard(copies))
        assert found > limit
