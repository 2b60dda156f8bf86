"""Attention wrappers in states that no definition describes: half a plan, buffers, head sizes."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
import torch
from gqa import (
    DTYPE,
    HKV,
    HQ,
    D,
    Pages,
    Refusals,
    Solutions,
    decode_name,
    decode_reference,
    decoder,
    i32,
    patched,
    plan_decode,
    prefill_reference,
    ragged_reference,
    random,
    routed,
    workspace,
)

from fib_adapters_flashinfer.decode import DecodeAdapter, DecodeRoute
from fib_adapters_flashinfer.planned import ledger
from fib_adapters_flashinfer.prefill import PrefillAdapter, PrefillRoute
from fib_adapters_flashinfer.ragged import RaggedAdapter, RaggedRoute
from flashinfer_bench.integration.slots import board

NAME = decode_name(16)


@pytest.fixture(autouse=True)
def kernels(cpu):
    torch.manual_seed(0)
    with cpu("decode") as patch:
        yield patch


def plain_decode():
    pages = Pages()
    return plan_decode(decoder(pages), pages), (random(3, HQ, D), pages.cache())


def plain_prefill():
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    pages = Pages()
    wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace(), "NHD")
    wrapper.plan(i32(0, 2, 3, 7), *pages.table, HQ, HKV, D, 16, causal=True, q_data_type=DTYPE)
    return wrapper, (random(7, HQ, D), pages.cache())


def plain_ragged():
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

    wrapper = BatchPrefillWithRaggedKVCacheWrapper(workspace(), "NHD")
    wrapper.plan(i32(0, 2, 5), i32(0, 4, 9), HQ, HKV, D, causal=True, q_data_type=DTYPE)
    return wrapper, (random(5, HQ, D), random(9, HKV, D), random(9, HKV, D))


SIZES = f"h{HQ}_kv{HKV}_d{D}"
KINDS = {
    "decode": (DecodeAdapter, DecodeRoute, NAME, decode_reference, plain_decode),
    "prefill": (
        PrefillAdapter,
        PrefillRoute,
        f"gqa_paged_prefill_causal_{SIZES}_ps16",
        prefill_reference,
        plain_prefill,
    ),
    "ragged": (
        RaggedAdapter,
        RaggedRoute,
        f"gqa_ragged_prefill_causal_{SIZES}",
        ragged_reference,
        plain_ragged,
    ),
}


# ------------------------------------------------------------------------------------- buffers


@pytest.mark.parametrize("kind", KINDS)
def test_sums_go_into_a_buffer_that_is_given_though_they_are_not_returned(kind):
    """The kernels write to the buffer whenever there is one."""
    adapter, _route, name, reference, make = KINDS[kind]
    wrapper, tensors = make()
    wanted, sums = wrapper.run(*tensors, return_lse=True)
    lse = torch.full_like(sums, 7.0)
    with routed(adapter(), {name: reference}):
        found = wrapper.run(*tensors, lse=lse, return_lse=False)
    torch.testing.assert_close(found, wanted, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse, sums, atol=2e-2, rtol=2e-2)


# --------------------------------------------------------------------------------------- plans


def test_a_plan_that_fails_halfway_has_runs_go_to_the_original_until_the_next(monkeypatch):
    """Page numbers are the new plan's by then, and the schedule and the scale are the old one's."""
    pages = Pages()
    wrapper, (q, cache) = plain_decode()
    with routed(DecodeAdapter(), {NAME: decode_reference}) as runtime:
        wrapper.run(q, cache)
        assert runtime.calls == 1
        refusals = Refusals(DecodeRoute.label)
        fail_in_the_kernel(wrapper, monkeypatch)
        with pytest.raises(RuntimeError, match="workspace"):
            plan_decode(wrapper, pages, table=(i32(0, 1, 2, 6), *pages.table[1:]), sm_scale=0.3)
        monkeypatch.undo()
        with pytest.raises(AssertionError):  # the stand-in compares offsets and schedule
            wrapper.run(q, cache)
        assert runtime.calls == 1
        assert refusals.new() == {"its last plan failed": 1}
        plan_decode(wrapper, pages)
        wrapper.run(q, cache)
        assert runtime.calls == 2


def fail_in_the_kernel(wrapper, monkeypatch):
    import flashinfer.decode

    def fail(*args, **kwargs):
        raise RuntimeError("the workspace is too small")

    kernels = flashinfer.decode.get_batch_decode_module()
    monkeypatch.setattr(kernels, "plan", fail)


def test_a_first_plan_that_fails_leaves_an_object_without_one(monkeypatch):
    pages = Pages()
    wrapper = decoder(pages)
    with routed(DecodeAdapter(), {NAME: decode_reference}) as runtime:
        with pytest.raises((TypeError, RuntimeError, ValueError, IndexError, AttributeError)):
            plan_decode(wrapper, pages, table=(None, None, None))
        with pytest.raises(Exception, match=r"."):  # whatever the release says of it
            wrapper.run(random(3, HQ, D), pages.cache())
        assert runtime.calls == 0
        plan_decode(wrapper, pages)
        wrapper.run(random(3, HQ, D), pages.cache())
        assert runtime.calls == 1


def test_more_queries_than_were_planned_go_to_the_original_if_only_the_device_knows(monkeypatch):
    """Rows that no request has are left as they are by the kernels."""
    wrapper, (_, cache) = plain_prefill()
    vars(wrapper).pop("_qo_indptr_last", None)  # as earlier releases are, and plans of engines
    name = f"gqa_paged_prefill_causal_{SIZES}_ps16"
    with routed(PrefillAdapter(), {name: prefill_reference}) as runtime:
        refusals = Refusals(PrefillRoute.label)
        with contextlib.suppress(AttributeError, AssertionError, RuntimeError, ValueError):
            wrapper.run(random(9, HQ, D), cache)  # what comes of it is for the release to say
        assert refusals.new() == {"number of queries": 1}
        assert runtime.calls == 0


# --------------------------------------------------------------------------------------- sizes


def test_latent_attention_has_a_key_head_for_each_query_head():
    """The name of the definition has no number of key heads."""
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

    wrapper = BatchPrefillWithRaggedKVCacheWrapper(workspace(), "NHD")
    wrapper.plan(
        i32(0, 2, 5), i32(0, 4, 9), HQ, HKV, 192, head_dim_vo=128, causal=True, q_data_type=DTYPE
    )
    tensors = random(5, HQ, 192), random(9, HKV, 192), random(9, HKV, 128)
    wanted = wrapper.run(*tensors)
    with routed(
        RaggedAdapter(), {f"mla_ragged_prefill_causal_h{HQ}_qk192_vo128": ragged_reference}
    ) as runtime:
        refusals = Refusals(RaggedRoute.label)
        torch.testing.assert_close(wrapper.run(*tensors), wanted)
    assert refusals.new() == {"shapes": 1}
    assert runtime.calls == 0


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_values_unlike_keys_go_to_the_original_however_often_others_came(kind):
    adapter, route, name, reference, make = KINDS[kind]
    wrapper, (q, (k, v)) = make()
    with routed(adapter(), {name: reference}) as runtime:
        wrapper.run(q, (k, v))
        refusals = Refusals(route.label)
        with contextlib.suppress(RuntimeError, AssertionError, ValueError):
            wrapper.run(q, (k, v[:, :, :, : D // 2]))
        assert refusals.new() == {"shapes": 1}
        assert runtime.calls == 1


# --------------------------------------------------------------------------------------- leaks


def test_what_was_enabled_is_not_kept_by_an_object_that_lives_on():
    class Weights:
        """Something large that a solution holds."""

    def enable():
        weights = Weights()

        def solution(*args):
            assert weights
            return decode_reference(*args)

        runtime = Solutions({NAME: solution})
        with patched(DecodeAdapter()):
            board.push(runtime)
            wrapper.run(*tensors)
            runtime.stop()
            assert runtime.calls == 1
        return weakref.ref(weights)

    wrapper, tensors = plain_decode()
    held = enable()
    gc.collect()
    assert held() is None
    assert wrapper in ledger.planned or wrapper not in ledger.totals


def test_page_tables_that_an_engine_dropped_are_not_kept():
    """Engines plan past ours, and other tensors are the table then."""
    pages = Pages()
    wrapper, (q, cache) = plain_decode()
    with routed(DecodeAdapter(), {NAME: decode_reference}) as runtime:
        wrapper.run(q, cache)
        held = [
            weakref.ref(getattr(wrapper, f"_paged_kv_{each}_buf"))
            for each in ("indptr", "indices", "last_page_len")
        ]
        runtime.seen.clear()
        del runtime.again
        for each, tensor in zip(("indptr", "indices", "last_page_len"), pages.table, strict=True):
            setattr(wrapper, f"_paged_kv_{each}_buf", tensor.clone())
        wrapper._plan_info = type(wrapper._plan_info)(wrapper._plan_info)
        wrapper.run(q, cache)
        gc.collect()
        assert [each() for each in held] == [None, None, None]


@pytest.mark.parametrize("kind", ["prefill", "ragged"])
def test_more_queries_than_keys_go_to_the_original_unless_there_are_no_keys(kind):
    """References make no number of a query that sees no key, and kernels make one."""
    adapter, route, name, reference, make = KINDS[kind]
    wrapper, tensors = make()
    table = Pages().table if kind == "prefill" else ()
    sizes = (HQ, HKV, D, 16) if kind == "prefill" else (HQ, HKV, D)
    offsets = table[:1] or (i32(0, 4, 9),)
    last = tensors[0].shape[0]
    # Of paged keys, the first request has 32, the second 1, the third 40.
    many = i32(0, 2, 5, 7) if kind == "prefill" else i32(0, last, last)
    for queries, routed_calls in ((many, 0), (None, 1)):
        with routed(adapter(), {name: reference}) as runtime:
            refusals = Refusals(route.label)
            if queries is None:
                wrapper, tensors = make()
            else:
                wrapper.plan(queries, *offsets, *table[1:], *sizes, causal=True, q_data_type=DTYPE)
            wrapper.run(*tensors)
            assert runtime.calls == routed_calls
            assert refusals.new() == ({} if routed_calls else {"more queries than keys": 1})
