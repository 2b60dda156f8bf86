"""Low-bit results: what need not match is bounded all the same."""

import math

import pytest
import torch

from fib_ops_llm.checks import error_size, worst_row_rms
from flashinfer_bench.data import Tolerance

PASSED, NUMERICAL = "PASSED", "INCORRECT_NUMERICAL"
REQUIRED = 0.95  # the packaged share for mixtures of experts


def spoiled(asked, share, change):
    """Change a share of the elements of the right output: whole rows, which are tokens."""
    output = asked.right()[0]
    rows = int(len(output) * share)
    output[:rows] = change(output[:rows].float()).to(output.dtype)
    return output


@pytest.mark.parametrize(
    ("share", "change"),
    [
        (0.04, torch.zeros_like),  # as many zeros as need not match
        (0.04, lambda rows: -rows),
        (0.04, lambda rows: rows.flip(0)),  # results of other tokens
        (0.01, lambda rows: 1e3 * rows),
        (0.0025, lambda rows: 1e6 * rows),  # a single token
        (0.04, lambda rows: torch.full_like(rows, math.nan)),
        (0.0025, lambda rows: torch.full_like(rows, math.inf)),
    ],
)
def test_garbage_in_the_share_that_need_not_match_fails(moe, share, change):
    found = moe.check([spoiled(moe, share, change)])
    assert found.status == NUMERICAL
    ratio = found.correctness.extra["matched_ratio"]
    assert ratio >= REQUIRED - 1e-9, "an element-wise comparison alone would have passed it"
    assert "'output'" in found.message


@pytest.mark.parametrize(
    ("share", "change"),
    [
        (0.0025, lambda rows: rows.flip(-1)),  # one token sent to other experts
        (0.005, lambda rows: rows.roll(1, 0)),
        (0.01, torch.zeros_like),
        (0.04, lambda rows: 1.1 * rows),
    ],
)
def test_what_rounding_does_passes(moe, share, change):
    assert moe.check([spoiled(moe, share, change)]).passed


def test_all_elements_have_to_match_where_no_share_is_set(moe):
    moe.definition = moe.definition.model_copy(update={"op_type": "gemm"})
    moe.configured()
    assert moe.config.required_matched_ratio is None
    assert moe.check(moe.right()).passed
    assert not moe.check([spoiled(moe, 0.0025, torch.zeros_like)]).passed


class TestErrorSize:
    def test_only_what_does_not_match_counts(self):
        expected = torch.ones(100)
        actual = expected.clone()
        actual[0], actual[1] = 1.005, 2.0
        beyond = error_size(actual, expected, beyond=Tolerance(atol=0.01, rtol=0.0))
        assert beyond.relative_rms == pytest.approx(0.1)
        by_rtol = error_size(actual, expected, beyond=Tolerance(atol=0.0, rtol=0.01))
        assert by_rtol.relative_rms == pytest.approx(0.1)
        assert error_size(actual, expected).relative_rms > 0.1

    def test_rows_are_measured_each_by_its_own_size(self, monkeypatch):
        expected = torch.tensor([[100.0] * 4, [0.01] * 4, [0.0] * 4, [math.inf] * 4])
        actual = expected.clone()
        assert worst_row_rms(actual, expected) == 0.0
        actual[1] *= 1.5
        actual[2] = 1e-3
        for piece in (1, 4, 8, 1000):
            monkeypatch.setattr("fib_ops_llm.checks._CHUNK", piece)
            assert worst_row_rms(actual, expected) == pytest.approx(0.5)
        actual[0, 0] = math.nan
        assert worst_row_rms(actual, expected) == math.inf
        assert worst_row_rms(torch.zeros(0, 3), torch.zeros(0, 3)) == 0.0
        assert worst_row_rms(torch.tensor(2.0), torch.tensor(1.0)) == pytest.approx(1.0)
