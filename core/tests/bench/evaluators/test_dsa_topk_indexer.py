"""The indexer: the right tokens, in any order, judged by scores that the judge computes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.evaluators.index_scores import Candidates, candidates_of
from flashinfer_bench.bench.evaluators.selection import check_row, check_row_against

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


def test_it_is_found_by_what_the_definition_is(indexer):
    assert indexer.evaluator.name == "dsa_topk_indexer"
    found = indexer.check(indexer.right())
    assert found.passed
    assert found.correctness.extra["judged_by"] == "scores"


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


def test_the_first_ones_are_wrong(indexer):
    """A kernel that selects whatever comes first in the sequence."""
    indexer = only_tokens(indexer)
    outputs = indexer.right()
    first = candidates(indexer, 0).tokens[: outputs[0].shape[1]]
    assert {*first.tolist()} != {*outputs[0][0].tolist()}
    outputs[0][0] = first
    assert indexer.check(outputs).status == NUMERICAL


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (-1, "tokens are selected instead of"),
        (-2, "is no token of the row"),
        (10**6, "is no token of the row"),
        (-(2**31), "is no token of the row"),
        ("other", "is there twice"),
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


def test_a_token_of_another_sequence_is_wrong(fp8_indexer):
    mine = set(candidates(fp8_indexer, 0).tokens.tolist())
    stranger = next(token for token in range(48) if token not in mine)
    assert not fp8_indexer.check(changed(fp8_indexer, 0, 3, stranger)).passed


def test_padding_is_exactly_where_there_is_nothing_left(fp8_indexer):
    assert fp8_indexer.right()[0][3].tolist() == [-1] * 8
    assert not fp8_indexer.check(changed(fp8_indexer, 3, 0, 0)).passed
    rest = fp8_indexer.right()[0][2]
    assert (rest == -1).sum() == 3
    assert not fp8_indexer.check(changed(fp8_indexer, 2, 7, int(rest[0]))).passed


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

    def test_a_reference_of_other_scores_is_noticed(self, unknown):
        found = unknown.check(unknown.right())
        assert found.passed
        assert found.correctness.extra["judged_by"] == "reference"

    def test_inputs_of_another_form(self, fp8_indexer):
        inputs = dict(fp8_indexer.definition.inputs)
        inputs["k_index_cache"] = inputs.pop("k_index_cache_fp8")
        given = dict(zip(inputs, fp8_indexer.trial.inputs, strict=True))
        assert candidates_of(given) is None
        assert candidates_of({}) is None

    def test_a_cache_of_another_layout(self, fp8_indexer):
        given = dict(zip(fp8_indexer.definition.inputs, fp8_indexer.trial.inputs, strict=True))
        given["k_index_cache_fp8"] = torch.zeros(12, 4, 16, dtype=torch.int8)
        assert candidates_of(given) is None

    def test_the_selection_is_the_reference_s(self, unknown):
        outputs = unknown.right()
        assert unknown.check([outputs[0].flip(-1)]).passed
        outputs[0][0, 0] = next(t for t in range(48) if t not in outputs[0][0].tolist())
        found = unknown.check(outputs)
        assert found.status == NUMERICAL
        assert "1 tokens are not the reference's" in found.message
        assert unknown.configured(extra={"dsa_reference_overlap": 0.8}).check(outputs).passed

    @pytest.mark.parametrize("value", [-2, 48, 10**6, "other", -1])
    def test_what_is_no_selection_at_all(self, unknown, value):
        outputs = unknown.right()
        outputs[0][0, 0] = int(outputs[0][0, 1]) if value == "other" else value
        assert (
            unknown.configured(extra={"dsa_reference_overlap": 0.1}).check(outputs).passed is False
        )


def test_structure_comes_first(indexer):
    right = indexer.right()
    assert indexer.check([]).status == "INCORRECT_SHAPE"
    assert indexer.check([right[0][:1], *right[1:]]).status == "INCORRECT_SHAPE"
    assert indexer.check([right[0].long(), *right[1:]]).status == "INCORRECT_DTYPE"


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


@given(st.lists(st.floats(-10, 10, width=32), min_size=3, max_size=30), st.integers(1, 10))
def test_the_best_are_right_and_the_worst_are_wrong(scores, room):
    order = np.argsort(scores)
    assert not check_row(order[::-1][:room].copy(), row(scores), 1e-3).problem
    found = check_row(order[:room].copy(), row(scores), 1e-3)
    ordered, size = np.sort(scores), min(room, len(scores))
    last, slack = ordered[-size], 1e-3 * np.sqrt(np.mean(np.square(scores)))
    bad = (ordered[:size] < last - slack).any() or (ordered[size:] > last + slack).any()
    assert bool(found.problem) == bad


def test_scores_within_the_slack_are_ties():
    near = row([1.0, 0.9995, 0.999, 0.2])
    for pair in ([0, 1], [0, 2], [1, 2]):
        assert not check_row(np.array(pair), near, 2e-3).problem
    assert check_row(np.array([0, 3]), near, 2e-3).problem
    assert check_row(np.array([0, 2]), near, 1e-5).problem


def test_a_clear_winner_may_not_be_left_out_for_ties():
    ties = row([5.0, 1.0, 1.0, 1.0])
    assert not check_row(np.array([0, 3]), ties, 1e-3).problem
    found = check_row(np.array([2, 3]), ties, 1e-3)
    assert "token 0 of score 5 is left out" in found.problem
    assert (found.right, found.wanted) == (1, 2)


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


def test_nothing_to_select_from():
    assert not check_row(np.array([-1, -1]), row([]), 1e-3).problem
    assert check_row(np.array([-1, 0]), row([]), 1e-3).fatal
    assert not check_row_against(np.array([-1]), np.array([-1]), 4).problem


def test_copies_are_fine_only_where_the_reference_has_some():
    twice = np.array([1, 1, 2])
    assert not check_row_against(twice, np.array([1, 1, 2]), 4).problem
    assert check_row_against(twice, np.array([1, 3, 2]), 4).fatal
