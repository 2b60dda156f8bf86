"""The indexer: the right tokens, in any order, judged by scores that the judge computes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fib_ops_llm.dsa_topk_indexer import Candidates, candidates_of, check_row

NUMERICAL = "INCORRECT_NUMERICAL"


@pytest.fixture(params=["fp8_indexer", "plain_indexer"])
def indexer(request):
    return request.getfixturevalue(request.param)


def changed(indexer, row, place, token):
    outputs = indexer.right()
    outputs[0][row, place] = token
    return outputs


def candidates(indexer, row):
    given = dict(zip(indexer.definition.inputs, indexer.trial.inputs, strict=True))
    return list(candidates_of(given))[row]


def in_order(found):
    """Return the tokens of a row from the best to the worst."""
    return [int(token) for token in found.tokens[found.scores.argsort(descending=True)]]


def only_tokens(indexer):
    """Leave scores out of what is asked for."""
    kept = dict(list(indexer.definition.outputs.items())[:1])
    indexer.definition = indexer.definition.model_copy(update={"outputs": kept})
    indexer.trial = type(indexer.trial)(0, 7, indexer.trial.inputs, indexer.trial.expected[:1])
    return indexer


def test_the_judge_s_scores_are_the_reference_s(plain_indexer):
    chosen, scores = plain_indexer.right()
    for row in range(3):
        found = candidates(plain_indexer, row)
        by_token = dict(zip(found.tokens.tolist(), found.scores.tolist(), strict=True))
        for token, score in zip(chosen[row].tolist(), scores[row].tolist(), strict=True):
            assert token == -1 or by_token[token] == pytest.approx(score, rel=1e-5, abs=1e-5)


def test_any_order_is_right(indexer):
    flipped = [output.flip(-1) for output in indexer.right()]  # padding comes first, too
    assert indexer.check(flipped).passed


@pytest.mark.parametrize("row", [0, 1])
def test_a_token_of_a_smaller_score_is_wrong(indexer, row):
    indexer = only_tokens(indexer)
    order = in_order(candidates(indexer, row))
    chosen = indexer.right()[0][row].tolist()
    outputs = changed(indexer, row, chosen.index(order[0]), order[-1])
    found = indexer.check(outputs)
    assert found.status == NUMERICAL
    assert (
        f"row {row}: {len(chosen) - 1} of {len(chosen)} right: token {order[-1]} " in found.message
    )
    assert found.correctness.max_absolute_error > 0
    assert indexer.check_timed(outputs).status == NUMERICAL


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (-1, "tokens are selected instead of"),
        (-2, "is not a token of the row"),
        (10**6, "is not a token of the row"),
        (-(2**31), "is not a token of the row"),
        ("other", "is repeated"),
    ],
)
def test_what_is_no_selection_at_all(indexer, value, told):
    outputs = indexer.right()
    outputs[0][0, 0] = int(outputs[0][0, 1]) if value == "other" else value
    for ratio in (1.0, 0.1):
        found = indexer.configured(required_matched_ratio=ratio).check(outputs)
        assert found.status == NUMERICAL
        assert told in found.message
    assert found.correctness.max_absolute_error == math.inf


def test_a_share_of_wrong_tokens_if_that_is_asked_for(fp8_indexer):
    order = in_order(candidates(fp8_indexer, 0))
    outputs = changed(fp8_indexer, 0, 7, order[-1])
    assert not fp8_indexer.check(outputs).passed
    assert fp8_indexer.configured(required_matched_ratio=0.8).check(outputs).passed


def test_ties_may_be_broken_either_way(fp8_indexer):
    """All keys alike: every token of the sequence has the same score."""
    inputs = [*fp8_indexer.trial.inputs]
    cache = inputs[1].reshape(12, -1).clone()
    cache[:, :64] = cache[:1, :16].repeat(1, 4)
    cache[:, 64:] = cache[:1, 64:68].repeat(1, 4)
    inputs[1] = cache.reshape(12, 4, 1, 20)
    tied = type(fp8_indexer)(fp8_indexer.definition, inputs, {"rows": 4, "pages": 12, "most": 5})
    outputs = tied.right()
    outputs[0][0] = candidates(tied, 0).tokens[-8:]
    assert tied.check(outputs).passed
    outputs[0][0, 0] = outputs[0][0, 1]
    assert not tied.check(outputs).passed


def test_scores_that_are_an_output_belong_to_the_tokens(plain_indexer):
    chosen, scores = plain_indexer.right()
    assert not plain_indexer.check([chosen.flip(-1), scores]).passed
    assert not plain_indexer.check([chosen, scores + 0.5]).passed
    padded = scores.clone()
    padded[2, 3] = 0.0
    assert not plain_indexer.check([chosen, padded]).passed
    assert plain_indexer.check([chosen, scores + 1e-5]).passed


class TestByReference:
    """Where the judge does not know the scores."""

    @pytest.fixture
    def unknown(self, fp8_indexer):
        """The definition multiplies by something else than what is known."""
        reference = fp8_indexer.definition.reference.replace(".relu()", ".abs().neg()")
        changes = {"reference": reference}
        fp8_indexer.definition = fp8_indexer.definition.model_copy(update=changes)
        inputs = fp8_indexer.trial.inputs
        return type(fp8_indexer)(
            fp8_indexer.definition, inputs, {"rows": 4, "pages": 12, "most": 5}
        )

    def test_the_selection_is_the_reference_s(self, unknown):
        outputs = unknown.right()
        found = unknown.check([outputs[0].flip(-1)])
        assert found.passed
        assert found.correctness.extra["judged_by"] == "reference"
        outputs[0][0, 0] = next(t for t in range(48) if t not in outputs[0][0].tolist())
        found = unknown.check(outputs)
        assert found.status == NUMERICAL
        assert "1 tokens differ from the reference" in found.message
        assert unknown.configured(extra={"dsa_reference_overlap": 0.8}).check(outputs).passed


# ------------------------------------------------------------------ single rows


def row(scores, tokens=None):
    scores = torch.tensor(scores, dtype=torch.float32)
    tokens = torch.arange(len(scores)) if tokens is None else torch.tensor(tokens)
    return Candidates(tokens, scores)


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=12), st.integers(1, 8), st.data())
def test_a_selection_is_right_if_nothing_better_is_left_out(scores, room, data):
    order = data.draw(st.permutations(range(len(scores))))
    chosen = order[: min(room, len(scores))]
    selected = np.full(room, -1)
    selected[: len(chosen)] = chosen
    data.draw(st.randoms()).shuffle(selected)
    left = [scores[token] for token in order[len(chosen) :]]
    worst = min(scores[token] for token in chosen)
    assert (not check_row(selected, row(scores), 1e-3).problem) == all(s <= worst for s in left)


def test_a_token_that_the_table_names_twice_may_be_there_twice():
    twice = row([3.0, 3.0, 1.0], tokens=[7, 7, 4])
    assert not check_row(np.array([7, 7]), twice, 1e-3).problem
    assert check_row(np.array([7, 4]), twice, 1e-3).problem
    assert check_row(np.array([4, 4]), twice, 1e-3).fatal


def test_nan_goes_first_and_hides_nothing():
    odd = row([math.nan, 1.0, 2.0, 0.0])
    assert not check_row(np.array([0, 2]), odd, 1e-3).problem
    assert check_row(np.array([1, 2]), odd, 1e-3).problem
    assert check_row(np.array([0, 3]), odd, 1e-3).problem
    assert not check_row(np.array([0, 1]), row([math.nan] * 4), 1e-3).problem
