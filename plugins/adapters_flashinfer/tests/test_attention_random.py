"""Any page table, layout and form of cache: a routed call answers what the original does."""

from __future__ import annotations

import pytest
import torch
from gqa import (
    DTYPE,
    HKV,
    HQ,
    D,
    agree,
    decode_name,
    decode_reference,
    i32,
    prefill_reference,
    ragged_reference,
    random,
    routed,
    workspace,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fib_adapters_flashinfer.decode import DecodeAdapter
from fib_adapters_flashinfer.prefill import PrefillAdapter
from fib_adapters_flashinfer.ragged import RaggedAdapter

few = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
layouts = st.sampled_from(["NHD", "HND"])
forms = st.sampled_from(["pair", "one", "packed"])
counts = st.lists(st.integers(0, 3), min_size=1, max_size=4)


@pytest.fixture(autouse=True)
def kernels(cpu):
    torch.manual_seed(0)
    with cpu("decode") as patch:
        yield patch


def offsets(numbers):
    return i32(0, *torch.tensor(numbers).cumsum(0).tolist())


@st.composite
def tables(draw):
    """Return page size, offsets, page numbers with slack at the end, and uses of last pages."""
    page_size, pages = draw(st.sampled_from([1, 2, 16])), draw(counts)
    indptr = offsets(pages)
    numbers = draw(st.permutations(range(16)))[: int(indptr[-1])]
    slack = draw(st.integers(0, 4))
    last = [draw(st.integers(1, page_size)) for _ in pages]
    return page_size, indptr, i32(*numbers, *[10**6] * slack), i32(*last)


def caches(page_size, layout, form):
    shape = (16, page_size, HKV, D) if layout == "NHD" else (16, HKV, page_size, D)
    if form == "packed":
        return random(*shape[:-1], 2 * D).split(D, dim=-1)
    pair = random(*shape), random(*shape)
    return torch.stack(pair, dim=1) if form == "one" else pair


def compare(adapter, name, reference, wrapper, tensors):
    """Run with and without a solution; both answer the same."""
    wanted = wrapper.run(*tensors, return_lse=True)
    with routed(adapter, {name: reference}) as runtime:
        found = wrapper.run(*tensors, return_lse=True)
        only = wrapper.run(*tensors)
    assert runtime.calls == 2
    agree(found, wanted)
    agree(only, wanted[0])


@few
@given(table=tables(), layout=layouts, form=forms, cores=st.booleans())
def test_decode(flashinfer, table, layout, form, cores):
    page_size, *table = table
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        workspace(), layout, use_tensor_cores=cores
    )
    wrapper.plan(*table, HQ, HKV, D, page_size, q_data_type=DTYPE)
    tensors = random(len(table[2]), HQ, D), caches(page_size, layout, form)
    compare(DecodeAdapter(), decode_name(page_size), decode_reference, wrapper, tensors)


@few
@given(table=tables(), layout=layouts, form=forms, data=st.data())
def test_prefill(flashinfer, table, layout, form, data):
    page_size, *table = table
    rows = offsets([data.draw(st.integers(0, 5)) for _ in table[2]])
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(), layout)
    wrapper.plan(rows, *table, HQ, HKV, D, page_size, causal=True, q_data_type=DTYPE)
    tensors = random(int(rows[-1]), HQ, D), caches(page_size, layout, form)
    name = f"gqa_paged_prefill_causal_h{HQ}_kv{HKV}_d{D}_ps{page_size}"
    compare(PrefillAdapter(), name, prefill_reference, wrapper, tensors)


@few
@given(lengths=counts, layout=layouts, extra=st.integers(0, 3), data=st.data())
def test_ragged(flashinfer, lengths, layout, extra, data):
    rows = offsets([data.draw(st.integers(0, 5)) for _ in lengths])
    places = offsets(lengths)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace(), layout)
    wrapper.plan(rows, places, HQ, HKV, D, causal=True, q_data_type=DTYPE)
    length = int(places[-1]) + extra
    shape = (length, HKV, D) if layout == "NHD" else (HKV, length, D)
    tensors = random(int(rows[-1]), HQ, D), random(*shape), random(*shape)
    name = f"gqa_ragged_prefill_causal_h{HQ}_kv{HKV}_d{D}"
    compare(RaggedAdapter(), name, ragged_reference, wrapper, tensors)
