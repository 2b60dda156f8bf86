"""Batch prefill on pages and on rows: names of definitions, and captures."""

from __future__ import annotations

import pytest
import torch
from gqa import (
    DTYPE,
    HQ,
    KINDS,
    PLACES,
    ROWS,
    SIZES,
    agree,
    quiet,
    ragged_reference,
    random,
    routed,
    workspace,
)


@pytest.fixture(autouse=True)
def cpu_prefill(cpu):
    torch.manual_seed(0)
    with cpu("prefill") as patch:
        yield patch


@pytest.mark.parametrize("planner", ["plan", "begin_forward"])
def test_latent_attention_has_a_name_of_its_own(planner):
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

    name = f"mla_ragged_prefill_causal_h{HQ}_qk192_vo128"
    with routed(KINDS["ragged"].adapter(), {name: ragged_reference}) as runtime:
        wrapper = BatchPrefillWithRaggedKVCacheWrapper(workspace())
        getattr(wrapper, planner)(
            qo_indptr=ROWS, kv_indptr=PLACES, num_qo_heads=HQ, num_kv_heads=HQ, head_dim_qk=192,
            head_dim_vo=128, causal=True, q_data_type=DTYPE,
        )  # fmt: skip
        q, k, v = random(12, HQ, 192), random(17, HQ, 192), random(17, HQ, 128)
        found = quiet(wrapper.forward_return_lse)(q, k, v, causal=True, sm_scale=0.1)
    assert runtime.name == name
    assert runtime.inputs["sm_scale"] == 0.1
    assert found[0].shape == (12, HQ, 128)
    agree(found, quiet(wrapper.forward_return_lse)(q, k, v, causal=True, sm_scale=0.1))


@pytest.mark.parametrize(
    ("kind", "other"),
    [("prefill", f"gqa_paged_prefill_{SIZES}_ps16"), ("ragged", f"gqa_ragged_{SIZES}")],
)
def test_the_name_that_flashinfers_traces_give_it_is_taken_if_only_that_is_enabled(kind, other):
    kind = KINDS[kind]
    wrapper = kind.planned()
    for names in ([other], [other, kind.definition]):
        with routed(kind.adapter(), dict.fromkeys(names, kind.reference)) as runtime:
            wrapper.run(*kind.tensors())
            assert runtime.name == names[-1]
