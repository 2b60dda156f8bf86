"""Batches for MLA, what is called with them, and what should come out.

Small sizes that FlashInfer allows: the compressed part is a multiple of 128, the rotated of 64.
"""

import contextlib
import math

import gqa
import making
import torch
from making import tensor

from fib_adapters_flashinfer.mla import MLAAdapter, MLARun
from flashinfer_bench.apply import enable_apply
from flashinfer_bench.data import Definition, TraceSet

HEADS, CKV, KPE = 4, 128, 64
SCALE = 1.0 / math.sqrt(128 + 64)
LABEL = MLARun.label


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

    def planned(self, causal=False, **options):
        """Return a new wrapper, planned."""
        made = wrapper()
        self.plan(made, causal, **options)
        return made

    def expected(self, causal=False):
        """Return output and sums."""
        last = None if self.page_size == 1 else (self.kv_lens - 1) % self.page_size + 1
        table = self.kv_indptr, self.kv_indices
        return reference(*self.tensors, *table, SCALE, self.qo_indptr, last, causal)


def reference(
    q_nope,
    q_pe,
    ckv_cache,
    kpe_cache,
    kv_indptr,
    kv_indices,
    sm_scale,
    qo_indptr=None,
    kv_last_page_len=None,
    causal=True,
):
    """What definitions say: values are the compressed keys again."""
    q, keys = torch.cat([q_nope, q_pe], dim=-1), torch.cat([ckv_cache, kpe_cache], dim=-1)
    rows = torch.arange(len(kv_indptr)) if qo_indptr is None else qo_indptr
    caches, table = (keys[:, :, None], ckv_cache[:, :, None]), (kv_indptr, kv_indices)
    return gqa.prefill_reference(q, *caches, rows, *table, sm_scale, kv_last_page_len, causal)


def _offsets(lengths):
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def name_of(stage, page_size=1):
    return f"mla_paged_{stage}_h{HEADS}_ckv{CKV}_kpe{KPE}_ps{page_size}"


def definition(stage, page_size=1):
    """Return a definition as the public dataset has them, in sizes for tests."""
    rows = "batch_size" if stage == "decode" else "total_q"
    tensors = {
        "q_nope": tensor(rows, "num_qo_heads", "head_dim_ckv"),
        "q_pe": tensor(rows, "num_qo_heads", "head_dim_kpe"),
        "ckv_cache": tensor("num_pages", "page_size", "head_dim_ckv"),
        "kpe_cache": tensor("num_pages", "page_size", "head_dim_kpe"),
    }
    sizes = {"num_qo_heads": HEADS, "head_dim_ckv": CKV, "head_dim_kpe": KPE}
    return making.attention(name_of(stage, page_size), "mla_paged", sizes, tensors, page_size)


def patched():
    """Have MLA patched inside a block."""
    return making.patched(MLAAdapter())


@contextlib.contextmanager
def applied(*definitions, known=True):
    """Have definitions answered inside a block; yields the `Solution` of each, by its name.

    `known` says whether the definitions themselves are at hand, or their names alone.
    """
    solutions = {each["name"]: making.Solution(reference) for each in definitions}
    found = {each["name"]: Definition.model_validate(each) for each in definitions if known}
    dataset = TraceSet(definitions=found)
    with patched(), enable_apply(dict(solutions), dataset=dataset):
        yield solutions


@contextlib.contextmanager
def answered(stage="decode", known=True):
    """Have one definition answered inside a block; yields its solution."""
    with applied(definition(stage), known=known) as solutions:
        yield solutions[name_of(stage)]


def wrapper(**options):
    """Return a new wrapper, which need not know that it computes on the CPU."""
    import flashinfer

    workspace = torch.empty(1024, dtype=torch.int8)
    return flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace, **options)
