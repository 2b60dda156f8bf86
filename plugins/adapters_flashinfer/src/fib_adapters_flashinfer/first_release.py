"""Functions of the first release for routing FlashInfer's functions through apply and tracing.

Calling them is not required: adapters are installed while a definition that they route is applied
or traced, and removed afterwards. The helpers remain for third-party adapters.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any, Optional

from fib_adapters_flashinfer.attention import as_pages
from fib_adapters_flashinfer.common import with_lse
from flashinfer_bench.routing import PatchStatus, installation

if TYPE_CHECKING:
    import torch

__all__ = [
    "infer_kv_layout_from_args",
    "infer_paged_kv_layout_from_tensors",
    "infer_ragged_kv_layout_from_tensors",
    "install_flashinfer_integrations",
    "normalize_paged_kv_to_nhd",
    "normalize_ragged_kv_to_nhd",
    "pick_sm_scale_gqa",
    "pick_sm_scale_mla",
    "uninstall_flashinfer_integrations",
    "write_back_outputs",
]

_LIBRARY = "flashinfer"


def install_flashinfer_integrations() -> list[PatchStatus]:
    """Patch FlashInfer as needed by apply and tracing, now and from now on.

    This is the default state; only `uninstall_flashinfer_integrations` changes it.

    Returns
    -------
    list of PatchStatus
        State of each target. Empty if nothing is applied or traced.
    """
    return _suspended(False)


def uninstall_flashinfer_integrations() -> list[PatchStatus]:
    """Restore FlashInfer's functions, and do not patch it again until it is installed again.

    Returns
    -------
    list of PatchStatus
        State of each target.
    """
    return _suspended(True)


def _suspended(suspended: bool) -> list[PatchStatus]:
    statuses = installation.default().suspend(_LIBRARY, suspended)
    return [status for status in statuses if status.path.partition(".")[0] == _LIBRARY]


# --------------------------------------------------------------- helpers for third-party adapters


def infer_kv_layout_from_args(inst: Any) -> Optional[str]:
    """Return the layout ``"NHD"`` or ``"HND"`` of a FlashInfer wrapper; None if it has none."""
    return getattr(inst, "_kv_layout", None)


def infer_paged_kv_layout_from_tensors(paged_kv_cache: Any, num_kv_heads: int) -> Optional[str]:
    """Return the layout of pages by their shape; None if neither or both match."""
    pages = paged_kv_cache[0] if isinstance(paged_kv_cache, tuple) else paged_kv_cache[:, 0]
    return infer_ragged_kv_layout_from_tensors(pages[0], num_kv_heads)


def infer_ragged_kv_layout_from_tensors(ragged_k_or_v: Any, num_kv_heads: int) -> Optional[str]:
    """Return the layout of a three-dimensional tensor; None if neither or both match."""
    first, second = (size == num_kv_heads for size in ragged_k_or_v.shape[:2])
    return None if first is second else "HND" if first else "NHD"


def normalize_paged_kv_to_nhd(
    paged_kv_cache: Any, kv_layout: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values as ``[num_pages, page_size, num_kv_heads, head_dim]``, as views."""
    of_both = isinstance(paged_kv_cache, tuple)
    dtype = (paged_kv_cache[0] if of_both else paged_kv_cache).dtype
    return as_pages(paged_kv_cache, kv_layout, dtype)


def normalize_ragged_kv_to_nhd(ragged_k_or_v: torch.Tensor, kv_layout: str) -> torch.Tensor:
    """Return keys or values as ``[tokens, num_kv_heads, head_dim]``, as a view."""
    return ragged_k_or_v.transpose(0, 1) if kv_layout == "HND" else ragged_k_or_v


def pick_sm_scale_gqa(head_dim: int, maybe: Any) -> float:
    """Return the given scale, or the default for heads of that size."""
    return 1.0 / sqrt(head_dim) if maybe is None else float(maybe)


def pick_sm_scale_mla(head_dim_qk_nope: int, head_dim_qk_pe: int, maybe: Any) -> float:
    """Return the given scale, or the default for heads of the combined size."""
    return pick_sm_scale_gqa(head_dim_qk_nope + head_dim_qk_pe, maybe)


def write_back_outputs(
    *,
    output: torch.Tensor,
    lse: torch.Tensor,
    want_lse: bool,
    out_buf: Optional[torch.Tensor] = None,
    lse_buf: Optional[torch.Tensor] = None,
) -> Any:
    """Return outputs of attention in the caller's buffers, if there are any."""
    return with_lse((output, lse), out_buf, lse_buf, want_lse)
