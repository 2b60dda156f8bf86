"""Batches for MLA, what is called with them, and what should come out.

Small sizes that FlashInfer allows: the compressed part is a multiple of 128, the rotated of 64.
"""

import contextlib
import math

import making
import torch
from making import SCALAR, define, tensor

from fib_adapters_flashinfer.mla import WRAPPER, MLAAdapter
from flashinfer_bench.apply import enable_apply
from flashinfer_bench.data import Definition, TraceSet
from flashinfer_bench.routing.routes import route_stats

HEADS, CKV, KPE = 4, 128, 64
SCALE = 1.0 / math.sqrt(128 + 64)
LABEL = f"{WRAPPER}.run"

# How well bfloat16 outputs have to agree: two units in the last place of values around 1.
CLOSE = {"atol": 2e-2, "rtol": 2e-2}


class Batch:
    """Queries and a paged cache with as many tokens as asked for.

    Pages lie scattered, with a slack of pages that no request has; a last page may be partial.
    """

    def __init__(self, queries, keys, page_size=1, seed=0, dtype=torch.bfloat16, slack=3):
        make = torch.Generator().manual_seed(seed)
        pages = [-(-length // page_size) for length in keys]
        count = sum(pages) + slack

        def normal(*shape):
            return torch.randn(*shape, generator=make).to(dtype)

        self.page_size, self.dtype = page_size, dtype
        self.qo_indptr = _offsets(queries)
        self.kv_indptr = _offsets(pages)
        self.kv_indices = torch.randperm(count, generator=make, dtype=torch.int32)[: sum(pages)]
        self.kv_lens = torch.tensor(keys, dtype=torch.int32)
        self.q_nope = normal(sum(queries), HEADS, CKV)
        self.q_pe = normal(sum(queries), HEADS, KPE)
        self.ckv = normal(count, page_size, CKV)
        self.kpe = normal(count, page_size, KPE)

    @property
    def tensors(self):
        return self.q_nope, self.q_pe, self.ckv, self.kpe

    @property
    def arrays(self):
        return self.qo_indptr, self.kv_indptr, self.kv_indices, self.kv_lens

    def plan(self, wrapper, causal=False, arrays=None, **options):
        """Plan as SGLang does: by position."""
        sizes = (HEADS, CKV, KPE, self.page_size)
        dtypes = (self.dtype, self.dtype)
        wrapper.plan(*(arrays or self.arrays), *sizes, causal, SCALE, *dtypes, **options)

    def expected(self, causal=False):
        """Return output and sums, by the plain formula, one query at a time."""
        out = torch.zeros_like(self.q_nope)
        lse = torch.full(self.q_nope.shape[:2], -math.inf)
        for request, length in enumerate(self.kv_lens.tolist()):
            begin, end = self.qo_indptr[request : request + 2].tolist()
            pages = self.kv_indices[self.kv_indptr[request] : self.kv_indptr[request + 1]].long()
            keys = self.ckv[pages].flatten(0, 1)[:length].float()
            rotated = self.kpe[pages].flatten(0, 1)[:length].float()
            for row in range(begin, end):
                seen = length - (end - 1 - row) if causal else length
                scores = self.q_nope[row].float() @ keys[:seen].T
                scores = (scores + self.q_pe[row].float() @ rotated[:seen].T) * SCALE
                if seen:
                    out[row] = (scores.softmax(-1) @ keys[:seen]).to(self.dtype)
                    lse[row] = scores.logsumexp(-1) / math.log(2)
        return out, lse


def _offsets(lengths):
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def name_of(stage, page_size=1):
    return f"mla_paged_{stage}_h{HEADS}_ckv{CKV}_kpe{KPE}_ps{page_size}"


def definition(stage, page_size=1):
    """Return a definition as the public dataset has them, in sizes for tests."""
    rows = "batch_size" if stage == "decode" else "total_q"
    const = {"num_qo_heads": HEADS, "head_dim_ckv": CKV, "head_dim_kpe": KPE}
    offsets = tensor("len_indptr", dtype="int32")
    inputs = {
        "q_nope": tensor(rows, "num_qo_heads", "head_dim_ckv"),
        "q_pe": tensor(rows, "num_qo_heads", "head_dim_kpe"),
        "ckv_cache": tensor("num_pages", "page_size", "head_dim_ckv"),
        "kpe_cache": tensor("num_pages", "page_size", "head_dim_kpe"),
        **({} if stage == "decode" else {"qo_indptr": offsets}),
        "kv_indptr": offsets,
        "kv_indices": tensor("num_kv_indices", dtype="int32"),
    }
    if page_size > 1:
        inputs["kv_last_page_len"] = tensor("requests", dtype="int32")
    made = define(
        name_of(stage, page_size),
        "mla_paged",
        {**const, "page_size": page_size},
        {**inputs, "sm_scale": SCALAR},
        {
            "output": tensor(rows, "num_qo_heads", "head_dim_ckv"),
            "lse": tensor(rows, "num_qo_heads", dtype="float32"),
        },
        constraints=["num_kv_indices == kv_indptr[-1].item()"],
    )
    return Definition.model_validate(made)


class Solution:
    """Computes a definition from its inputs alone, and keeps what it was given."""

    def __init__(self, stage):
        self.stage, self.calls = stage, []

    def __call__(self, **given):
        self.calls.append(given)
        return self.compute(**given)

    def compute(
        self,
        q_nope,
        q_pe,
        ckv_cache,
        kpe_cache,
        kv_indptr,
        kv_indices,
        sm_scale,
        qo_indptr=None,
        kv_last_page_len=None,
    ):
        if qo_indptr is None:
            qo_indptr = torch.arange(len(kv_indptr), dtype=torch.int32)
        batch = Batch.__new__(Batch)
        batch.dtype, batch.page_size = q_nope.dtype, ckv_cache.shape[1]
        batch.q_nope, batch.q_pe, batch.ckv, batch.kpe = q_nope, q_pe, ckv_cache, kpe_cache
        batch.qo_indptr, batch.kv_indptr, batch.kv_indices = qo_indptr, kv_indptr, kv_indices
        last = 1 if kv_last_page_len is None else kv_last_page_len
        batch.kv_lens = (kv_indptr.diff() - 1) * batch.page_size + last
        assert abs(sm_scale - SCALE) < 1e-6
        return batch.expected(self.stage != "decode")


def patched():
    """Have MLA patched inside a block."""
    return making.patched(MLAAdapter())


@contextlib.contextmanager
def applied(*definitions, known=True):
    """Have definitions answered inside a block: ``applied(definition("decode"))``.

    Parameters
    ----------
    *definitions : Definition
        Those that are mapped.
    known : bool
        Whether the definitions themselves are at hand, or their names alone.

    Yields
    ------
    dict
        The `Solution` of each definition, by its name.
    """
    stage = {each.name: "prefill" if "prefill" in each.name else "decode" for each in definitions}
    solutions = {each.name: Solution(stage[each.name]) for each in definitions}
    dataset = TraceSet(definitions={each.name: each for each in definitions if known})
    with patched(), enable_apply(dict(solutions), dataset=dataset):
        yield solutions


def wrapper(**options):
    """Return a new wrapper, which need not know that it computes on the CPU."""
    import flashinfer

    workspace = torch.empty(1024, dtype=torch.int8)
    return flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace, **options)


def refused():
    """Return how many calls of MLA were refused so far, by reason."""
    return dict(route_stats().get(LABEL, {}).get("refused", {}))


def close(actual, expected):
    """Assert that outputs agree as well as bfloat16 allows."""
    torch.testing.assert_close(actual, expected, **CLOSE)
