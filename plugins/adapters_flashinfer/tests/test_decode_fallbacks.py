"""Batch decode: calls that are of no definition go to the original, each for a reason."""

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
    decode_name,
    decode_reference,
    decoder,
    i32,
    plan_decode,
    quiet,
    random,
    routed,
    takes,
)

from fib_adapters_flashinfer.decode import DecodeAdapter, DecodeRoute

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


def refused(reason, wrapper, call, runtime, cpu_decode):
    """Assert that a call goes to the original once, for one reason, with its very result."""
    refusals = Refusals(LABEL)
    before, routed_before = cpu_decode.calls.total(), runtime.calls
    found = call()
    assert refusals.new() == {reason: 1}
    assert runtime.calls == routed_before
    assert cpu_decode.calls.total() == before + 1
    return found


RUN_OPTIONS = {
    "q scale": {"q_scale": 0.5},
    "k scale": {"k_scale": 0.5},
    "v scale": {"v_scale": 0.5},
    "attention sinks": {"sinks": torch.zeros(HQ)},
    "skipping of softmax": {"skip_softmax_threshold_scale_factor": 1.0},
    "scales of a quantised kv cache": {"kv_cache_sf": (torch.zeros(1), torch.zeros(1))},
}


@pytest.mark.parametrize("reason", RUN_OPTIONS)
def test_options_of_run_go_to_the_original(reason, runtime, cpu_decode):
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper as Wrapper

    options = RUN_OPTIONS[reason]
    if not takes(Wrapper.run, next(iter(options))):
        pytest.skip(f"this release has no {next(iter(options))}")
    wrapper, pages = planned()
    if reason == "scales of a quantised kv cache":
        refusals = Refusals(LABEL)
        with contextlib.suppress(ValueError):  # some releases look at them in any case
            wrapper.run(random(3, HQ, D), pages.cache(), **options)
        assert refusals.new() == {reason: 1}
        return
    call = lambda: wrapper.run(random(3, HQ, D), pages.cache(), **options)  # noqa: E731
    refused(reason, wrapper, call, runtime, cpu_decode)


def test_a_scale_in_a_tensor_on_a_device_is_not_looked_at(runtime, cpu_decode):
    wrapper, pages = planned()
    scale = torch.tensor(1.0, device="meta")
    refusals = Refusals(LABEL)
    with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
        wrapper.run(random(3, HQ, D), pages.cache(), k_scale=scale)
    assert refusals.new() == {"k scale": 1}
    assert runtime.calls == 0


def test_arguments_for_a_custom_kernel_go_to_the_original(runtime, cpu_decode):
    wrapper, pages = planned()
    call = lambda: wrapper.run(random(3, HQ, D), pages.cache(), 0.5)  # noqa: E731
    refused("arguments for a custom kernel", wrapper, call, runtime, cpu_decode)


def test_an_option_that_is_not_known_goes_to_the_original(runtime):
    wrapper, pages = planned()
    refusals = Refusals(LABEL)
    with pytest.raises(TypeError, match="of_the_future"):
        wrapper.run(random(3, HQ, D), pages.cache(), of_the_future=1)
    assert refusals.new() == {"an option that is not known": 1}


PLAN_OPTIONS = [
    ("sliding window", {"window_left": 4}),
    ("logits soft cap", {"logits_soft_cap": 30.0}),
    ("position encoding", {"pos_encoding_mode": "ROPE_LLAMA"}),
    ("dtype of the output", {"o_data_type": torch.float16}),
]


@pytest.mark.parametrize(("reason", "options"), PLAN_OPTIONS, ids=lambda each: str(each)[:20])
def test_options_of_plan_go_to_the_original(reason, options, runtime, cpu_decode):
    wrapper, pages = planned(**options)
    call = lambda: wrapper.run(random(3, HQ, D), pages.cache())  # noqa: E731
    refused(reason, wrapper, call, runtime, cpu_decode)


@pytest.mark.parametrize(("reason", "options"), PLAN_OPTIONS[:3], ids=lambda each: str(each)[:20])
def test_what_forward_changes_goes_to_the_original(reason, options, runtime, cpu_decode):
    wrapper, pages = planned()
    q = random(3, HQ, D)
    call = lambda: quiet(wrapper.forward)(q, pages.cache(), **options)  # noqa: E731
    if "window_left" in options:
        wrapper.run(q, pages.cache())
        runtime.seen.clear()
    refused(reason, wrapper, call, runtime, cpu_decode)
    quiet(wrapper.forward)(q, pages.cache())
    assert runtime.calls == 1


def test_a_window_that_is_not_the_planned_one_is_for_the_original_to_refuse(runtime):
    wrapper, pages = planned()
    with pytest.raises(AssertionError):
        wrapper.run(random(3, HQ, D), pages.cache(), window_left=3)
    assert runtime.calls == 0


def test_several_queries_a_request_go_to_the_original(runtime, cpu_decode):
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper as Wrapper

    if not hasattr(Wrapper, "_plan_impl"):
        pytest.skip("this release plans for one query a request only")
    pages = Pages(16)
    wrapper = plan_decode(
        decoder(pages, use_tensor_cores=True), pages, table=_long(pages), q_len_per_req=2
    )
    call = lambda: wrapper.run(random(6, HQ, D), pages.cache())  # noqa: E731
    refused("several queries", wrapper, call, runtime, cpu_decode)


def _long(pages):
    return pages.indptr, pages.indices, i32(2, 2, 2)


def test_more_queries_than_requests_go_to_the_original(runtime):
    wrapper, pages = planned()
    refusals = Refusals(LABEL)
    with pytest.raises(Exception):  # noqa: B017, PT011 - releases refuse it in their own ways
        wrapper.run(random(6, HQ, D), pages.cache(), out=torch.zeros(1))
    assert refusals.new() == {"number of queries": 1}


