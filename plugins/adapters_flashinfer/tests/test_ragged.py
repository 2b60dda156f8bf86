"""Batch prefill on ragged keys: what is routed, with which inputs, and what is not."""

from __future__ import annotations

import contextlib

import pytest
import torch
from gqa import (
    DTYPE,
    HKV,
    HQ,
    D,
    Refusals,
    agree,
    i32,
    quiet,
    ragged_reference,
    random,
    routed,
    takes,
    workspace,
)

from fib_adapters_flashinfer.ragged import RaggedAdapter, RaggedRoute

LABEL = RaggedRoute.label
ROWS, PLACES = i32(0, 4, 5, 12), i32(0, 9, 10, 17)
GQA = f"gqa_ragged_prefill_causal_h{HQ}_kv{HKV}_d{D}"
MLA = f"mla_ragged_prefill_causal_h{HQ}_qk192_vo128"


@pytest.fixture(autouse=True)
def cpu_prefill(cpu):
    torch.manual_seed(0)
    with cpu("prefill") as patch:
        yield patch


@pytest.fixture
def runtime():
    with routed(RaggedAdapter(), dict.fromkeys((GQA, MLA), ragged_reference)) as found:
        yield found


def make(layout="NHD", graph=False, **options):
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

    if graph:
        options.update(
            use_cuda_graph=True,
            qo_indptr_buf=torch.zeros(4, dtype=torch.int32),
            kv_indptr_buf=torch.zeros(4, dtype=torch.int32),
        )
    return BatchPrefillWithRaggedKVCacheWrapper(workspace(), layout, **options)


def plan(wrapper, *, heads=HKV, sizes=(D,), planner="plan", **options):
    options = {"causal": True, "q_data_type": DTYPE, **options}
    getattr(wrapper, planner)(ROWS, PLACES, HQ, heads, *sizes, **options)
    return wrapper


def tensors(layout="NHD", heads=HKV, size=D, out=D, extra=0, dtype=DTYPE):
    length = int(PLACES[-1]) + extra
    q = random(int(ROWS[-1]), HQ, size, dtype=dtype)
    k, v = random(length, heads, size, dtype=dtype), random(length, heads, out, dtype=dtype)
    if layout == "HND":
        k, v = k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous()
    return q, k, v


# ------------------------------------------------------------------------------------- routed


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_it_is_routed_with_the_inputs_of_the_definition(layout, graph):
    wrapper = plan(make(layout, graph))
    q, k, v = tensors(layout)
    wanted = wrapper.run(q, k, v, return_lse=True)
    with routed(RaggedAdapter(), {GQA: ragged_reference}) as runtime:
        plan(wrapper)
        agree(wrapper.run(q, k, v, return_lse=True), wanted)
        agree(wrapper.run(q, k, v), wanted[0])
    assert runtime.calls == 2
    assert runtime.name == GQA
    inputs = runtime.inputs
    assert inputs["q"] is q
    assert inputs["k"].shape == (17, HKV, D)
    assert layout == "HND" or inputs["k"] is k
    assert inputs["qo_indptr"] is wrapper._qo_indptr_buf
    assert inputs["kv_indptr"] is wrapper._kv_indptr_buf
    assert inputs["sm_scale"] == D**-0.5


@pytest.mark.parametrize("planner", ["plan", "begin_forward"])
def test_latent_attention_has_a_name_of_its_own(planner, runtime):
    sizes = {"head_dim_qk": 192, "head_dim_vo": 128}
    wrapper = make()
    getattr(wrapper, planner)(
        qo_indptr=ROWS, kv_indptr=PLACES, num_qo_heads=HQ, num_kv_heads=HQ, **sizes,
        causal=True, q_data_type=DTYPE,
    )  # fmt: skip
    q, k, v = tensors(heads=HQ, size=192, out=128)
    found = quiet(wrapper.forward_return_lse)(q, k, v, causal=True, sm_scale=0.1)
    assert runtime.name == MLA
    assert runtime.inputs["sm_scale"] == 0.1
    assert found[0].shape == (12, HQ, 128)
    runtime.stop()
    agree(found, quiet(wrapper.forward_return_lse)(q, k, v, causal=True, sm_scale=0.1))


@pytest.mark.parametrize("way", ["run", "run_return_lse", "forward", "forward_return_lse"])
@pytest.mark.parametrize("planner", ["plan", "begin_forward"])
def test_all_names_of_plan_and_run_are_routed(planner, way, runtime):
    wrapper = plan(make(), planner=planner, causal=not way.startswith("forward"))
    options = {"causal": True} if way.startswith("forward") else {}
    q, k, v = tensors()
    found = quiet(getattr(wrapper, way))(q, k, v, **options)
    assert runtime.calls == 1
    runtime.stop()
    agree(found, quiet(getattr(wrapper, way))(q, k, v, **options))
    assert isinstance(found, tuple) == way.endswith("return_lse")


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_keys_beyond_those_in_use_are_cut_off(layout, runtime):
    wrapper = plan(make(layout))
    q, k, v = tensors(layout, extra=5)
    found = wrapper.run(q, k, v)
    assert runtime.inputs["k"].shape == runtime.inputs["v"].shape == (17, HKV, D)
    runtime.stop()
    agree(found, wrapper.run(q, k, v))


def test_nothing_is_cut_off_while_a_graph_is_captured(runtime, cpu_prefill):
    wrapper = plan(make())
    q, k, v = tensors(extra=5)
    runtime.functions[GQA] = lambda q, k, v, *others: (
        torch.zeros_like(q),
        torch.zeros(q.shape[:2]),
    )
    cpu_prefill.capturing = True
    wrapper.run(q, k, v)
    assert runtime.inputs["k"] is k
    cpu_prefill.capturing = False
    wrapper.run(q, k, v)
    assert runtime.inputs["k"].shape[0] == 17


