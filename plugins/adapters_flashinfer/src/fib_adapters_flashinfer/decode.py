"""Attention of one query per request on paged keys and values: FlashInfer's batch decode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from fib_adapters_flashinfer.attention import AttentionAdapter
from fib_adapters_flashinfer.paged import PagedRoute, as_pages
from fib_adapters_flashinfer.planned import Call, Totals
from fib_adapters_flashinfer.refusals import (
    refuse_buffers,
    refuse_options,
    refuse_scales,
    refuse_standing,
    scale_of,
)
from flashinfer_bench.integration.routing import Understood, UnroutableError, signature_of

if TYPE_CHECKING:
    import torch


class DecodeRoute(PagedRoute):
    """``BatchDecodeWithPagedKVCacheWrapper.run`` as ``gqa_paged_decode_h*_kv*_d*_ps*``."""

    label = "flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper.run"
    parameters = signature_of(
        "q", "k_cache", "v_cache", "kv_indptr", "kv_indices", "sm_scale", kv_last_page_len=None
    )
    plan_parameters = (
        "self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size"
    )
    run_parameters = (
        "self, q, paged_kv_cache, *args, q_scale=None, k_scale=None, v_scale=None, out=None, "
        "lse=None, return_lse=False, enable_pdl=None, window_left=None, sinks=None"
    )
    definitions = ("gqa_paged_decode_h*",)
    prefixes = ("gqa_paged_decode",)
    keys = (0, "indptr")

    def refusal(self, wrapper: Any, totals: Totals) -> Optional[str]:
        """Return why a plan is none of a definition: each request must have one query."""
        if getattr(wrapper, "_window_right", 0) != 0:
            return "sliding window"
        return None if getattr(wrapper, "_q_len_per_req", 1) in (1, None) else "several queries"

    def number_of_queries(self, wrapper: Any, totals: Totals) -> Optional[int]:
        """Return how many requests there are, each of which has one query."""
        found: int = wrapper._paged_kv_last_page_len_buf.shape[0]
        return found

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
        enable_pdl: Optional[bool] = None,
        window_left: Optional[int] = None,
        q_len_per_req: Optional[int] = None,
        **options: Any,
    ) -> Understood:
        """Read the object; see `Route.understand`."""
        if args or options:
            refuse_options(args, options)
        if not (q_scale is k_scale is v_scale is None):
            refuse_scales(q_scale, k_scale, v_scale)
        if q_len_per_req is not None and q_len_per_req != 1:
            raise UnroutableError("several queries")
        planned = self.planned(wrapper, q)
        refuse_standing(wrapper, window_left)
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
                planned.keys,
                planned.indices if planned.exact else self.pages(planned),
                scale_of(wrapper, shapes),
                shapes.last_page_len,
            ),
            call,
        )


class DecodeAdapter(AttentionAdapter):
    """Routes batch decode on paged keys and values."""

    owner = "flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper"
    route = DecodeRoute