def test_one_query_a_request_may_be_said(runtime):
    wrapper, pages = planned()
    quiet(wrapper.run)(random(3, HQ, D), pages.cache(), q_len_per_req=1)
    assert runtime.calls == 1
    refusals = Refusals(LABEL)
    with contextlib.suppress(ValueError):  # some releases look at it in any case
        quiet(wrapper.run)(random(3, HQ, D), pages.cache(), q_len_per_req=2)
    assert refusals.new() == {"several queries": 1}
    assert runtime.calls == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_dtypes_go_to_the_original(dtype, runtime, cpu_decode):
    pages = Pages(16, dtype=dtype)
    wrapper = plan_decode(decoder(pages), pages, q_data_type=dtype)
    q = random(3, HQ, D, dtype=dtype)
    call = lambda: wrapper.run(q, pages.cache())  # noqa: E731
    refused("dtype", wrapper, call, runtime, cpu_decode)


def test_keys_of_another_dtype_than_queries_go_to_the_original(runtime, cpu_decode):
    pages = Pages(16, dtype=torch.float16)
    wrapper = plan_decode(decoder(pages), pages, kv_data_type=torch.float16)
    call = lambda: wrapper.run(random(3, HQ, D), pages.cache())  # noqa: E731
    refused("dtype", wrapper, call, runtime, cpu_decode)


def test_queries_of_another_dtype_than_planned_are_for_the_original_to_refuse(runtime):
    wrapper, pages = planned()
    with pytest.raises(ValueError, match="dtype of q"):
        wrapper.run(random(3, HQ, D, dtype=torch.float16), pages.cache())
    with pytest.raises(ValueError, match="dtype of k"):
        wrapper.run(random(3, HQ, D), Pages(16, dtype=torch.float16).cache())
    assert runtime.calls == 0


@pytest.mark.parametrize(
    ("reason", "buffers"),
    [
        ("out buffer", {"out": torch.zeros(2, HQ, D, dtype=DTYPE)}),
        ("out buffer", {"out": torch.zeros(3, HQ, D)}),
        ("lse buffer", {"lse": torch.zeros(3, HQ + 1), "return_lse": True}),
        ("lse buffer", {"lse": torch.zeros(3, HQ, dtype=DTYPE), "return_lse": True}),
    ],
)
def test_buffers_that_do_not_fit_are_for_the_original_to_refuse(reason, buffers, runtime):
    wrapper, pages = planned()
    refusals = Refusals(LABEL)
    with pytest.raises(ValueError, match=r"out|lse"):
        wrapper.run(random(3, HQ, D), pages.cache(), **buffers)
    assert refusals.new() == {reason: 1}


@pytest.mark.parametrize(
    "cache",
    [
        [torch.zeros(8, 16, HKV, D, dtype=DTYPE)] * 2,
        (torch.zeros(8, 16, HKV, D, dtype=DTYPE),) * 3,
        torch.zeros(8, 3, 16, HKV, D, dtype=DTYPE),
        None,
    ],
)
def test_other_forms_of_the_cache_are_for_the_original_to_refuse(cache, runtime):
    wrapper, _ = planned()
    refusals = Refusals(LABEL)
    with pytest.raises((KeyError, ValueError)):
        wrapper.run(random(3, HQ, D), cache)
    assert refusals.new() == {"form of the kv cache": 1}


@pytest.mark.parametrize("backend", ["trtllm-gen", "cudnn", "cute-dsl", "one of the future"])
def test_backends_with_page_tables_of_their_own_go_to_the_original(backend, runtime, cpu_decode):
    wrapper, pages = planned()
    wrapper._backend = backend
    refusals = Refusals(LABEL)
    with contextlib.suppress(Exception):  # it is not really set up for that backend
        wrapper.run(random(3, HQ, D), pages.cache())
    assert refusals.new() == {"backend": 1}
    assert runtime.calls == 0


def test_custom_kernels_go_to_the_original(runtime, cpu_decode):
    from flashinfer import decode

    kernels = decode.get_batch_decode_module()

    class Spec:
        def build_and_load(self):
            return kernels

    cpu_decode.set(decode, "gen_customize_batch_decode_module", lambda *args: Spec())
    cpu_decode.set(decode, "get_batch_decode_jit_module", lambda uri, module: module)
    pages = Pages(16)
    wrapper = decoder(pages, jit_args=["uri", *[[]] * 9])
    plan_decode(wrapper, pages)
    q = random(3, HQ, D)
    alibi_cap_scale = (None, 0.0, 1.0)
    refusals = Refusals(LABEL)
    wrapper.run(q, pages.cache(), *alibi_cap_scale)
    wrapper.run_return_lse(q, pages.cache(), *alibi_cap_scale)
    assert refusals.new() == {"arguments for a custom kernel": 2}
    with pytest.raises(TypeError):
        wrapper.run(q, pages.cache())
    assert refusals.new()["custom kernel"] == 1


def test_scales_in_tensors_that_plan_was_given_go_to_the_original(runtime, cpu_decode):
    wrapper, pages = planned(sm_scale=torch.tensor(0.5))
    call = lambda: wrapper.run(random(3, HQ, D), pages.cache())  # noqa: E731
    refused("sm_scale is no number", wrapper, call, runtime, cpu_decode)


def test_a_definition_that_nobody_has_goes_to_the_original(runtime, cpu_decode):
    pages = Pages(32)
    wrapper = plan_decode(decoder(pages), pages)
    call = lambda: wrapper.run(random(3, HQ, D), pages.cache())  # noqa: E731
    refused("definition not enabled", wrapper, call, runtime, cpu_decode)
