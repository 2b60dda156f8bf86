"""What the tests of the attention adapters share: a runtime, references, planned wrappers."""

import contextlib
import itertools
import math

import torch
from making import patched

from fib_adapters_flashinfer.attention import DecodeAdapter, PrefillAdapter, RaggedAdapter
from flashinfer_bench.routing.patch_points import Everything, router

torch.set_num_threads(1)  # the tensors are small: handing them round takes longer than the work

HQ, HKV, D = 4, 2, 64
DTYPE = torch.bfloat16


class Solutions:
    """A runtime that answers definitions by functions, and keeps what these were given."""

    def __init__(self, functions):
        self.functions = functions
        self.seen = []

    def names(self):
        return Everything(self.functions)

    def definition(self, name):
        return None

    def route(self, name, point):
        function = self.functions.get(name)
        if function is None:
            return None
        parameters = list(point.signature.parameters)

        def call(args, kwargs, fallback):
            assert not kwargs
            self.again = fallback
            self.seen.append((name, dict(zip(parameters, args, strict=True))))
            return function(*args)

        return call

    def stop(self):
        router.remove(self)

    @property
    def calls(self):
        return len(self.seen)

    @property
    def name(self):
        return self.seen[-1][0]

    @property
    def inputs(self):
        return self.seen[-1][1]


@contextlib.contextmanager
def routed(adapter, functions):
    """Have calls of an adapter's targets answered by functions, by name of the definition."""
    runtime = Solutions(functions)
    with patched(adapter):
        router.push(runtime)
        try:
            yield runtime
        finally:
            runtime.stop()


# -------------------------------------------------------------------------------- references


def attention(q, k, v, sm_scale, causal=True):
    """Attention of one request, query by query: values, and log2 of sums."""
    out = torch.zeros(*q.shape[:2], v.shape[-1])
    lse = torch.full(q.shape[:2], -math.inf)
    group = q.shape[1] // k.shape[1]
    keys = k.float().transpose(0, 1).repeat_interleave(group, 0)  # [heads, length, d]
    values = v.float().transpose(0, 1).repeat_interleave(group, 0)
    for row in range(q.shape[0]):
        seen = k.shape[0] - (q.shape[0] - row - 1 if causal else 0)
        if seen > 0:
            scores = (keys[:, :seen] @ q[row].float()[:, :, None])[:, :, 0] * sm_scale
            out[row] = (torch.softmax(scores, 1)[:, None] @ values[:, :seen])[:, 0]
            lse[row] = torch.logsumexp(scores, 1) / math.log(2)
    return out.to(q.dtype), lse


def prefill_reference(
    q,
    k_cache,
    v_cache,
    qo_indptr,
    kv_indptr,
    kv_indices,
    sm_scale,
    kv_last_page_len=None,
    causal=True,
):
    """What definitions of paged prefill say; buffers for graphs may have more pages."""
    pages = [kv_indices[begin:end].long() for begin, end in itertools.pairwise(kv_indptr)]
    last = [1] * len(pages) if kv_last_page_len is None else kv_last_page_len.tolist()
    assert (kv_last_page_len is None) == (k_cache.shape[1] == 1)
    lengths = [
        (len(p) - 1) * k_cache.shape[1] + n if len(p) else 0
        for p, n in zip(pages, last, strict=True)
    ]
    k, v = (
        torch.cat([cache[p].flatten(0, 1)[:n] for p, n in zip(pages, lengths, strict=True)])
        for cache in (k_cache, v_cache)
    )
    places = torch.tensor([0, *lengths]).cumsum(0)
    return ragged_reference(q, k, v, qo_indptr, places, sm_scale, causal)


def decode_reference(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale, kv_last_page_len=None):
    """What definitions of paged decode say."""
    assert len(kv_indptr) == q.shape[0] + 1
    ones = torch.arange(q.shape[0] + 1)
    pages = kv_indptr, kv_indices, sm_scale, kv_last_page_len
    return prefill_reference(q, k_cache, v_cache, ones, *pages)


def ragged_reference(q, k, v, qo_indptr, kv_indptr, sm_scale, causal=True):
    """What definitions of ragged prefill say."""
    assert type(sm_scale) is float
    assert q.shape[0] == qo_indptr[-1]
    assert k.shape[0] == v.shape[0] == kv_indptr[-1]
    found = []
    for i in range(len(qo_indptr) - 1):
        rows, keys = (slice(each[i], each[i + 1]) for each in (qo_indptr, kv_indptr))
        found.append(attention(q[rows], k[keys], v[keys], sm_scale, causal))
    return tuple(torch.cat(each) for each in zip(*found, strict=True))


