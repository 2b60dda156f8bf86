"""What attention on paged keys and values has in common: forms of the cache, names, originals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from fib_adapters_flashinfer.attention import AttentionRoute
from fib_adapters_flashinfer.views import views
from flashinfer_bench.integration.routing import Understood, UnroutableError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from fib_adapters_flashinfer.planned import Call

FORM = "form of the kv cache"


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
    # One view for both halves, rather than one for each.
    return _halves_of_nhd(cache.transpose(2, 3) if _is_5d(cache) else cache)


def _is_5d(cache: Any) -> bool:
    import torch

    return isinstance(cache, torch.Tensor) and cache.dim() == 5


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
    """

    key_buffer = "_paged_kv_indptr_buf"
    index_buffer = "_paged_kv_indices_buf"
    length_buffer = "_paged_kv_last_page_len_buf"
    prefixes: ClassVar[tuple[str, ...]]

    def names(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[str, ...]:
        """Return the names for these heads, head sizes and page sizes."""
        if q.dim() != 3 or v.shape != k.shape or q.shape[-1] != k.shape[-1]:
            raise UnroutableError("shapes")
        sizes = f"h{q.shape[1]}_kv{k.shape[2]}_d{q.shape[2]}_ps{k.shape[1]}"
        return tuple(f"{prefix}_{sizes}" for prefix in self.prefixes)

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
