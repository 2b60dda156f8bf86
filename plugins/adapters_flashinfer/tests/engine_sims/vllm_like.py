"""The sequence of calls of vLLM's FlashInfer backend.

Keys and values are one 5-D tensor; in newer releases they are packed into the last dimension of a
4-D one, of which each call makes two views. Either comes in both layouts. Pages have 16 tokens. The
output goes into a slice of a padded buffer, and what is returned is not looked at. Attributes of
wrappers are.
"""

import inspect

import torch
from flashinfer import BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper
from flashinfer.decode import fast_decode_plan

BY_VALUE = ("fast_decode_plan",)

HQ, HKV, D, PAGE, SCALE = 4, 2, 64, 16, 0.2
DTYPE = torch.bfloat16
OPTIONS = {
    "sm_scale": SCALE,
    "window_left": -1,
    "logits_soft_cap": 0.0,
    "q_data_type": DTYPE,
    "kv_data_type": DTYPE,
}


def i32(*values):
    return torch.tensor(values, dtype=torch.int32)


class Engine:
    """Decodes two requests and prefills two others, as one batch.

    `capture` returns a context in which a graph is captured; `packed` says whether keys and values
    are in one place's elements, one after the other.
    """

    def __init__(self, capture, layout="NHD", packed=False):
        self.capture, self.layout, self.packed = capture, layout, packed
        make = torch.Generator().manual_seed(6)
        # The logical order is [pages, 2, page, heads, d]; heads come first in memory with HND.
        cache = torch.randn(12, 2, PAGE, HKV, D, generator=make).to(DTYPE)
        order = (0, 1, 2, 3, 4) if layout == "NHD" else (0, 1, 3, 2, 4)
        halves = cache.permute(order)
        if packed:  # its logical order is [pages, heads, page, 2 d]
            whole = torch.cat(halves.unbind(1), dim=-1)
            self.cache = whole if layout == "HND" else whole.transpose(1, 2)
        else:
            self.cache = halves.contiguous()
        self.query = torch.randn(2 + 5, HQ, D, generator=make).to(DTYPE)
        workspace = torch.empty(1 << 16, dtype=torch.uint8)
        self.decode_wrapper = BatchDecodeWithPagedKVCacheWrapper(
            workspace, layout, use_tensor_cores=True
        )
        self.prefill_wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace, layout)
        self.graph_wrapper = BatchDecodeWithPagedKVCacheWrapper(
            workspace,
            layout,
            use_cuda_graph=True,
            paged_kv_indptr_buffer=i32(*[0] * 3),
            paged_kv_indices_buffer=i32(*[0] * 30),
            paged_kv_last_page_len_buffer=i32(*[0] * 2),
            use_tensor_cores=True,
        )

    def step(self):
        """Return what each kind of call computed, by name."""
        return {"batch": self.batch(), "graph": self.graph()}

    def _plan_decode(self, wrapper, plan):
        plan(
            *(wrapper, i32(0, 2, 3), i32(7, 3, 9), i32(5, 16), HQ, HKV, D, PAGE),
            pos_encoding_mode="NONE",
            **OPTIONS,
        )

    def _plan_prefill(self):
        self.prefill_wrapper.plan(
            *(i32(0, 3, 5), i32(0, 1, 3), i32(1, 4, 6), i32(9, 2), HQ, HKV, D, PAGE),
            causal=True,
            **OPTIONS,
        )

    def _check(self, wrapper):
        """What vLLM asserts before each run."""
        assert wrapper._window_left == -1
        assert (wrapper._logits_soft_cap or 0.0) == 0.0
        assert wrapper._sm_scale == SCALE

    def _run(self, wrapper, query, out):
        cache, options = self.cache, {"k_scale": 1.0, "v_scale": 1.0, "out": out}
        if self.packed:
            memory = cache if self.layout == "HND" else cache.permute(0, 2, 1, 3)
            cache = memory.split(D, dim=-1)
            more = {"q_scale": 1.0, "kv_cache_sf": None, "sinks": None}
            known = inspect.signature(type(wrapper).run).parameters
            options.update((name, value) for name, value in more.items() if name in known)
        wrapper.run(query, cache, **options)

    def batch(self):
        self._plan_decode(self.decode_wrapper, type(self.decode_wrapper).plan)
        self._plan_prefill()
        output = torch.full((10, HQ, D), 3.0, dtype=DTYPE)
        self._check(self.prefill_wrapper)
        assert self.prefill_wrapper._causal
        self._run(self.prefill_wrapper, self.query[2:], output[2:7])
        self._check(self.decode_wrapper)
        self._run(self.decode_wrapper, self.query[:2], output[:2])
        assert (output[7:] == 3.0).all()
        return (output,)

    def graph(self):
        output = torch.zeros(2, HQ, D, dtype=DTYPE)
        self._plan_decode(self.graph_wrapper, type(self.graph_wrapper).plan)
        self._run(self.graph_wrapper, self.query[:2], output)
        warm = output.clone()
        with self.capture():
            self._run(self.graph_wrapper, self.query[:2], output)
        captured = output.clone()
        self._plan_decode(self.graph_wrapper, fast_decode_plan)
        self._run(self.graph_wrapper, self.query[:2], output)
        return warm, captured, output
