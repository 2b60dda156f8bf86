"""Grouped-query attention: FlashInfer's batch decode, and batch prefill on pages or on rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Optional

from fib_adapters_flashinfer.attention import (
    AttentionAdapter,
    AttentionRoute,
    Call,
    Planned,
    refuse_buffers,
    refuse_options,
    refuse_prefill,
    refuse_standing,
    scale_of,
)
from fib_adapters_flashinfer.common import capturing
from fib_adapters_flashinfer.views import views
from flashinfer_bench.routing import Understood, UnroutableError, signature_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

FORM = "form of the kv cache"


# --------------------------------------------------------------------------------------- pages


def as_pages(cache: Any, layout: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values of a paged cache, as definitions have them.

    Parameters
    ----------
    cache : tuple of two tensors, or tensor
        Keys and values, or one tensor with both in its second dimension. Where pages have one
        place, the dimension of places may be left out.
    layout : str
        ``_kv_layout`` of the object: whether places come before heads (NHD) or after (HND).
    dtype : torch.dtype
        What elements must be.

    Returns
    -------
    k, v : torch.Tensor
        ``[num_pages, page_size, num_kv_heads, head_dim]``: the tensors themselves, or views.

    Raises
    ------
    UnroutableError
        If it is none of these.
    """
    if not isinstance(cache, tuple):
        try:
            k, v = views.of(cache, _HALVES_OF[layout])
        except KeyError:
            raise UnroutableError("kv layout") from None
        except TypeError:  # nothing that there is a weak reference to
            raise UnroutableError(FORM) from None
        if k.dtype is not dtype:
            raise UnroutableError("dtype")
        return k, v
    if len(cache) != 2:
        raise UnroutableError(FORM)
    k, v = cache
    if k.dtype is not dtype or v.dtype is not dtype:
        raise UnroutableError("dtype")
    if layout == "NHD" and k.dim() == 4 and v.dim() == 4:
        return k, v
    return _rearranged(k, layout), _rearranged(v, layout)


