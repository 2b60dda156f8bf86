"""The attention adapters through apply itself: installed when enabled, gone when disabled."""

from __future__ import annotations

import pytest
import torch
from gqa import (
    DTYPE,
    HKV,
    HQ,
    D,
    Pages,
    agree,
    decode_name,
    decode_reference,
    decoder,
    i32,
    plan_decode,
    prefill_reference,
    ragged_reference,
    random,
    workspace,
)

from flashinfer_bench import enable_apply

PREFILL = f"gqa_paged_prefill_causal_h{HQ}_kv{HKV}_d{D}_ps16"
RAGGED = f"gqa_ragged_prefill_causal_h{HQ}_kv{HKV}_d{D}"
METHODS = ("plan", "begin_forward", "run", "run_return_lse")
ROWS = i32(0, 2, 3, 6)


@pytest.fixture(autouse=True)
def kernels(cpu, installed):
    torch.manual_seed(0)
    with cpu("decode") as patch:
        yield patch


@pytest.fixture
def originals(flashinfer):
    """The methods as they are, compared again at the end."""
    classes = (
        flashinfer.BatchDecodeWithPagedKVCacheWrapper,
        flashinfer.BatchPrefillWithPagedKVCacheWrapper,
        flashinfer.BatchPrefillWithRaggedKVCacheWrapper,
    )
    before = {(cls, name): vars(cls)[name] for cls in classes for name in METHODS}
    yield before
    assert all(vars(cls)[name] is value for (cls, name), value in before.items())


def worn(originals):
    return {
        (cls.__name__, name)
        for (cls, name), value in originals.items()
        if vars(cls)[name] is not value
    }


class Counted:
    """A solution of a definition, which counts its calls."""

    def __init__(self, reference):
        self.reference, self.calls = reference, 0

    def decode(self, q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale, kv_last_page_len=None):
        self.calls += 1
        return decode_reference(
            q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale, kv_last_page_len
        )

    def prefill(
        self, q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, sm_scale,
        kv_last_page_len=None,
    ):  # fmt: skip
        self.calls += 1
        return prefill_reference(
            q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, sm_scale, kv_last_page_len
        )

    def ragged(self, q, k, v, qo_indptr, kv_indptr, sm_scale):
        self.calls += 1
        return ragged_reference(q, k, v, qo_indptr, kv_indptr, sm_scale)


@pytest.mark.parametrize("page_size", [1, 16])
def test_decode(page_size, originals, kernels):
    pages, q = Pages(page_size), random(3, HQ, D)
    wrapper = plan_decode(decoder(pages), pages)
    wanted = wrapper.run_return_lse(q, pages.cache())
    solution, out = Counted(decode_reference), torch.empty_like(q)
    with enable_apply({decode_name(page_size): solution.decode}):
        assert worn(originals) == {("BatchDecodeWithPagedKVCacheWrapper", name) for name in METHODS}
        before = kernels.calls["decode.run"]
        agree(wrapper.run_return_lse(q, pages.cache()), wanted)
        assert wrapper.run(q, pages.cache(), out=out, k_scale=1.0, v_scale=1.0) is out
        assert kernels.calls["decode.run"] == before
        agree(wrapper.run(q, pages.cache(), sinks=None), wanted[0])
    assert solution.calls == 3
    agree(out, wanted[0])
    assert not worn(originals)
    agree(wrapper.run(q, pages.cache()), wanted[0])
    assert solution.calls == 3


def test_prefill(flashinfer, originals):
    pages, q = Pages(16), random(6, HQ, D)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace())
    wrapper.plan(ROWS, *pages.table, HQ, HKV, D, 16, causal=True, q_data_type=DTYPE)
    wanted = wrapper.run_return_lse(q, pages.cache())
    solution = Counted(prefill_reference)
    with enable_apply({PREFILL: solution.prefill}):
        agree(wrapper.run_return_lse(q, pages.cache()), wanted)
        agree(wrapper.forward(q, pages.cache(), causal=True), wanted[0])
        wrapper.forward(q, pages.cache(), causal=False)
    assert solution.calls == 2


def test_ragged(flashinfer, originals):
    q, k, v = random(6, HQ, D), random(6, HKV, D), random(6, HKV, D)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace())
    wrapper.plan(ROWS, ROWS, HQ, HKV, D, causal=True, q_data_type=DTYPE)
    wanted = wrapper.run_return_lse(q, k, v)
    solution = Counted(ragged_reference)
    with enable_apply({RAGGED: solution.ragged}):
        agree(wrapper.run_return_lse(q, k, v), wanted)
        agree(wrapper.run(q, k, v), wanted[0])
    assert solution.calls == 2


def test_a_solution_that_does_not_know_partly_used_pages_is_not_asked(originals):
    pages, q = Pages(16), random(3, HQ, D)
    wrapper = plan_decode(decoder(pages), pages)
    wanted = wrapper.run(q, pages.cache())

    def solution(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale):
        raise AssertionError("it would take the last pages for full")

    with enable_apply({decode_name(16): solution}):
        agree(wrapper.run(q, pages.cache()), wanted)


def test_other_definitions_leave_everything_alone(originals):
    with enable_apply({"rmsnorm_h128": lambda hidden_states, weight: hidden_states}):
        assert not worn(originals)
