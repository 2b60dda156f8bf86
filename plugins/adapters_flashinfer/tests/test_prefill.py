"""Batch prefill on pages: what is routed, with which inputs, and what is not."""

from __future__ import annotations

import contextlib

import pytest
import torch
from gqa import (
    DTYPE,
    HKV,
    HQ,
    D,
    Pages,
    Refusals,
    agree,
    i32,
    prefill_reference,
    quiet,
    random,
    routed,
    takes,
    workspace,
)

from fib_adapters_flashinfer.prefill import PrefillAdapter, PrefillRoute

LABEL = PrefillRoute.label
ROWS = i32(0, 4, 5, 12)


def name(page_size):
    return f"gqa_paged_prefill_causal_h{HQ}_kv{HKV}_d{D}_ps{page_size}"


@pytest.fixture(autouse=True)
def cpu_prefill(cpu):
    torch.manual_seed(0)
    with cpu("prefill") as patch:
        yield patch


@pytest.fixture
def runtime():
    with routed(PrefillAdapter(), {name(ps): prefill_reference for ps in (1, 16, 64)}) as found:
        yield found


def make(pages, layout="NHD", graph=False, **options):
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    if graph:
        options.update(
            use_cuda_graph=True,
            qo_indptr_buf=torch.zeros(4, dtype=torch.int32),
            paged_kv_indptr_buf=torch.zeros(4, dtype=torch.int32),
            paged_kv_indices_buf=torch.zeros(20, dtype=torch.int32),
            paged_kv_last_page_len_buf=torch.zeros(3, dtype=torch.int32),
        )
    return BatchPrefillWithPagedKVCacheWrapper(workspace(), layout, **options)


def plan(wrapper, pages, *, table=None, rows=ROWS, planner="plan", **options):
    options = {"causal": True, "q_data_type": DTYPE, **options}
    table = pages.table if table is None else table
    getattr(wrapper, planner)(rows, *table, HQ, HKV, D, pages.page_size, **options)
    return wrapper


def planned(page_size=16, layout="NHD", graph=False, **options):
    pages = Pages(page_size)
    return plan(make(pages, layout, graph), pages, **options), pages


def queries(dtype=DTYPE):
    return random(int(ROWS[-1]), HQ, D, dtype=dtype)


# ------------------------------------------------------------------------------------- routed


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("form", ["pair", "one", "packed"])
@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_it_is_routed_with_the_inputs_of_the_definition(page_size, form, layout, graph):
    # No request has more queries than keys: with one key on a page, these are few.
    rows = i32(0, 2, 3, 6) if page_size == 1 else ROWS
    wrapper, pages = planned(page_size, layout, graph, rows=rows)
    q, cache = random(int(rows[-1]), HQ, D), pages.cache(layout, form)
    wanted = wrapper.run(q, cache, return_lse=True)
    with routed(PrefillAdapter(), {name(page_size): prefill_reference}) as runtime:
        plan(wrapper, pages, rows=rows)
        agree(wrapper.run(q, cache, return_lse=True), wanted)
        agree(wrapper.run(q, cache), wanted[0])
    assert runtime.calls == 2
    assert runtime.name == name(page_size)
    inputs = runtime.inputs
    assert inputs["q"] is q
    torch.testing.assert_close(inputs["k_cache"], pages.k, rtol=0, atol=0)
    assert inputs["qo_indptr"] is wrapper._qo_indptr_buf
    assert inputs["kv_indptr"] is wrapper._paged_kv_indptr_buf
    assert inputs["kv_indices"].tolist() == pages.indices.tolist()
    assert inputs["sm_scale"] == D**-0.5
    assert (inputs["kv_last_page_len"] is None) == (page_size == 1)


@pytest.mark.parametrize("way", ["run", "run_return_lse", "forward", "forward_return_lse"])
@pytest.mark.parametrize("planner", ["plan", "begin_forward"])
def test_all_names_of_plan_and_run_are_routed(planner, way, runtime):
    pages = Pages(16)
    # Older engines say to run what they want, not to plan.
    wrapper = plan(make(pages), pages, planner=planner, causal=not way.startswith("forward"))
    options = {"causal": True, "sm_scale": 0.3} if way.startswith("forward") else {}
    q = queries()
    found = quiet(getattr(wrapper, way))(q, pages.cache(), **options)
    assert runtime.calls == 1
    assert runtime.inputs["sm_scale"] == options.get("sm_scale", D**-0.5)
    runtime.stop()
    agree(found, quiet(getattr(wrapper, way))(q, pages.cache(), **options))
    assert isinstance(found, tuple) == way.endswith("return_lse")


