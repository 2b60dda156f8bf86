"""Samplers, honest and others: what passes, and what does not."""

import numpy as np
import pytest
import torch

from flashinfer_bench.bench.evaluators import Trial
from flashinfer_bench.data import TensorSpec

NUMERICAL = "INCORRECT_NUMERICAL"
CALLS = 100


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def left_by(probs, top_k=0, top_p=1.0, min_p=0.0):
    """Return the distribution that the filters leave, computed row by row."""
    found = np.zeros_like(probs, dtype=np.float64)
    for row, weights in enumerate(probs):
        order = np.argsort(-weights, kind="stable")
        order = order[: int(top_k)] if 0 < top_k < len(order) else order
        kept = weights[order].astype(np.float64)
        before = (np.cumsum(kept) - kept) / kept.sum()
        kept[before > top_p] = 0.0
        kept[kept < min_p * kept[0]] = 0.0
        found[row, order] = kept / kept.sum()
    return found


def inverse(target, uniforms):
    """Draw by inverting the sums over token numbers; ``[calls, rows]``."""
    sums = np.cumsum(target, axis=1)
    last = target.shape[1] - 1 - (target[:, ::-1] > 0).argmax(axis=1)
    columns = [
        np.minimum(np.searchsorted(sums[row], uniforms[:, row], side="right"), last[row])
        for row in range(len(target))
    ]
    return np.stack(columns, axis=1)


def honest(target, generator, calls=CALLS):
    return inverse(target, generator.random((calls, len(target))))


def calls_of(samples):
    return [[torch.from_numpy(row.copy())] for row in samples]


WIDE = np.random.default_rng(0).standard_normal((4, 2000))
PROBLEMS = {
    "everything": (softmax(WIDE), {}),
    "top_k": (softmax(2 * WIDE), {"top_k": 20}),
    "top_p": (softmax(2 * WIDE), {"top_p": 0.9}),
    "both": (softmax(1.5 * WIDE), {"top_k": 50, "top_p": 0.8}),
    "min_p": (softmax(1.5 * WIDE), {"min_p": 0.05}),
    "few tokens": (softmax(2 * WIDE[:, :12]), {"top_p": 0.95}),
    "one row": (softmax(2 * WIDE[:1, :100]), {"top_p": 0.95}),
}


@pytest.fixture(params=PROBLEMS)
def problem(request, sampler):
    probs, filters = PROBLEMS[request.param]
    probs = probs.astype(np.float32)
    return sampler(probs, **filters), left_by(probs, **filters), probs, filters


@pytest.mark.parametrize("seed", range(5))
def test_an_honest_sampler_passes(problem, seed):
    asked, target, _, _ = problem
    found = asked.check(*calls_of(honest(target, np.random.default_rng(seed))))
    assert found.passed, found.message
    extra = found.correctness.extra
    assert extra["matched_ratio"] == 1.0
    assert extra["samples"] == CALLS * len(target)
    assert (found.correctness.max_absolute_error, found.correctness.max_relative_error) == (0, 0)


def test_it_passes_whatever_equal_tokens_it_leaves(sampler):
    probs = np.full((3, 40), 1 / 40, dtype=np.float32)
    asked = sampler(probs, top_k=10)
    generator = np.random.default_rng(1)
    for target in (left_by(probs, top_k=10), left_by(probs), left_by(probs)[:, ::-1]):
        assert asked.check(*calls_of(honest(target, generator))).passed
    last = np.zeros((3, 40))
    last[:, 30:] = 0.1
    assert asked.check(*calls_of(honest(last, generator))).passed
    last[:, 33:] = 0.0  # only three of them
    assert not asked.check(*calls_of(honest(last / last.sum(1)[:, None], generator))).passed


