"""Which tokens are left by top-k, top-p and min-p: held against the definition, token by token."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fib_ops_llm.sampling import SamplingInputs, read_inputs
from fib_ops_llm.sampling_rows import best_supported, row_of
from flashinfer_bench.bench.evaluators import Trial
from flashinfer_bench.data import TensorSpec
from flashinfer_bench.errors import CapabilityError, DataError

NO_FILTER = {"top_k": None, "top_p": None, "min_p": None}


def one_row(probs, **filters):
    given = {name: np.array([value]) for name, value in filters.items()}
    probs = np.array([probs], dtype=np.float32)
    inputs = SamplingInputs(probs=probs, computed=False, seeded=False, **{**NO_FILTER, **given})
    return row_of(inputs, 0)


def left_of(probs, top_k=0, top_p=1.0, min_p=0.0):
    """Return which tokens the filters leave, by the words of their definition."""
    order = sorted(range(len(probs)), key=lambda token: -probs[token])
    if 0 < top_k < len(order):
        order = order[:top_k]
    total, before, left = sum(probs[token] for token in order), 0.0, []
    for token in order:
        if left and before / total > max(top_p, 0.0):
            break
        before += probs[token]
        left.append(token)
        if top_p <= 0.0:
            break
    largest = probs[order[0]]
    return {token for token in left if probs[token] > 0 and probs[token] >= min_p * largest}


def distinct(weights):
    """Make probabilities out of distinct integers, with no ties and no sums near a share."""
    return [weight / sum(weights) for weight in weights]


weights = st.lists(st.integers(1, 10**6), min_size=1, max_size=12, unique=True)


@given(weights, st.integers(-1, 14), st.sampled_from([-1.0, 0.0, 0.37, 0.613, 0.9, 1.0, 2.0]))
def test_the_floor_is_the_least_probability_that_is_left(numbers, top_k, top_p):
    probs = distinct(numbers)
    expected = left_of(probs, top_k, top_p)
    row = one_row(probs, top_k=top_k, top_p=top_p)
    floors = {np.float32(min(probs[token] for token in expected))}
    assert floors & {np.float32(each.floor) for each in row.supports}


@given(weights, st.sampled_from([0.0, 0.1, 0.5, 0.99]))
def test_min_p(numbers, min_p):
    probs = distinct(numbers)
    row = one_row(probs, min_p=min_p)
    left = left_of(np.float32(probs), min_p=min_p)
    assert {int((row.falling(each) > 0).sum()) for each in row.supports} & {
        len(left) - 1,
        len(left),
        len(left) + 1,
    }


@given(weights, st.integers(0, 14), st.floats(0.05, 1.0))
def test_every_answer_is_a_distribution(numbers, top_k, top_p):
    row = one_row(distinct(numbers), top_k=top_k, top_p=top_p)
    assert 1 <= len(row.supports) <= 8
    for support in row.supports:
        falling = row.falling(support)
        assert falling.sum() == pytest.approx(1.0)
        assert (np.diff(falling) <= 0).all()
        assert falling[-1] == pytest.approx(support.floor / support.mass)
        assert 1 <= support.kept <= support.tied


class TestTies:
    def test_any_of_equals_may_be_left(self):
        row = one_row([0.4, 0.2, 0.2, 0.2], top_k=2)
        kinds = [(each.kept, each.tied) for each in row.supports]
        assert kinds == [(1, 3), (3, 3)]
        values = np.array([0.4, 0.2], dtype=np.float32)
        for counts in ([2, 1], [200, 100]):
            support, tvd = best_supported(row, values, np.array(counts))
            assert support.kept == 1
            assert tvd == pytest.approx(0.0, abs=1e-6)
        values = np.array([0.4, 0.2, 0.2, 0.2], dtype=np.float32)
        support, tvd = best_supported(row, values, np.array([2, 1, 1, 1]))
        assert support.kept == 3
        assert tvd == pytest.approx(0.0, abs=1e-6)

    def test_a_sum_that_meets_the_share_may_be_rounded_either_way(self):
        row = one_row([0.5, 0.3, 0.2], top_p=0.8)
        assert {round(each.mass, 3) for each in row.supports} == {0.8, 1.0}
        assert len(one_row([0.5, 0.3, 0.2], top_p=0.7).supports) == 1


def read(sampler, **given):
    """Read inputs of these names."""
    inputs = {
        name: TensorSpec(shape=list(map(str, value.shape)), dtype="float32")
        for name, value in given.items()
    }
    definition = sampler([[0.5, 0.5]]).definition.model_copy(update={"inputs": inputs})
    return read_inputs(definition, Trial(0, 1, list(given.values()), []))


def test_logits_are_softmaxed(sampler):
    logits = torch.tensor([[0.0, 1.0, -float("inf")]])
    found = read(sampler, logits=logits)
    assert found.probs[0].tolist() == pytest.approx([0.2689414, 0.7310586, 0.0])
    assert found.computed


def test_what_is_not_known_is_not_ignored(sampler):
    probs = torch.tensor([[0.5, 0.5]])
    with pytest.raises(CapabilityError, match=r"input 'penalty'.*probs or logits, top_k"):
        read(sampler, probs=probs, penalty=torch.tensor([0.1]))
    with pytest.raises(CapabilityError, match="no input called 'probs' or 'logits'"):
        read(sampler, weights=probs)


@pytest.mark.parametrize("row", [[0.0, 0.0], [-0.5, 1.5], [float("nan"), 1.0]])
def test_what_is_no_distribution(sampler, row):
    with pytest.raises(DataError, match="row 1 of the probabilities is not a distribution"):
        read(sampler, probs=torch.tensor([[0.5, 0.5], row]))
