"""MLA runs through the adapter: what is routed, with which inputs, and what comes back."""

from __future__ import annotations

import mla_calls as calls
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mla_fixtures import stand_in  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SHAPES = [
    pytest.param([1, 1, 1], [64, 65, 3], 64, "decode", id="decode, pages of 64"),
    pytest.param([2, 0, 1], [4, 5, 2], 1, "prefill_causal", id="as many queries as requests"),
]


@pytest.mark.parametrize(("queries", "keys", "page_size", "stage"), SHAPES)
@pytest.mark.parametrize("return_lse", [False, True])
def test_original_untouched_and_substituted_agree(mla, queries, keys, page_size, stage, return_lse):
    batch, causal = calls.Batch(queries, keys, page_size), stage != "decode"
    wrapper = calls.wrapper()
    batch.plan(wrapper, causal)
    original = wrapper.run(*batch.tensors, return_lse=return_lse)
    assert mla.calls["mla.run"] == 1
    with calls.applied(calls.definition("decode", 2)):  # of another page size: no candidate
        batch.plan(wrapper, causal)
        untouched = wrapper.run(*batch.tensors, return_lse=return_lse)
    assert mla.calls["mla.run"] == 2
    with calls.applied(calls.definition(stage, page_size)) as solutions:
        batch.plan(wrapper, causal)
        substituted = wrapper.run(*batch.tensors, return_lse=return_lse)
        (solution,) = solutions.values()
        assert len(solution.calls) == 1
    assert mla.calls["mla.run"] == 2, "the kernel ran beside the solution"
    assert type(substituted) is type(original)
    torch.testing.assert_close(untouched, original, atol=0, rtol=0)
    calls.close(substituted, original)
    calls.close(original if return_lse else (original,), batch.expected(causal)[: 1 + return_lse])


@pytest.mark.parametrize("return_lse", [False, True])
def test_buffers_of_the_caller_are_filled_and_returned(mla, return_lse):
    batch = calls.Batch([1, 1], [3, 4])
    padded = torch.full((5, calls.HEADS, calls.CKV), 7.0, dtype=batch.dtype)
    out, lse = padded[:2], torch.empty(2, calls.HEADS)
    with calls.applied(calls.definition("decode")) as solutions:
        wrapper = calls.wrapper()
        batch.plan(wrapper)
        result = wrapper.run(*batch.tensors, out=out, lse=lse, return_lse=return_lse)
        assert len(next(iter(solutions.values())).calls) == 1
    assert (result[0] if return_lse else result) is out
    assert not return_lse or result[1] is lse
    expected = batch.expected()
    calls.close((out, lse), expected)
    assert (padded[2:] == 7.0).all()
    assert mla.calls["mla.run"] == 0


@given(data=st.data())
def test_any_batch_computes_what_the_original_computes(data):
    page_size = data.draw(st.sampled_from([1, 2, 5]))
    keys = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    queries = [data.draw(st.integers(0, length)) for length in keys]
    causal = data.draw(st.booleans())
    batch = calls.Batch(queries, keys, page_size, seed=len(keys))
    if not batch.q_nope.shape[0]:
        return
    wrapper = calls.wrapper()
    batch.plan(wrapper, causal)
    original = wrapper.run(*batch.tensors, return_lse=True)
    definitions = [calls.definition(stage, page_size) for stage in ("decode", "prefill_causal")]
    with calls.applied(*definitions) as solutions:
        batch.plan(wrapper, causal)
        calls.close(wrapper.run(*batch.tensors, return_lse=True), original)
        ran = {name for name, each in solutions.items() if each.calls}
    wanted = "decode" if set(queries) == {1} else "prefill_causal" if causal else None
    assert ran == ({calls.name_of(wanted, page_size)} if wanted else set())
