"""What the tests of the attention adapters share: a runtime, references, planned wrappers."""

import contextlib
import functools
import inspect
import math
import warnings

import torch
from making import patched

from fib_adapters_flashinfer.attention import DecodeAdapter, PrefillAdapter, RaggedAdapter
from flashinfer_bench.routing.patch_points import Everything, router
from flashinfer_bench.routing.routes import route_stats

torch.set_num_threads(1)  # the tensors are small: handing them round takes longer than the work

HQ, HKV, D = 4, 2, 64
DTYPE = torch.bfloat16


class Solutions:
    """A runtime that answers definitions by functions, and keeps what these were given.

    Parameters
    ----------
    functions : dict
        By name of the definition; each takes the canonical inputs by position.
    """

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


class Refusals:
    """Reasons for which calls of one label were not routed, since this was made."""

    def __init__(self, label):
        self.label = label
        self._before = self._now()

    def _now(self):
        return dict(route_stats().get(self.label, {"refused": {}})["refused"])

    def new(self):
        now = self._now()
        return {
            reason: count - self._before.get(reason, 0)
            for reason, count in now.items()
            if count != self._before.get(reason, 0)
        }


# -------------------------------------------------------------------------------- references


def rows_of(cache, pages, last):
    """Return the rows of a request from [num_pages, page_size, heads, d]."""
    if not len(pages):
        return cache.new_zeros((0, *cache.shape[2:]))
    page_size = cache.shape[1]
    return cache[pages.long()].flatten(0, 1)[: (len(pages) - 1) * page_size + last]


def attention(q, k, v, sm_scale):
    """Causal attention of one request, query by query: values, and log2 of sums."""
    out = torch.zeros(*q.shape[:2], v.shape[-1])
    lse = torch.full(q.shape[:2], -math.inf)
    group = q.shape[1] // k.shape[1]
    keys = k.float().transpose(0, 1).repeat_interleave(group, 0)  # [heads, length, d]
    values = v.float().transpose(0, 1).repeat_interleave(group, 0)
    for row in range(q.shape[0]):
        seen = k.shape[0] - q.shape[0] + row + 1
        if seen > 0:
            scores = (keys[:, :seen] @ q[row].float()[:, :, None])[:, :, 0] * sm_scale
            out[row] = (torch.softmax(scores, 1)[:, None] @ values[:, :seen])[:, 0]
            lse[row] = torch.logsumexp(scores, 1) / math.log(2)
    return out.to(q.dtype), lse


def prefill_reference(q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, sm_scale, last=None):
    """What definitions of paged prefill say, with the constraints of the dataset."""
    assert type(sm_scale) is float
    assert q.shape[0] == qo_indptr[-1]
    assert kv_indices.shape[0] == kv_indptr[-1]
    assert (last is None) == (k_cache.shape[1] == 1)
    found = []
    for i in range(len(qo_indptr) - 1):
        pages = kv_indices[kv_indptr[i] : kv_indptr[i + 1]]
        length = 1 if last is None else int(last[i])
        k, v = rows_of(k_cache, pages, length), rows_of(v_cache, pages, length)
        found.append(attention(q[qo_indptr[i] : qo_indptr[i + 1]], k, v, sm_scale))
    return tuple(torch.cat(each) for each in zip(*found, strict=True))


def decode_reference(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale, last=None):
    """What definitions of paged decode say."""
    assert len(kv_indptr) == q.shape[0] + 1
    ones = torch.arange(q.shape[0] + 1)
    return prefill_reference(q, k_cache, v_cache, ones, kv_indptr, kv_indices, sm_scale, last)


def ragged_reference(q, k, v, qo_indptr, kv_indptr, sm_scale):
    """What definitions of ragged prefill say."""
    assert q.shape[0] == qo_indptr[-1]
    assert k.shape[0] == v.shape[0] == kv_indptr[-1]
    found = []
    for i in range(len(qo_indptr) - 1):
        keys = slice(kv_indptr[i], kv_indptr[i + 1])
        found.append(attention(q[qo_indptr[i] : qo_indptr[i + 1]], k[keys], v[keys], sm_scale))
    return tuple(torch.cat(each) for each in zip(*found, strict=True))


def agree(found, wanted):
    """Assert that outputs are those of the original, as well as bfloat16 allows."""
    if isinstance(wanted, tuple):
        assert isinstance(found, tuple)
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            agree(a, b)
        return
    assert isinstance(found, torch.Tensor)
    assert found.shape == wanted.shape
    assert found.dtype is wanted.dtype
    torch.testing.assert_close(found, wanted, atol=2e-2, rtol=2e-2)


# --------------------------------------------------------------------------------- wrappers


def i32(*values):
    return torch.tensor(values, dtype=torch.int32)


def workspace():
    return torch.zeros(1 << 16, dtype=torch.uint8)


def random(*shape, dtype=DTYPE):
    return torch.randn(*shape).to(dtype)


class Pages:
    """A page table of three requests, and keys and values for it.

    Attributes
    ----------
    k, v : tensor [num_pages, page_size, HKV, D]
    indptr, indices, last : tensor
        Offsets of pages, page numbers, places in use on last pages.
    """

    counts = (2, 1, 3)
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


def quiet(function):
    """Have a call warn of nothing: older forms are deprecated in some releases."""

    @functools.wraps(function)
    def silent(*args, **kwargs):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*args, **kwargs)

    return silent


def takes(function, name):
    """Return whether a release has a parameter."""
    return name in inspect.signature(function).parameters


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