def _halves_of_nhd(cache: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both halves of a cache in one tensor, as pages."""
    import torch

    if not isinstance(cache, torch.Tensor) or cache.dim() not in (4, 5) or cache.shape[1] != 2:
        raise UnroutableError(FORM)
    k, v = cache.unbind(1)
    return (k, v) if k.dim() == 4 else (k.unsqueeze(1), v.unsqueeze(1))


def _halves_of_hnd(cache: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Likewise, of a cache in which heads come before places."""
    import torch

    # One view for both halves, rather than one for each.
    turned = isinstance(cache, torch.Tensor) and cache.dim() == 5
    return _halves_of_nhd(cache.transpose(2, 3) if turned else cache)


_HALVES_OF = {"NHD": _halves_of_nhd, "HND": _halves_of_hnd}


def _rearranged(pages: torch.Tensor, layout: str) -> torch.Tensor:
    if pages.dim() == 3:  # one place on a page: where it would be makes no difference
        return views.of(pages, _one_place)
    if pages.dim() != 4:
        raise UnroutableError(FORM)
    if layout == "HND":
        return views.of(pages, _places_first)
    if layout != "NHD":
        raise UnroutableError("kv layout")
    return pages


def _one_place(pages: torch.Tensor) -> torch.Tensor:
    return pages.unsqueeze(1)


def _places_first(pages: torch.Tensor) -> torch.Tensor:
    return pages.transpose(1, 2)


class PagedRoute(AttentionRoute):
    """The ``run`` of a class of wrappers for paged keys and values.

    Attributes
    ----------
    prefixes : tuple of str
        What names of definitions begin with, the usual one first.
    causal : bool
        Whether requests have several queries, the last of which sees all keys.
    """

    key_buffer = "_paged_kv_indptr_buf"
    index_buffer = "_paged_kv_indices_buf"
    length_buffer = "_paged_kv_last_page_len_buf"
    prefixes: ClassVar[tuple[str, ...]]
    causal: ClassVar[bool] = False

    def names(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[str, ...]:
        """Return the names for these heads, head sizes and page sizes."""
        if q.dim() != 3 or v.shape != k.shape or q.shape[-1] != k.shape[-1]:
            raise UnroutableError("shapes")
        sizes = f"h{q.shape[1]}_kv{k.shape[2]}_d{q.shape[2]}_ps{k.shape[1]}"
        return tuple(f"{prefix}_{sizes}" for prefix in self.prefixes)

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
        q_len_per_req: Optional[int] = None,
        **options: Any,
    ) -> Understood:
        """Read the object; see `Route.understand`."""
        if args or options:
            refuse_options(args, options)
        if not (q_scale is k_scale is v_scale is None):
            refuse_options((), {"k_scale": k_scale, "v_scale": v_scale, "q_scale": q_scale})
        if q_len_per_req is not None and q_len_per_req != 1:
            raise UnroutableError("several queries")
        plan = self.planned(wrapper, q)
        refuse_standing(wrapper, window_left)
        if self.causal:
            refuse_prefill(wrapper, lse_base, lse_layout)
        k, v = as_pages(paged_kv_cache, wrapper._kv_layout, plan.dtype)
        shapes = self.shapes(wrapper, plan, q, k, v)
        if out is not None or lse is not None:
            refuse_buffers(out, lse, shapes.out, q)
        pages = plan.indices if plan.exact else self.pages(plan)
        scale, last = scale_of(wrapper, shapes), shapes.last_page_len
        return Understood(
            shapes.name,
            (q, k, v, wrapper._qo_indptr_buf, plan.keys, pages, scale, last)
            if self.causal
            else (q, k, v, plan.keys, pages, scale, last),
            Call.of((wrapper, out, lse, return_lse, enable_pdl)),
        )

    def outputs(
        self, original: Callable[..., Any], understood: Understood, inputs: tuple[Any, ...]
    ) -> Any:
        """Return output and lse of the original, run on `inputs` with the plan as it is.

        The page table is the plan's own: the original reads nothing else.
        """
        call: Call = understood.rest
        q, k, v = inputs[:3]
        if call.wrapper._kv_layout == "HND":
            k, v = k.transpose(1, 2), v.transpose(1, 2)
        return original(call.wrapper, q, (k, v), return_lse=True, enable_pdl=call.enable_pdl)


class DecodeRoute(PagedRoute):
    """``BatchDecodeWithPagedKVCacheWrapper.run`` as ``gqa_paged_decode_h*_kv*_d*_ps*``."""

    owner = "flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper"
    label = f"{owner}.run"
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

    def refusal(self, wrapper: Any) -> Optional[str]:
        """Return why a plan is none of a definition: each request must have one query."""
        if getattr(wrapper, "_window_right", 0) != 0:
            return "sliding window"
        return None if getattr(wrapper, "_q_len_per_req", 1) in (1, None) else "several queries"

    def number_of_queries(self, wrapper: Any, plan: Planned) -> Optional[int]:
        """Return how many requests there are, each of which has one query."""
        found: int = wrapper._paged_kv_last_page_len_buf.shape[0]
        return found


class PrefillRoute(PagedRoute):
    """``BatchPrefillWithPagedKVCacheWrapper.run`` as ``gqa_paged_prefill_causal_h*_kv*_d*_ps*``."""

    owner = "flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper"
    label = f"{owner}.run"
    parameters = signature_of(
        *("q", "k_cache", "v_cache", "qo_indptr", "kv_indptr", "kv_indices", "sm_scale"),
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
    causal = True
    queries = (0, "qo_indptr")
    keys = (1, "paged_kv_indptr")
    places = ((3, "paged_kv_last_page_len"), (7, "page_size"))


# ---------------------------------------------------------------------------------------- rows


class RaggedRoute(AttentionRoute):
    """``BatchPrefillWithRaggedKVCacheWrapper.run``, named by its head sizes.

    ``gqa_ragged_prefill_causal_h*_kv*_d*`` where keys and values are of one size; otherwise, as in
    latent attention whose projections are not absorbed, ``mla_ragged_prefill_causal_h*_qk*_vo*``.
    """

    owner = "flashinfer.prefill.BatchPrefillWithRaggedKVCacheWrapper"
    label = f"{owner}.run"
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

    def refusal(self, wrapper: Any) -> Optional[str]:
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
        plan = self.planned(wrapper, q)
        refuse_standing(wrapper)
        if getattr(wrapper, "_sinks", None) is not None:  # engines set it from outside
            raise UnroutableError("attention sinks")
        refuse_prefill(wrapper, lse_base, lse_layout)
        k, v = self._rows(wrapper, plan, k, v)
        shapes = self.shapes(wrapper, plan, q, k, v)
        if out is not None or lse is not None:
            refuse_buffers(out, lse, shapes.out, q)
        return Understood(
            shapes.name,
            (q, k, v, wrapper._qo_indptr_buf, plan.keys, scale_of(wrapper, shapes)),
            Call.of((wrapper, out, lse, return_lse, enable_pdl)),
        )

    def _rows(
        self, wrapper: Any, plan: Planned, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values as ``[total_kv, num_kv_heads, head_dim]``, as far as in use."""
        if k.dtype is not plan.dtype or v.dtype is not plan.dtype:
            raise UnroutableError("dtype")
        if wrapper._kv_layout == "HND":
            k, v = k.transpose(0, 1), v.transpose(0, 1)
        if k.shape[0] == plan.total or capturing():
            return k, v
        if plan.total is None:
            self.measure(plan)
        return k[: plan.total], v[: plan.total]

    def outputs(
        self, original: Callable[..., Any], understood: Understood, inputs: tuple[Any, ...]
    ) -> Any:
        """Return output and lse of the original, run on `inputs` with the plan as it is."""
        call: Call = understood.rest
        q, k, v = inputs[:3]
        if call.wrapper._kv_layout == "HND":
            k, v = k.transpose(0, 1), v.transpose(0, 1)
        return original(call.wrapper, q, k, v, return_lse=True, enable_pdl=call.enable_pdl)


class DecodeAdapter(AttentionAdapter):
    """Routes batch decode on paged keys and values."""

    route = DecodeRoute()


class PrefillAdapter(AttentionAdapter):
    """Routes batch prefill on paged keys and values."""

    route = PrefillRoute()


class RaggedAdapter(AttentionAdapter):
    """Routes batch prefill on ragged keys and values."""

    route = RaggedRoute()