def test_buffers_are_filled_and_returned(runtime):
    wrapper = plan(make())
    q, k, v = tensors()
    out, lse = torch.empty_like(q), torch.zeros(len(q), HQ)
    found = wrapper.run(q, k, v, out=out, lse=lse, return_lse=True)
    assert found[0] is out
    assert found[1] is lse
    runtime.stop()
    agree(found, wrapper.run(q, k, v, return_lse=True))


def test_the_name_that_flashinfers_traces_give_it_is_taken_if_only_that_is_enabled():
    wrapper = plan(make())
    other = f"gqa_ragged_h{HQ}_kv{HKV}_d{D}"
    for names in ([other], [other, GQA]):
        with routed(RaggedAdapter(), dict.fromkeys(names, ragged_reference)) as runtime:
            wrapper.run(*tensors())
            assert runtime.name == names[-1]


# --------------------------------------------------------------------------------- fallbacks


def refused(reason, call, runtime, cpu_prefill):
    refusals = Refusals(LABEL)
    before = cpu_prefill.calls["prefill.ragged_run"]
    found = call()
    assert refusals.new() == {reason: 1}
    assert runtime.calls == 0
    assert cpu_prefill.calls["prefill.ragged_run"] == before + 1
    return found


RUN_OPTIONS = [
    ("q scale", {"q_scale": 0.5}),
    ("k scale", {"k_scale": 0.5}),
    ("v scale", {"v_scale": 0.5}),
    ("o scale", {"o_scale": 0.5}),
    ("form of lse", {"lse_base": "ln"}),
    ("form of lse", {"lse_layout": "HN"}),
]


@pytest.mark.parametrize(("reason", "options"), RUN_OPTIONS, ids=lambda each: str(each)[:20])
def test_options_of_run_go_to_the_original(reason, options, runtime, cpu_prefill):
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper as Wrapper

    if not takes(Wrapper.run, next(iter(options))):
        pytest.skip(f"this release has no {next(iter(options))}")
    wrapper = plan(make())
    call = lambda: wrapper.run(*tensors(), return_lse=True, **options)  # noqa: E731
    refused(reason, call, runtime, cpu_prefill)


PLAN_OPTIONS = [
    ("not causal", {"causal": False}),
    ("sliding window", {"window_left": 4}),
    ("logits soft cap", {"logits_soft_cap": 30.0}),
    ("position encoding", {"pos_encoding_mode": "ALIBI"}),
    ("dtype of the output", {"o_data_type": torch.float16}),
    ("multi-item scoring", {"prefix_len_ptr": i32(1, 1, 1)}),
    ("custom mask", {"packed_custom_mask": torch.zeros(200, dtype=torch.uint8)}),
    ("offsets of values", {"v_indptr": PLACES.clone()}),
    ("offsets of outputs", {"o_indptr": ROWS.clone()}),
]


@pytest.mark.parametrize(("reason", "options"), PLAN_OPTIONS, ids=lambda each: str(each)[:20])
def test_options_of_plan_go_to_the_original(reason, options, runtime, cpu_prefill):
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper as Wrapper

    if not takes(Wrapper.plan, next(iter(options))):
        pytest.skip(f"this release has no {next(iter(options))}")
    wrapper = plan(make(), **options)
    refused(reason, lambda: wrapper.run(*tensors()), runtime, cpu_prefill)


def test_sinks_that_an_engine_sets_on_the_object_go_to_the_original(runtime, cpu_prefill):
    wrapper = plan(make())
    wrapper._sinks = torch.zeros(HQ)
    refused("attention sinks", lambda: wrapper.run(*tensors()), runtime, cpu_prefill)
    wrapper._sinks = None
    wrapper.run(*tensors())
    assert runtime.calls == 1


def test_forward_without_causal_goes_to_the_original(runtime, cpu_prefill):
    wrapper = plan(make())
    call = lambda: quiet(wrapper.forward)(*tensors())  # noqa: E731
    refused("not causal", call, runtime, cpu_prefill)


def test_other_dtypes_go_to_the_original(runtime, cpu_prefill):
    wrapper = plan(make(), q_data_type=torch.float32)
    call = lambda: wrapper.run(*tensors(dtype=torch.float32))  # noqa: E731
    refused("dtype", call, runtime, cpu_prefill)


def test_values_of_another_dtype_than_keys_go_to_the_original(runtime, cpu_prefill):
    wrapper = plan(make())
    q, k, v = tensors()
    refused("dtype", lambda: wrapper.run(q, k, v.half()), runtime, cpu_prefill)


def test_more_queries_than_planned_are_for_the_original_to_refuse(runtime):
    wrapper = plan(make())
    q, k, v = tensors()
    refusals = Refusals(LABEL)
    with pytest.raises(ValueError, match="does not match qo_indptr"):
        wrapper.run(torch.cat([q, q]), k, v)
    assert refusals.new() == {"number of queries": 1}


@pytest.mark.parametrize("backend", ["cutlass", "cudnn", "cute-dsl", "fmha_v2"])
def test_other_backends_go_to_the_original(backend, runtime):
    wrapper = plan(make())
    wrapper._backend = backend
    refusals = Refusals(LABEL)
    with contextlib.suppress(Exception):  # it is not really set up for that backend
        wrapper.run(*tensors())
    assert refusals.new() == {"backend": 1}
    assert runtime.calls == 0