class TestDishonest:
    @pytest.mark.parametrize(
        ("draw", "told"),
        [
            (lambda target, generator: np.tile(target.argmax(axis=1), (CALLS, 1)), ""),
            (
                lambda target, generator: np.tile(honest(target, generator, 1), (CALLS, 1)),
                "is repeated beyond chance",
            ),
            (
                lambda target, generator: inverse(
                    target, np.tile(generator.random((CALLS, 1)), len(target))
                ),
                "dependence of the rows on one another",
            ),
        ],
        ids=["greedy", "the same samples in each call", "the same random numbers for all rows"],
    )
    def test_what_is_not_random_enough(self, problem, draw, told):
        asked, target, _, _ = problem
        if "rows" in told and len(target) == 1:
            return
        for seed in range(5):
            found = asked.check(*calls_of(draw(target, np.random.default_rng(seed))))
            assert found.status == NUMERICAL
            assert told in found.message

    def test_ignoring_the_filters(self, problem):
        asked, _, probs, filters = problem
        samples = honest(probs / probs.sum(axis=1, keepdims=True), np.random.default_rng(0))
        found = asked.check(*calls_of(samples))
        if filters:
            assert found.status == NUMERICAL
            assert "samples are not among the allowed tokens: draw" in found.message

    def test_one_row_of_many_that_is_wrong(self, sampler):
        probs = softmax(2 * np.random.default_rng(2).standard_normal((32, 200)))
        target = probs.copy()
        target[17] = np.roll(target[17], 1)
        samples = honest(target, np.random.default_rng(3), 1000)
        asked = sampler(probs.astype(np.float32))
        found = asked.check(*calls_of(samples))
        assert found.status == NUMERICAL
        assert "row 17" in found.message

    @pytest.mark.parametrize("token", [-1, 12, 2**40, -(2**63)])
    def test_what_is_no_token(self, sampler, token):
        probs = softmax(WIDE[:, :12]).astype(np.float32)
        samples = honest(left_by(probs), np.random.default_rng(0))
        samples[70, 2] = token
        asked = sampler(probs)
        found = asked.check(*calls_of(samples))
        assert found.status == NUMERICAL
        assert f"draw 70 of row 2 is {token}, which is not in [0, 12)" in found.message
        assert asked.check_timed(calls_of(samples)[70]).status == NUMERICAL
        assert asked.check_timed(calls_of(samples)[69]).passed


def test_one_timed_call_is_valid_or_not(problem):
    asked, target, _, filters = problem
    valid = honest(target, np.random.default_rng(0), 1)
    assert asked.check_timed(calls_of(valid)[0]).passed
    if filters:
        wrong = valid.copy()
        wrong[0, 0] = target[0].argmin()
        found = asked.check_timed(calls_of(wrong)[0])
        assert found.status == NUMERICAL
        assert "1 of" in found.message
    likeliest = torch.from_numpy(target.argmax(axis=1))  # no frequency is asked of one call
    assert asked.check_timed([likeliest]).passed


def test_many_draws_in_one_call(sampler):
    probs = softmax(WIDE[:, :50]).astype(np.float32)
    asked = sampler(probs)
    outputs = {"samples": TensorSpec(shape=["rows", "draws"], dtype="int64")}
    record = asked.definition.model_copy(update={"outputs": outputs}).model_dump(mode="json")
    record["axes"]["draws"] = {"type": "const", "value": 8}
    asked.definition = type(asked.definition).model_validate(record)
    draws = honest(left_by(probs), np.random.default_rng(0), 800).reshape(CALLS, 8, 4)
    calls = [[torch.from_numpy(call.T.copy())] for call in draws]
    found = asked.check(*calls)
    assert found.passed
    assert found.correctness.extra["samples"] == 3200
    assert not asked.check(*[[call[0][:, :1].expand(4, 8)] for call in calls[:1] * CALLS]).passed


def test_calls_with_the_same_seed_are_alike(sampler):
    probs = softmax(WIDE).astype(np.float32)
    asked = sampler(probs, top_k=30)
    inputs = {**asked.definition.inputs, "seed": TensorSpec(shape=None, dtype="int64")}
    asked.definition = asked.definition.model_copy(update={"inputs": inputs})
    asked.trial = Trial(0, 7, [*asked.trial.inputs, 5], asked.trial.expected)
    once = honest(left_by(probs, top_k=30), np.random.default_rng(0), 1)
    assert asked.check(*calls_of(np.tile(once, (CALLS, 1)))).passed
    wrong = np.tile(np.argmin(probs, axis=1), (CALLS, 1))
    assert not asked.check(*calls_of(wrong)).passed


def test_other_outputs_are_compared(sampler):
    probs = softmax(WIDE).astype(np.float32)
    asked = sampler(probs)
    outputs = {**asked.definition.outputs, "kept": TensorSpec(shape=["rows"], dtype="bool")}
    asked.definition = asked.definition.model_copy(update={"outputs": outputs})
    kept = torch.tensor([True, False, True, True])
    asked.trial = Trial(0, 7, asked.trial.inputs, [*asked.trial.expected, kept])
    calls = calls_of(honest(left_by(probs), np.random.default_rng(0)))
    assert asked.check(*[[*call, kept] for call in calls]).passed
    found = asked.check(*[[*call, ~kept] for call in calls])
    assert found.status == NUMERICAL
    assert "output 'kept': 0 of 4 match" in found.message
    assert asked.check_timed([*calls[0], ~kept]).status == NUMERICAL
