"""Causal attention on keys and values that lie one request after the other: ragged prefill."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from fib_adapters_flashinfer.attention import AttentionAdapter, AttentionRoute
from fib_adapters_flashinfer.common import capturing
from fib_adapters_flashinfer.planned import Call, Planned, Totals
from fib_adapters_flashinfer.refusals import (
    refuse_buffers,
    refuse_options,
    refuse_prefill,
    refuse_standing,
    scale_of,
)
from flashinfer_bench.integration.routing import Understood, UnroutableError, signature_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


class RaggedRoute(AttentionRoute):
    """``BatchPrefillWithRaggedKVCacheWrapper.run``, named by its head sizes.

    ``gqa_ragged_prefill_causal_h*_kv*_d*`` where keys and values are of one size; otherwise, as in
    latent attention whose projections are not absorbed, ``mla_ragged_prefill_causal_h*_qk*_vo*``.
    """

    label = "flashinfer.prefill.BatchPrefillWithRaggedKVCacheWrapper.run"
    parameters = signature_of("q", "k", "v", "qo_indptr", "kv_indptr", "sm_scale")
    plan_parameters = "self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk"
    run_parameters = (
        "self, q, k, v, *args, q_scale=None, k_scale=None, v_scale=None, o_scale=None, out=None, "
        "lse=None, return_lse=False, lse_base='log2', lse_layout='NH', enable_pdl=None"
    )
    definitions = (
        "gqa_ragged_prefill_causal_h*",
        "gqa_ragged_h*",
        "mla_ragged_prefill_causal_h*",
    )
    queries = (0, "qo_indptr")
    keys = (1, "kv_indptr")
    key_buffer = "_kv_indptr_buf"

    def refusal(self, wrapper: Any, totals: Totals) -> Optional[str]:
        """Return why a plan is none of a definition: values and outputs may lie elsewhere."""
        keys, queries = wrapper._kv_indptr_buf, wrapper._qo_indptr_buf
        if getattr(wrapper, "_v_indptr_buf", keys) is not keys:
            return "offsets of values"
        if getattr(wrapper, "_o_indptr_buf", queries) is not queries:
            return "offsets of outputs"
        return None

    def names(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[str, ...]:
        """Return the names for these heads and head sizes."""
        if not q.dim() == k.dim() == v.dim() == 3 or k.shape[:2] != v.shape[:2]:
            raise UnroutableError("shapes")
        heads, size, out = q.shape[1], q.shape[2], v.shape[2]
        if size != k.shape[2]:
            raise UnroutableError("shapes")
        if size != out:
            if k.shape[1] != heads:  # for which the name has no place
                raise UnroutableError("shapes")
            return (f"mla_ragged_prefill_causal_h{heads}_qk{size}_vo{out}",)
        sizes = f"h{heads}_kv{k.shape[1]}_d{size}"
        # The second is what FlashInfer's own traces call it.
        return f"gqa_ragged_prefill_causal_{sizes}", f"gqa_ragged_{sizes}"

    def understand(
        self,
        wrapper: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *args: Any,
        out: Optional[torch.Tensor] = None,
        lse: Optional[torch.Tensor] = None,
        return_lse: bool = False,
        lse_base: str = "log2",
        lse_layout: str = "NH",
        enable_pdl: Optional[bool] = None,
        **options: Any,
    ) -> Understood:
        """Read the object; see `Route.understand`."""
        if args or options:
            refuse_options(args, options)
        planned = self.planned(wrapper, q)
        refuse_standing(wrapper)
        if getattr(wrapper, "_sinks", None) is not None:  # engines set it from outside
            raise UnroutableError("attention sinks")
        refuse_prefill(wrapper, lse_base, lse_layout)
        k, v = self._rows(wrapper, planned, k, v)
        shapes = self.shapes(wrapper, planned, q, k, v)
        call = Call.of((wrapper, out, lse, return_lse, enable_pdl))
        if out is not None or lse is not None:
            refuse_buffers(call, shapes.out, planned.dtype, q)
        return Understood(
            shapes.name,
            (q, k, v, wrapper._qo_indptr_buf, planned.keys, scale_of(wrapper, shapes)),
            call,
        )

    def _rows(
        self, wrapper: Any, planned: Planned, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values as ``[total_kv, num_kv_heads, head_dim]``, as far as in use."""
        if k.dtype is not planned.dtype or v.dtype is not planned.dtype:
            raise UnroutableError("dtype")
        if wrapper._kv_layout == "HND":
            k, v = k.transpose(0, 1), v.transpose(0, 1)
        if k.shape[0] == planned.total or capturing():
            return k, v
        if planned.total is None:
            self.measure(planned)
        return k[: planned.total], v[: planned.total]

    def outputs(
        self, original: Callable[..., Any], understood: Understood, inputs: tuple[Any, ...]
    ) -> Any:
        """Return output and lse of the original, run on `inputs` with the plan as it is."""
        call: Call = understood.rest
        q, k, v = inputs[:3]
        if call.wrapper._kv_layout == "HND":
            k, v = k.transpose(0, 1), v.transpose(0, 1)
        return original(call.wrapper, q, k, v, return_lse=True, enable_pdl=call.enable_pdl)


class RaggedAdapter(AttentionAdapter):
    """Routes batch prefill on ragged keys and values."""

    owner = "flashinfer.prefill.BatchPrefillWithRaggedKVCacheWrapper"
    route = RaggedRoute
