"""Causal attention of several queries per request on paged keys and values: batch prefill."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from fib_adapters_flashinfer.attention import AttentionAdapter
from fib_adapters_flashinfer.paged import PagedRoute, as_pages
from fib_adapters_flashinfer.planned import Call
from fib_adapters_flashinfer.refusals import (
    refuse_buffers,
    refuse_options,
    refuse_prefill,
    refuse_scales,
    refuse_standing,
    scale_of,
)
from flashinfer_bench.integration.routing import Understood, signature_of

if TYPE_CHECKING:
    import torch


class PrefillRoute(PagedRoute):
    """``BatchPrefillWithPagedKVCacheWrapper.run`` as ``gqa_paged_prefill_causal_h*_kv*_d*_ps*``."""

    label = "flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper.run"
    parameters = signature_of(
        "q",
        "k_cache",
        "v_cache",
        "qo_indptr",
        "kv_indptr",
        "kv_indices",
        "sm_scale",
        kv_last_page_len=None,
    )
    plan_parameters = (
        "self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, "
        "num_kv_heads, head_dim_qk, page_size"
    )
    run_parameters = (
        "self, q, paged_kv_cache, *args, q_scale=None, k_scale=None, v_scale=None, out=None, "
        "lse=None, return_lse=False, lse_base='log2', lse_layout='NH', enable_pdl=None, "
        "window_left=None, sinks=None"
    )
    definitions = ("gqa_paged_prefill_causal_h*", "gqa_paged_prefill_h*")
    # The second is what FlashInfer's own traces call it, causal as well.
    prefixes = ("gqa_paged_prefill_causal", "gqa_paged_prefill")
    queries = (0, "qo_indptr")
    keys = (1, "paged_kv_indptr")
    places = ((3, "paged_kv_last_page_len"), (7, "page_size"))

    def understand(
        self,
        wrapper: Any,
        q: torch.Tensor,
        paged_kv_cache: Any,
        *args: Any,
        q_scale: Any = None,
        k_scale: Any = None,
        v_scale: Any = None,
        out: Optional[torch.Tensor] = None,
        lse: Optional[torch.Tensor] = None,
        return_lse: bool = False,
        lse_base: str = "log2",
        lse_layout: str = "NH",
        enable_pdl: Optional[bool] = None,
        window_left: Optional[int] = None,
        **options: Any,
    ) -> Understood:
        """Read the object; see `Route.understand`."""
        if args or options:
            refuse_options(args, options)
        if not (q_scale is k_scale is v_scale is None):
            refuse_scales(q_scale, k_scale, v_scale)
        planned = self.planned(wrapper, q)
        refuse_standing(wrapper, window_left)
        refuse_prefill(wrapper, lse_base, lse_layout)
        k, v = as_pages(paged_kv_cache, wrapper._kv_layout, planned.dtype)
        shapes = self.shapes(wrapper, planned, q, k, v)
        call = Call.of((wrapper, out, lse, return_lse, enable_pdl))
        if out is not None or lse is not None:
            refuse_buffers(call, shapes.out, planned.dtype, q)
        return Understood(
            shapes.name,
            (
                q,
                k,
                v,
                wrapper._qo_indptr_buf,
                planned.keys,
                planned.indices if planned.exact else self.pages(planned),
                scale_of(wrapper, shapes),
                shapes.last_page_len,
            ),
            call,
        )


class PrefillAdapter(AttentionAdapter):
    """Routes batch prefill on paged keys and values."""

    owner = "flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper"
    route = PrefillRoute
