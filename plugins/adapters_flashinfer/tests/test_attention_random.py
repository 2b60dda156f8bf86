"""Any page table, layout and form of cache: a routed call answers what the original does."""

import gqa
import pytest
import torch
from gqa import DTYPE, HKV, HQ, D, i32, random
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fib_adapters_flashinfer.attention import DecodeAdapter, PrefillAdapter, RaggedAdapter

few = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def buffers(graph, requests, *names):
    """Return options for a wrapper that is used in CUDA graphs: longer than what is in use."""
    sizes = {"indptr": requests + 1, "indices": 32, "len": requests}
    made = {
        name: torch.zeros(next(n for key, n in sizes.items() if key in name), dtype=torch.int32)
        for name in names
    }
    return {"use_cuda_graph": True, **made} if graph else {}


def compare(adapter, name, reference, wrapper, tensors, **attributes):
    """Run with and without a solution; both answer the same."""
    wanted = wrapper.run(*tensors, return_lse=True)
    with gqa.routed(adapter, {name: reference}) as runtime:
        found = wrapper.run(*tensors, return_lse=True)
        only = wrapper.run(*tensors)
    assert runtime.calls == 2
    gqa.agree(found, wanted)
    gqa.agree(only, wanted[0])
    inputs = runtime.inputs
    assert inputs["q"] is tensors[0]
    assert inputs["sm_scale"] == D**-0.5
    for each, attribute in attributes.items():
        assert inputs[each] is getattr(wrapper, attribute), each
    return inputs


PAGED = ("paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf")


@few
@given(table=tables(), layout=layouts, form=forms, cores=st.booleans(), graph=st.booleans())
def test_decode(flashinfer, table, layout, form, cores, graph):
    page_size, *table = table
    requests = len(table[2])
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        *(gqa.workspace(), layout),
        use_tensor_cores=cores,
        **buffers(graph, requests, *(f"{name}fer" for name in PAGED)),
    )
    wrapper.plan(*table, HQ, HKV, D, page_size, q_data_type=DTYPE)
    tensors = random(requests, HQ, D), caches(page_size, layout, form)
    adapter, name = DecodeAdapter(), gqa.decode_name(page_size)
    where = {"kv_indptr": "_paged_kv_indptr_buf"}
    inputs = compare(adapter, name, gqa.decode_reference, wrapper, tensors, **where)
    of_page_tables(inputs, page_size, table)


def of_page_tables(inputs, page_size, table):
    assert inputs["kv_indices"].tolist() == table[1][: int(table[0][-1])].tolist()
    assert (inputs["kv_last_page_len"] is None) == (page_size == 1)


@few
@given(table=tables(), layout=layouts, form=forms, graph=st.booleans(), data=st.data())
def test_prefill(flashinfer, table, layout, form, graph, data):
    page_size, *table = table
    rows = offsets([data.draw(st.integers(0, 5)) for _ in table[2]])
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
        gqa.workspace(), layout, **buffers(graph, len(table[2]), "qo_indptr_buf", *PAGED)
    )
    wrapper.plan(rows, *table, HQ, HKV, D, page_size, causal=True, q_data_type=DTYPE)
    tensors = random(int(rows[-1]), HQ, D), caches(page_size, layout, form)
    adapter, name = PrefillAdapter(), f"gqa_paged_prefill_causal_{gqa.SIZES}_ps{page_size}"
    where = {"kv_indptr": "_paged_kv_indptr_buf", "qo_indptr": "_qo_indptr_buf"}
    inputs = compare(adapter, name, gqa.prefill_reference, wrapper, tensors, **where)
    of_page_tables(inputs, page_size, table)


@few
@given(lengths=counts, layout=layouts, extra=st.integers(0, 3), graph=st.booleans(), data=st.data())
def test_ragged(flashinfer, lengths, layout, extra, graph, data):
    rows = offsets([data.draw(st.integers(0, 5)) for _ in lengths])
    places = offsets(lengths)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(
        gqa.workspace(), layout, **buffers(graph, len(lengths), "qo_indptr_buf", "kv_indptr_buf")
    )
    wrapper.plan(rows, places, HQ, HKV, D, causal=True, q_data_type=DTYPE)
    length = int(places[-1]) + extra
    shape = (length, HKV, D) if layout == "NHD" else (HKV, length, D)
    tensors = random(int(rows[-1]), HQ, D), random(*shape), random(*shape)
    adapter, name = RaggedAdapter(), f"gqa_ragged_prefill_causal_{gqa.SIZES}"
    where = {"kv_indptr": "_kv_indptr_buf", "qo_indptr": "_qo_indptr_buf"}
    compare(adapter, name, gqa.ragged_reference, wrapper, tensors, **where)
