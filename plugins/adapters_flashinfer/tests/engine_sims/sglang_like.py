"""The sequence of calls of SGLang's FlashInfer backends.

Pages have one token. Plans go through ``begin_forward``, runs through ``forward``, which is given
the scale that the plan was not given. Wrappers for CUDA graphs get another plan function after
their first plan. All that is imported is imported by value.
"""

from functools import partial

import torch
from flashinfer import (
    BatchDecodeWithPagedKVCacheWrapper,
    BatchPrefillWithPagedKVCacheWrapper,
    BatchPrefillWithRaggedKVCacheWrapper,
    fast_decode_plan,
)
from flashinfer.mla import BatchMLAPagedAttentionWrapper
from flashinfer.norm import fused_add_rmsnorm, rmsnorm

BY_VALUE = ("rmsnorm", "fused_add_rmsnorm", "fast_decode_plan")

HQ, HKV, D, HIDDEN, EPS = 4, 2, 64, 64, 1e-6
SCALE = 0.2
CKV, KPE, MLA_SCALE = 128, 64, 0.07
DTYPE = torch.bfloat16


def offsets(lengths):
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


class Engine:
    """One layer's worth of calls; `capture` returns a context in which a graph is captured."""

    def __init__(self, capture):
        self.capture = capture
        make = torch.Generator().manual_seed(5)

        def normal(*shape):
            return torch.randn(*shape, generator=make).to(DTYPE)

        self.lengths, self.extend = [4, 7, 2], [2, 3, 1]
        tokens = sum(self.lengths)
        self.table = torch.randperm(40, generator=make, dtype=torch.int32)[: tokens + 256]
        self.cache = normal(40, HKV, D), normal(40, HKV, D)
        self.q, self.q_extend = normal(3, HQ, D), normal(6, HQ, D)
        self.k, self.v = normal(6, HKV, D), normal(6, HKV, D)
        self.x, self.residual, self.weight = normal(3, HIDDEN), normal(3, HIDDEN), normal(HIDDEN)
        self.mla_q, self.mla_pool = normal(3, HQ, CKV + KPE), normal(40, 1, CKV + KPE)
        workspace = torch.empty(1 << 16, dtype=torch.uint8)
        self.decode_wrapper = BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
        self.paged = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")
        self.ragged = BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
        self.mla_wrapper = BatchMLAPagedAttentionWrapper(workspace, backend="auto")
        self.buffers = {
            "paged_kv_indptr_buffer": torch.zeros(4, dtype=torch.int32),
            "paged_kv_indices_buffer": torch.zeros(64, dtype=torch.int32),
            "paged_kv_last_page_len_buffer": torch.ones(3, dtype=torch.int32),
        }
        self.graph_wrapper = BatchDecodeWithPagedKVCacheWrapper(
            workspace, "NHD", use_cuda_graph=True, use_tensor_cores=True, **self.buffers
        )

    @property
    def pages(self):
        """Keys and values as pages of one token."""
        return tuple(each.view(-1, 1, HKV, D) for each in self.cache)

    def step(self):
        """Return what each kind of call computed, by name."""
        return {
            "norm": self.norm(),
            "decode": self.decode(),
            "extend": self.prefill(),
            "prefix": self.prefix(),
            "mla": self.mla(),
            "graph": self.graph(),
        }

    def norm(self):
        x, residual = self.x.clone(), self.residual.clone()
        assert fused_add_rmsnorm(x, residual, self.weight, EPS) is None
        out = torch.empty_like(x)
        assert rmsnorm(x, self.weight, EPS, out=out) is out
        return x, residual, out

    def decode(self):
        last = torch.ones(3, dtype=torch.int32)
        self.decode_wrapper.begin_forward(
            *(offsets(self.lengths), self.table, last, HQ, HKV, D, 1),
            data_type=DTYPE,
            q_data_type=DTYPE,
            non_blocking=True,
        )
        options = {"sm_scale": SCALE, "logits_soft_cap": 0.0, "k_scale": None, "v_scale": None}
        return self.decode_wrapper.forward(self.q, self.pages, **options)

    def _plan_paged(self):
        self.paged.begin_forward(
            *(offsets(self.extend), offsets(self.lengths), self.table),
            *(torch.ones(3, dtype=torch.int32), HQ, HKV, D, 1),
            q_data_type=DTYPE,
            kv_data_type=DTYPE,
            custom_mask=None,
            non_blocking=True,
        )

    def prefill(self):
        self._plan_paged()
        options = {"causal": True, "sm_scale": SCALE, "window_left": -1, "logits_soft_cap": 0.0}
        scales = {"k_scale": None, "v_scale": None}
        return self.paged.forward(self.q_extend, self.pages, **options, **scales)

    def prefix(self):
        """New keys first, causally; then the cached ones, all of which are seen; then merged."""
        own = offsets(self.extend)
        self.ragged.begin_forward(own, own, HQ, HKV, D, q_data_type=DTYPE)
        options = {"sm_scale": SCALE, "logits_soft_cap": 0.0}
        first = self.ragged.forward_return_lse(
            self.q_extend, self.k, self.v, causal=True, **options
        )
        self._plan_paged()
        second = self.paged.forward_return_lse(self.q_extend, self.pages, causal=False, **options)
        shares = torch.softmax(torch.stack([first[1], second[1]]) * 0.6931472, 0)[..., None]
        return shares[0] * first[0] + shares[1] * second[0], first[1], second[1]

    def mla(self):
        self.mla_wrapper.plan(
            *(torch.arange(4, dtype=torch.int32), offsets(self.lengths), self.table),
            *(torch.tensor(self.lengths, dtype=torch.int32), HQ, CKV, KPE, 1, False, MLA_SCALE),
            *(DTYPE, DTYPE),
        )
        q, pool = self.mla_q, self.mla_pool
        return self.mla_wrapper.run(q[..., :CKV], q[..., CKV:], pool[..., :CKV], pool[..., CKV:])

    def graph(self):
        """Capture a decode, then replay it with other lengths, planned in the quick way."""
        self.graph_wrapper.__dict__.pop("begin_forward", None)
        last = torch.ones(3, dtype=torch.int32)
        sizes, dtypes = (HQ, HKV, D, 1), {"data_type": DTYPE, "q_data_type": DTYPE}
        self.graph_wrapper.begin_forward(offsets([1, 1, 1]), self.table[:3], last, *sizes, **dtypes)
        warm = self.graph_wrapper.forward(self.q, self.pages, sm_scale=SCALE)
        with self.capture():
            captured = self.graph_wrapper.forward(self.q, self.pages, sm_scale=SCALE)
        self.graph_wrapper.begin_forward = partial(fast_decode_plan, self.graph_wrapper)
        # This is how SGLang knows whether it has replaced the plan.
        assert self.graph_wrapper.begin_forward.func == fast_decode_plan
        indptr = self.buffers["paged_kv_indptr_buffer"]
        indptr.copy_(offsets(self.lengths))
        self.buffers["paged_kv_indices_buffer"][: sum(self.lengths)] = self.table[
            : sum(self.lengths)
        ]
        indices = self.buffers["paged_kv_indices_buffer"]
        self.graph_wrapper.begin_forward(indptr, indices, last, *sizes, **dtypes)
        return warm, captured, self.graph_wrapper.forward(self.q, self.pages, sm_scale=SCALE)