def test_pages_beyond_those_in_use_are_cut_off(runtime):
    pages = Pages(16)
    slack = torch.cat([pages.indices, torch.full((256,), 10**6, dtype=torch.int32)])
    wrapper = plan(make(pages), pages, table=(pages.indptr, slack, pages.last))
    q = queries()
    found = wrapper.run(q, pages.cache())
    assert runtime.inputs["kv_indices"].tolist() == pages.indices.tolist()
    runtime.stop()
    agree(found, wrapper.run(q, pages.cache()))


def test_buffers_are_filled_and_returned(runtime):
    wrapper, pages = planned()
    q = queries()
    padded, lse = torch.full((20, HQ, D), 7.0, dtype=DTYPE), torch.zeros(len(q), HQ)
    out = padded[: len(q)]
    found = wrapper.run(q, pages.cache(), out=out, lse=lse, return_lse=True, v_scale=1.0)
    assert found[0] is out
    assert found[1] is lse
    runtime.stop()
    agree(found, wrapper.run(q, pages.cache(), return_lse=True))
    assert bool((padded[len(q) :] == 7).all())


def test_requests_without_queries_or_keys(runtime):
    pages = Pages(16)
    rows, table = i32(0, 4, 4, 5), (i32(0, 2, 3, 3), pages.indices[:3], i32(16, 1, 16))
    wrapper = plan(make(pages), pages, rows=rows, table=table)
    q = random(5, HQ, D)
    found = wrapper.run(q, pages.cache(), return_lse=True)
    assert runtime.calls == 1
    assert bool(torch.isneginf(found[1][4]).all())
    runtime.stop()
    agree(found, wrapper.run(q, pages.cache(), return_lse=True))


def test_the_name_that_flashinfers_traces_give_it_is_taken_if_only_that_is_enabled():
    wrapper, pages = planned()
    other = f"gqa_paged_prefill_h{HQ}_kv{HKV}_d{D}_ps16"
    for names in ([other], [other, name(16)]):
        with routed(PrefillAdapter(), dict.fromkeys(names, prefill_reference)) as runtime:
            wrapper.run(queries(), pages.cache())
            assert runtime.name == names[-1]


# --------------------------------------------------------------------------------- fallbacks


def refused(reason, call, runtime, cpu_prefill):
    refusals = Refusals(LABEL)
    before = cpu_prefill.calls["prefill.paged_run"]
    found = call()
    assert refusals.new() == {reason: 1}
    assert runtime.calls == 0
    assert cpu_prefill.calls["prefill.paged_run"] == before + 1
    return found


RUN_OPTIONS = [
    ("q scale", {"q_scale": 0.5}),
    ("k scale", {"k_scale": 0.5}),
    ("v scale", {"v_scale": 2}),
    ("attention sinks", {"sinks": torch.zeros(HQ)}),
    ("skipping of softmax", {"skip_softmax_threshold_scale_factor": 1.0}),
    ("form of lse", {"lse_base": "ln"}),
    ("form of lse", {"lse_layout": "HN"}),
]


@pytest.mark.parametrize(("reason", "options"), RUN_OPTIONS, ids=lambda each: str(each)[:20])
def test_options_of_run_go_to_the_original(reason, options, runtime, cpu_prefill):
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper as Wrapper

    if not takes(Wrapper.run, next(iter(options))):
        pytest.skip(f"this release has no {next(iter(options))}")
    wrapper, pages = planned()
    call = lambda: wrapper.run(queries(), pages.cache(), return_lse=True, **options)  # noqa: E731
    refused(reason, call, runtime, cpu_prefill)


@pytest.mark.parametrize("option", ["use_fp16_softmax", "uses_spcompress"])
def test_options_of_one_architecture_go_to_the_original(option, runtime):
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper as Wrapper

    wrapper, pages = planned()
    refusals = Refusals(LABEL)
    with pytest.raises((TypeError, ValueError, RuntimeError, NotImplementedError)):
        wrapper.run(queries(), pages.cache(), **{option: True})
    assert len(refusals.new()) == 1
    assert runtime.calls == 0
    if takes(Wrapper.run, option):
        wrapper.run(queries(), pages.cache(), **{option: None})
        assert runtime.calls == 1


PLAN_OPTIONS = [
    ("not causal", {"causal": False}),
    ("sliding window", {"window_left": 4}),
    ("logits soft cap", {"logits_soft_cap": 30.0}),
    ("position encoding", {"pos_encoding_mode": "ALIBI"}),
    ("dtype of the output", {"o_data_type": torch.float16}),
    ("multi-item scoring", {"prefix_len_ptr": i32(1, 1, 1)}),
    ("multi-item scoring", {"token_pos_in_items_ptr": i32(1, 1, 1)}),
    ("multi-item scoring", {"max_item_len_ptr": i32(1, 1, 1)}),
]