def agree(found, wanted):
    """Assert that outputs are those of the original, as well as bfloat16 allows."""
    assert type(found) is type(wanted)
    torch.testing.assert_close(found, wanted, atol=2e-2, rtol=2e-2)


# --------------------------------------------------------------------------------- wrappers


def i32(*values):
    return torch.tensor(values, dtype=torch.int32)


def workspace():
    return torch.zeros(1 << 16, dtype=torch.uint8)


def random(*shape, dtype=DTYPE):
    return torch.randn(*shape).to(dtype)


class Pages:
    """A page table of three requests; keys and values are [num_pages, page_size, HKV, D]."""

    num_pages = 8

    def __init__(self, page_size=16, dtype=DTYPE, heads=HKV, size=D):
        self.page_size = page_size
        self.indptr = i32(0, 2, 3, 6)
        self.indices = i32(5, 0, 3, 7, 1, 2)
        self.last = i32(*((1, 1, 1) if page_size == 1 else (page_size, 1, page_size // 2)))
        self.k = random(self.num_pages, page_size, heads, size, dtype=dtype)
        self.v = random(self.num_pages, page_size, heads, size, dtype=dtype)

    @property
    def table(self):
        return self.indptr, self.indices, self.last

    def cache(self, layout="NHD"):
        """Return the cache as a pair."""
        if layout == "HND":
            return self.k.transpose(1, 2).contiguous(), self.v.transpose(1, 2).contiguous()
        return self.k, self.v


def decode_name(page_size, heads=HQ, kv=HKV, size=D):
    """Return the name of a definition of decode."""
    return f"gqa_paged_decode_h{heads}_kv{kv}_d{size}_ps{page_size}"


def decoder(pages, layout="NHD", graph=False, **options):
    """Return a wrapper for decode, with buffers for these pages if it is to be for graphs."""
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    if graph:
        sizes = (4, len(pages.indices) + 10, 3)  # more pages than are in use
        indptr, indices, last = (torch.zeros(size, dtype=torch.int32) for size in sizes)
        options.update(
            use_cuda_graph=True,
            paged_kv_indptr_buffer=indptr,
            paged_kv_indices_buffer=indices,
            paged_kv_last_page_len_buffer=last,
        )
    return BatchDecodeWithPagedKVCacheWrapper(workspace(), layout, **options)


def plan_decode(wrapper, pages, *, table=None, **options):
    """Plan a wrapper for decode, by the table of `pages` or another one; return it."""
    options.setdefault("q_data_type", DTYPE)
    table = pages.table if table is None else table
    wrapper.plan(*table, HQ, HKV, D, pages.page_size, **options)
    return wrapper


ROWS, PLACES = i32(0, 4, 5, 12), i32(0, 9, 10, 17)
SIZES = f"h{HQ}_kv{HKV}_d{D}"


class Kind:
    """A class of wrappers, with a plan and tensors of three requests."""

    def __init__(self, name, adapter, definition, reference):
        self.name, self.adapter, self.label = name, adapter, adapter.route.label
        self.definition, self.reference = definition, reference

    def planned(self, dtype=DTYPE, layout="NHD", **options):
        import flashinfer

        options, pages = {"q_data_type": dtype, **options}, Pages()
        if self.name == "decode":
            return plan_decode(decoder(pages, layout), pages, **options)
        options = {"causal": True, **options}
        if self.name == "prefill":
            wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(), layout)
            wrapper.plan(ROWS, *pages.table, HQ, HKV, D, 16, **options)
        else:
            wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace(), layout)
            wrapper.plan(ROWS, PLACES, HQ, HKV, D, **options)
        return wrapper

    def tensors(self, dtype=DTYPE, kv=None, layout="NHD"):
        q = random(3 if self.name == "decode" else 12, HQ, D, dtype=dtype)
        if self.name != "ragged":
            return q, Pages(dtype=kv or dtype).cache(layout)
        shape = (17, HKV, D) if layout == "NHD" else (HKV, 17, D)
        return q, random(*shape, dtype=kv or dtype), random(*shape, dtype=kv or dtype)

    def routed(self):
        """Have its definition answered by the reference."""
        return routed(self.adapter(), {self.definition: self.reference})


KINDS = {
    kind: Kind(kind, *about)
    for kind, *about in (
        ("decode", DecodeAdapter, decode_name(16), decode_reference),
        ("prefill", PrefillAdapter, f"gqa_paged_prefill_causal_{SIZES}_ps16", prefill_reference),
        ("ragged", RaggedAdapter, f"gqa_ragged_prefill_causal_{SIZES}", ragged_reference),
    )
}
