"""The functions and methods that each adapter patches, by the adapter's name.

Light: the plugin registers these without importing torch.
"""

from __future__ import annotations

_PLANNED = ("plan", "begin_forward", "run", "run_return_lse")


def _methods(owner: str, names: tuple[str, ...] = _PLANNED) -> tuple[str, ...]:
    return tuple(f"{owner}.{name}" for name in names)


NORM = tuple(
    f"flashinfer.norm.{name}"
    for name in ("rmsnorm", "fused_add_rmsnorm", "gemma_rmsnorm", "gemma_fused_add_rmsnorm")
)
LINEAR = ("torch.nn.functional.linear",)
DECODE = _methods("flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper")
PREFILL = _methods("flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper")
RAGGED = _methods("flashinfer.prefill.BatchPrefillWithRaggedKVCacheWrapper")
MLA = _methods("flashinfer.mla.BatchMLAPagedAttentionWrapper", ("plan", "run"))
TEMPLATES = ("flashinfer.activation.silu_and_mul",)
"""A function that each release with templates has: the others are found once it is imported."""