@pytest.mark.parametrize(("reason", "options"), PLAN_OPTIONS, ids=lambda each: str(each)[:20])
def test_options_of_plan_go_to_the_original(reason, options, runtime, cpu_prefill):
    wrapper, pages = planned(**options)
    call = lambda: wrapper.run(queries(), pages.cache())  # noqa: E731
    refused(reason, call, runtime, cpu_prefill)


@pytest.mark.parametrize(
    ("reason", "options"),
    [
        ("not causal", {}),
        ("sliding window", {"causal": True, "window_left": 4}),
        ("logits soft cap", {"causal": True, "logits_soft_cap": 30.0}),
    ],
)
def test_what_forward_changes_goes_to_the_original(reason, options, runtime, cpu_prefill):
    wrapper, pages = planned()
    call = lambda: quiet(wrapper.forward)(queries(), pages.cache(), **options)  # noqa: E731
    refused(reason, call, runtime, cpu_prefill)
    quiet(wrapper.forward)(queries(), pages.cache(), causal=True)
    assert runtime.calls == 1


def test_custom_masks_go_to_the_original_until_the_next_plan_without(runtime, cpu_prefill):
    pages = Pages(16)
    wrapper = make(pages)
    plan(wrapper, pages, packed_custom_mask=torch.zeros(200, dtype=torch.uint8))
    refused("custom mask", lambda: wrapper.run(queries(), pages.cache()), runtime, cpu_prefill)
    plan(wrapper, pages)
    wrapper.run(queries(), pages.cache())
    assert runtime.calls == 1


def test_more_queries_than_planned_are_for_the_original_to_refuse(runtime):
    wrapper, pages = planned()
    refusals = Refusals(LABEL)
    with pytest.raises(ValueError, match="does not match qo_indptr"):
        wrapper.run(random(20, HQ, D), pages.cache())
    assert refusals.new() == {"number of queries": 1}
    assert runtime.calls == 0


def test_heads_of_values_of_another_size_go_to_the_original(runtime):
    wrapper, pages = planned(head_dim_vo=32)
    refusals = Refusals(LABEL)
    found = wrapper.run(queries(), (pages.k, pages.v[..., :32].contiguous()))
    assert found.shape == (12, HQ, 32)
    assert refusals.new() == {"shapes": 1}
    assert runtime.calls == 0


@pytest.mark.parametrize("backend", ["trtllm-gen", "cudnn", "cute-dsl", "cute-dsl-prims"])
def test_backends_with_page_tables_of_their_own_go_to_the_original(backend, runtime):
    wrapper, pages = planned()
    wrapper._backend = backend
    refusals = Refusals(LABEL)
    with contextlib.suppress(Exception):  # it is not really set up for that backend
        wrapper.run(queries(), pages.cache())
    assert refusals.new() == {"backend": 1}
    assert runtime.calls == 0


def test_custom_kernels_go_to_the_original(runtime, cpu_prefill):
    from flashinfer import prefill

    kernels = prefill.get_batch_prefill_module()
    cpu_prefill.set(prefill, "get_customize_batch_prefill_module", lambda *args, **kw: kernels)
    cpu_prefill.set(prefill, "get_batch_prefill_jit_module", lambda uri, module: module)
    pages = Pages(16)
    wrapper = plan(make(pages, backend="fa2", jit_args=["uri", *[[]] * 9]), pages)
    refusals = Refusals(LABEL)
    others = [None] * 6
    wrapper.run(queries(), pages.cache(), *others, 0.0, 1.0)
    wrapper.run_return_lse(queries(), pages.cache(), *others, 0.0, 1.0)
    assert refusals.new() == {"arguments for a custom kernel": 2}
    with pytest.raises(TypeError):
        wrapper.run(queries(), pages.cache())
    assert refusals.new()["custom kernel"] == 1


def test_masks_that_a_kernel_owns_are_not_routed(cpu_prefill):
    """The wrapper for ranges of its own runs its parent's `run`, past all patches."""
    import flashinfer

    wrapper = getattr(flashinfer, "BatchPrefillWithCausalBidirectionalRangesWrapper", None)
    if wrapper is None:
        pytest.skip("this release has no such wrapper")
    with routed(PrefillAdapter(), {name(16): prefill_reference}) as runtime:
        kernels = flashinfer.prefill.get_batch_prefill_module()
        cpu_prefill.set(
            flashinfer.prefill, "get_customize_batch_prefill_module", lambda *args, **kw: kernels
        )
        cpu_prefill.set(
            flashinfer.prefill, "get_batch_prefill_jit_module", lambda uri, module: module
        )
        made = wrapper(workspace(), head_dim_qk=D, head_dim_vo=D)
        pages = Pages(16)
        made.plan(ROWS, *pages.table, HQ, HKV, D, 16)
        with contextlib.suppress(TypeError):  # the stand-in takes the usual kernel's arguments
            made.run(queries(), pages.cache(), bidirectional_ranges=torch.full((12, 2), -1).int())
        assert runtime.calls == 0
