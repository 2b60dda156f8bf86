"""Wrappers for batches: what is routed, under which names, and with which inputs."""

import pytest
import torch
from gqa import (
    DTYPE,
    HKV,
    HQ,
    KINDS,
    PLACES,
    ROWS,
    SIZES,
    D,
    Pages,
    Refusals,
    agree,
    decode_name,
    decode_reference,
    decoder,
    plan_decode,
    quiet,
    ragged_reference,
    random,
    routed,
    workspace,
)

from fib_adapters_flashinfer.attention import DecodeAdapter, DecodeRoute

LABEL = DecodeRoute.label


@pytest.fixture(autouse=True)
def cpu_decode(cpu):
    torch.manual_seed(0)
    with cpu("decode") as patch:
        yield patch


@pytest.fixture
def runtime():
    with routed(
        DecodeAdapter(), {decode_name(ps): decode_reference for ps in (1, 16, 64)}
    ) as found:
        yield found


def planned(page_size=16, layout="NHD", graph=False, **options):
    pages = Pages(page_size)
    return plan_decode(decoder(pages, layout, graph), pages, **options), pages


# ------------------------------------------------------------------------------------- routed


@pytest.mark.parametrize("way", ["run", "run_return_lse", "forward", "forward_return_lse"])
@pytest.mark.parametrize("planner", ["plan", "begin_forward"])
def test_all_names_of_plan_and_run_are_routed(planner, way, runtime):
    pages = Pages(16)
    wrapper = decoder(pages)
    getattr(wrapper, planner)(*pages.table, HQ, HKV, D, 16, q_data_type=DTYPE)
    q = random(3, HQ, D)
    found = getattr(wrapper, way)(q, pages.cache())
    assert runtime.calls == 1
    runtime.stop()
    wanted = getattr(wrapper, way)(q, pages.cache())
    assert isinstance(wanted, tuple) == way.endswith("return_lse")
    agree(found, wanted)


def test_the_scale_that_forward_sets_counts(runtime):
    wrapper, pages = planned(sm_scale=0.25)
    q = random(3, HQ, D)
    quiet(wrapper.forward)(q, pages.cache(), sm_scale=0.5)
    assert runtime.inputs["sm_scale"] == 0.5
    quiet(wrapper.forward)(q, pages.cache())
    assert runtime.inputs["sm_scale"] == D**-0.5


def test_scales_of_one_do_nothing(runtime):
    wrapper, pages = planned()
    q = random(3, HQ, D)
    wrapper.run(q, pages.cache(), q_scale=1.0, k_scale=1.0, v_scale=1.0)
    wrapper.run(q, pages.cache(), q_scale=1, k_scale=None, enable_pdl=False, window_left=-1)
    assert runtime.calls == 2


def test_a_solution_with_one_output_cannot_serve_who_wants_sums(cpu_decode):
    wrapper, pages = planned()
    refusals = Refusals(LABEL)
    only_values = {decode_name(16): lambda *inputs: decode_reference(*inputs)[0]}
    with routed(DecodeAdapter(), only_values) as runtime:
        q = random(3, HQ, D)
        found = wrapper.run(q, pages.cache())
        both = wrapper.run_return_lse(q, pages.cache())
    assert runtime.calls == 2
    assert refusals.new() == {"no lse among the outputs": 1}
    agree(found, wrapper.run(q, pages.cache()))
    agree(both, wrapper.run(q, pages.cache(), return_lse=True))


# ------------------------------------------------------------------------------------ prefill


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
